#pragma once
// The families of ops; each registers its definitions.

namespace sinter {
class OpRegistry;

void register_source(OpRegistry& r);             // full, iota
void register_arithmetic(OpRegistry& r);         // add … where, cast
void register_elementary(OpRegistry& r);         // erf, tan, hypot, round, isnan, …
void register_bitwise(OpRegistry& r);            // bits of integers, logical_xor
void register_activation(OpRegistry& r);         // relu, silu, gelu, …
void register_view(OpRegistry& r);               // broadcast, reshape, permute, slice, concat, pad
void register_shape(OpRegistry& r);              // squeeze … one_hot
void register_reduce(OpRegistry& r);             // sum, prod, max, min and the composites
void register_prefix(OpRegistry& r);             // cumsum, cumprod
void register_statistics(OpRegistry& r);         // argmax, argmin, var, std, any, all
void register_reduce_composites(OpRegistry& r);  // mean, norm, logsumexp; part of register_reduce
void register_contract(OpRegistry& r);           // matmul
void register_contraction(OpRegistry& r);        // dot_general, outer, linear, einsum
void register_einsum(OpRegistry& r);             // part of register_contraction
void register_conv(OpRegistry& r);               // conv1d, conv2d, im2col, col2im
void register_pool(OpRegistry& r);               // max_pool, avg_pool
void register_index(OpRegistry& r);              // gather … dynamic_update_slice
void register_dynamic_slice(OpRegistry& r);      // part of register_index
void register_sort(OpRegistry& r);               // sort, argsort, topk
void register_embedding(OpRegistry& r);          // embedding and its gradient, check_index
void register_normalization(OpRegistry& r);      // softmax, log_softmax, layer_norm, rms_norm
void register_channel_norm(OpRegistry& r);       // l2_normalize, group_norm, batch_norm
void register_rope(OpRegistry& r);               // rope; part of register_attention
void register_attention(OpRegistry& r);          // attention
void register_loss(OpRegistry& r);               // cross_entropy, nll and the elementwise ones
void register_elementwise_loss(OpRegistry& r);   // mse, l1, huber, …; part of register_loss
void register_random(OpRegistry& r);             // random_uniform, random_normal, dropout
void register_optimizer(OpRegistry& r);          // sgd, adam, adamw, lion, adafactor, muon
void register_call(OpRegistry& r);               // fusion, call, custom_vjp
void register_scan(OpRegistry& r);               // scan

}  // namespace sinter
