#pragma once
// How a graph asks for mixed precision: the contract between autocast() and the pass `autocast`.
//
//   autocast = "bf16"      an attribute of the graph; or "f16", or "tf32"
//
// With tf32 only f32 matmuls change: they get compute = "tf32". With bf16 and f16, of a graph
// whose floats are f32:
//
//   contractions  compute in the type and give it; the inputs of the graph that they read, and
//                 views of those, stay f32 operands, rounded on reading, so that the gradients
//                 of parameters come out f32
//   biases        parameters that are added to every row of a product become its operand c, so that
//                 the sum is rounded once
//   in between    pointwise ops, norms, losses and reductions work in f32: their operands are
//                 cast up where they enter, and what a contraction or a later such part reads is
//                 cast down where it leaves
//   the stream    sums of activations of which one lies deeper (residual connections) are narrow
//                 whatever reads them: added in f32, rounded once
//   views         follow what they look at
//   outputs       stay f32
//
// The gradient of a cast is a cast, so differentiation afterwards keeps these types.

namespace sinter {

inline constexpr const char* kAutocastAttribute = "autocast";

}  // namespace sinter
