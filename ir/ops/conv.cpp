#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/conv.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/detail/window.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <numeric>

namespace sinter {

using detail::sample, detail::Window, detail::WindowAxis, detail::WindowLists;
using List = std::vector<int64_t>;

namespace {

template <typename Attrs>
WindowLists lists_of(const Attrs& a) {
  return {&a.stride, &a.padding, &a.dilation};
}

List outputs_of(const Window& window) {
  List out;
  for (const WindowAxis& a : window) out.push_back(a.outputs());
  return out;
}

// ---- im2col

struct Im2col {
  static constexpr std::string_view name = "im2col";
  static constexpr std::string_view doc =
      "x [N, C, spatial…] of any dtype as the columns [C, kernel…, N, outputs…] that sliding "
      "windows read; 0 where they read padding.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = Im2colAttrs;

  static Window window(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    return detail::window_of(op.operand(0).shape(), a.kernel, lists_of(a));
  }
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (a.kernel.empty() || c.shape(0).size() != a.kernel.size() + 2)
      return c.error("{} does not have 2 axes and those of the kernel {}", c.describe(0),
                     to_string(AttrValue(a.kernel)));
    if (auto refused = detail::refuse_window(c, c.shape(0), a.kernel, lists_of(a))) return *refused;
    Shape shape{c.shape(0)[1]};
    shape.insert(shape.end(), a.kernel.begin(), a.kernel.end());
    shape.push_back(c.shape(0)[0]);
    for (int64_t n : outputs_of(detail::window_of(c.shape(0), a.kernel, lists_of(a))))
      shape.push_back(n);
    return std::vector{TensorType{c.type(0).dtype, shape}};
  }
  static Grads vjp(const VjpContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    const Shape& shape = c.operand(0).shape();
    return {col2im(c.grad(), {{shape.begin() + 2, shape.end()}, a.stride, a.padding, a.dilation})};
  }
  static constexpr auto jvp = Jvp::linear;
  // The images of all examples are as many images.
  static Batched batch(const BatchContext& c) {
    const Shape& one = c.op().operand(0).shape();
    Shape merged = one;
    merged[0] *= c.size();
    Value y = im2col(reshape(c.operand(0), merged), c.attrs<Attrs>());
    auto at = static_cast<int64_t>(1 + c.attrs<Attrs>().kernel.size());
    Shape apart = y.shape();
    apart[static_cast<size_t>(at)] = one[0];
    apart.insert(apart.begin() + at, c.size());
    List order(apart.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    order.erase(order.begin() + at);
    order.insert(order.begin(), at);
    return Batched::all({permute(reshape(y, apart), order)});
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {sample({"f32[2,3,5]"}, {{"kernel", List{3}}, {"padding", List{1}}}),
            sample({"f32[1,2,4,5]"}, {{"kernel", List{2, 3}}, {"stride", List{2, 1}}}),
            sample({"bf16[2,1,7,6]"}, {{"kernel", List{3, 2}},
                                       {"stride", List{3, 2}},
                                       {"padding", List{2, 1}},
                                       {"dilation", List{2, 3}}}),
            sample({"i32[1,1,3,3]"}, {{"kernel", List{1, 1}}}),
            sample({"f32[0,2,3]"}, {{"kernel", List{2}}}),
            sample({"f32[2,2,1]"}, {{"kernel", List{3}}, {"padding", List{1}}})};
  }
  // Calls f(element, of x's elements the one it is, or -1) for each element in row-major order.
  template <typename F>
  static void each(const Op& op, F f) {
    Window w = window(op);
    const Shape& in = op.operand(0).shape();
    const Shape& out = op.result().shape();
    size_t d = w.size();
    Shape at(out.size(), 0);
    int64_t count = num_elements(out);
    for (int64_t i = 0; i < count; ++i) {
      int64_t from = at[1 + d] * in[1] + at[0];
      for (size_t k = 0; k < d; ++k) {
        int64_t place = at[2 + d + k] * w[k].stride + at[1 + k] * w[k].dilation - w[k].padding;
        from = from < 0 || place < 0 || place >= w[k].extent ? -1 : from * w[k].extent + place;
      }
      f(static_cast<size_t>(i), from);
      for (size_t axis = out.size(); axis-- > 0;) {
        if (++at[axis] < out[axis]) break;
        at[axis] = 0;
      }
    }
  }
  static void evaluate(EvaluateContext& c) {
    each(c.op, [&](size_t i, int64_t from) {
      c.results[0].data[i] = from < 0 ? Cell{} : c.operands[0]->data[static_cast<size_t>(from)];
    });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    Window w = window(op);
    size_t d = w.size();
    Guard inside;
    std::vector<IndexExpr> in{at[1 + d], at[0]};
    for (size_t k = 0; k < d; ++k) {
      IndexExpr place =
          at[2 + d + k] * w[k].stride + at[1 + k] * w[k].dilation - IndexExpr(w[k].padding);
      inside.add(place, 0, w[k].extent);
      in.push_back(std::move(place));
    }
    const TensorType& type = op.operand(0).type();
    if (inside.never || type.elements() == 0) return b.literal(type.dtype, Cell{});
    return b.operand(0, std::move(in), inside);
  }
};

// ---- col2im

struct Col2im {
  static constexpr std::string_view name = "col2im";
  static constexpr std::string_view doc =
      "The transpose of im2col: columns [C, kernel…, N, outputs…] (float) added up at the places "
      "of [N, C, extents…] that windows read them from, in f32 for bf16 and f16, rounded once.";
  static constexpr OperandSpec operands[] = {required("columns")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = Col2imAttrs;

  static List kernel_of(const Shape& columns, size_t d) {
    return {columns.begin() + 1, columns.begin() + 1 + static_cast<int64_t>(d)};
  }
  static Shape result_shape(const Shape& columns, const Attrs& a) {
    Shape shape{columns[1 + a.extents.size()], columns[0]};
    shape.insert(shape.end(), a.extents.begin(), a.extents.end());
    return shape;
  }
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (auto refused = detail::require_float(c, 0)) return *refused;
    const Shape& columns = c.shape(0);
    size_t d = a.extents.size();
    if (d == 0 || columns.size() != 2 + 2 * d)
      return c.error("{} does not have {} axes, as the columns of {} spatial axes do",
                     c.describe(0), 2 + 2 * d, d);
    Shape shape = result_shape(columns, a);
    List kernel = kernel_of(columns, d);
    if (auto refused = detail::refuse_window(c, shape, kernel, lists_of(a))) return *refused;
    List outputs = outputs_of(detail::window_of(shape, kernel, lists_of(a)));
    if (!std::equal(outputs.begin(), outputs.end(), columns.end() - static_cast<int64_t>(d)))
      return c.error("windows over extents {} have outputs {}, not those of {}",
                     to_string(AttrValue(a.extents)), to_string(AttrValue(outputs)), c.describe(0));
    return std::vector{TensorType{c.type(0).dtype, shape}};
  }
  static Grads vjp(const VjpContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    List kernel = kernel_of(c.operand(0).shape(), a.extents.size());
    return {im2col(c.grad(), {kernel, a.stride, a.padding, a.dilation})};
  }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    cost.flops = static_cast<double>(op.operand(0).type().elements());
    return cost;
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value columns = op.operand(0);
    const TensorType& type = op.result().type();
    size_t d = a.extents.size();
    Window window = detail::window_of(type.shape, kernel_of(columns.shape(), d), lists_of(a));
    List order{1, 0};
    for (size_t k = 0; k < d; ++k) order.push_back(static_cast<int64_t>(2 + k));
    std::vector<Value> terms;
    if (type.elements() > 0 && columns.type().elements() > 0)
      detail::for_each_tap(window, [&](const List& tap) {
        List start(columns.shape().size(), 0), limit = columns.shape();
        for (size_t k = 0; k < d; ++k) {
          start[1 + k] = tap[k];
          limit[1 + k] = tap[k] + 1;
        }
        Shape one{columns.dim(0)};
        one.insert(one.end(), columns.shape().begin() + 1 + static_cast<int64_t>(d),
                   columns.shape().end());
        Value y = permute(reshape(slice(columns, start, limit), one), order);
        if (Value term = detail::spread_tap(y, window, tap)) terms.push_back(term);
      });
    if (terms.empty()) return {full(op.graph(), type, 0.0)};
    return {terms.size() == 1 ? terms[0] : add_n(std::move(terms))};
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[3,3,2,5]"}, {{"extents", List{5}}, {"padding", List{1}}}),
            sample({"f32[2,2,3,1,2,3]"}, {{"extents", List{4, 5}}, {"stride", List{2, 1}}}),
            sample({"bf16[1,3,2,2,3,3]"}, {{"extents", List{7, 6}},
                                           {"stride", List{3, 2}},
                                           {"padding", List{2, 1}},
                                           {"dilation", List{2, 3}}}),
            sample({"f32[1,1,1,1,3,3]"}, {{"extents", List{3, 3}}}),
            sample({"f32[2,2,0,2]"}, {{"extents", List{3}}})};
  }
};

// ---- conv1d and conv2d

template <int kAxes>
struct Conv {
  static constexpr std::string_view name = kAxes == 1 ? "conv1d" : "conv2d";
  static constexpr std::string_view doc =
      kAxes == 1 ? "The cross-correlation of x [N,C,L] with w [O,C/groups,K], plus bias [O]: "
                   "[N,O,outputs] of one float type; bf16 and f16 add up in f32 and round once."
                 : "The cross-correlation of x [N,C,H,W] with w [O,C/groups,KH,KW], plus bias [O]: "
                   "[N,O,outputs…] of one float type; bf16 and f16 add up in f32 and round once.";
  static constexpr OperandSpec operands[] = {required("x"), required("w"), optional("bias")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = ConvAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static constexpr Autocast autocast = Autocast::Inside;

  static List kernel_of(const Shape& w) { return {w.begin() + 2, w.end()}; }
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    for (size_t i = 0; i < 2; ++i) {
      if (auto refused = detail::require_float(c, i)) return *refused;
      if (c.rank(i) != kAxes + 2) return c.error("{} is not of rank {}", c.describe(i), kAxes + 2);
    }
    const Shape& x = c.shape(0);
    const Shape& w = c.shape(1);
    if (c.type(0).dtype != c.type(1).dtype)
      return c.error("the dtypes of {} and {} differ", c.describe(0), c.describe(1));
    if (a.groups < 1 || x[1] % a.groups != 0 || w[0] % a.groups != 0)
      return c.error("the channels of {} and {} do not fall into {} groups", c.describe(0),
                     c.describe(1), a.groups);
    if (x[1] / a.groups != w[1])
      return c.error("{} has {} channels in {} groups, {} takes {} each", c.describe(0), x[1],
                     a.groups, c.describe(1), w[1]);
    if (c.has(2) && c.type(2) != TensorType{c.type(0).dtype, {w[0]}})
      return c.error("{} is not one value for each output channel of {}", c.describe(2),
                     c.describe(1));
    if (auto refused = detail::refuse_window(c, x, kernel_of(w), lists_of(a))) return *refused;
    Shape shape{x[0], w[0]};
    for (int64_t n : outputs_of(detail::window_of(x, kernel_of(w), lists_of(a))))
      shape.push_back(n);
    return std::vector{TensorType{c.type(0).dtype, shape}};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    const Shape& w = op.operand(1).shape();
    cost.flops = 2.0 * static_cast<double>(op.result().type().elements()) *
                 static_cast<double>(num_elements(w) / std::max<int64_t>(w[0], 1));
    return cost;
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = op.operand(0), w = op.operand(1), bias = op.operand(2);
    Value columns = im2col(x, {kernel_of(w.shape()), a.stride, a.padding, a.dilation});
    const Shape& result = op.result().shape();
    int64_t outputs = w.dim(0), places = result[0];
    for (size_t k = 2; k < result.size(); ++k) places *= result[k];
    int64_t depth = num_elements(kernel_of(w.shape())) * w.dim(1);
    auto grouped = [&](int64_t rows, int64_t columns_of) {
      return a.groups == 1 ? Shape{rows, columns_of} : Shape{a.groups, rows / a.groups, columns_of};
    };
    Value left = reshape(w, grouped(outputs, depth));
    Value right = reshape(columns, grouped(depth * a.groups, places));
    Shape merged{outputs, places};
    // The bias is part of the sum that is rounded once.
    bool narrow = bias && detail::is_narrow(x);
    Value y;
    if (narrow) {
      Value each = broadcast_to(reshape(bias, {outputs, 1}), merged);
      y = matmul_add(left, right, reshape(each, grouped(outputs, places)), MatmulAttrs{});
    } else {
      y = matmul(left, right);
    }
    Shape apart{outputs, result[0]};
    apart.insert(apart.end(), result.begin() + 2, result.end());
    List order{1, 0};
    for (int64_t k = 2; k < static_cast<int64_t>(result.size()); ++k) order.push_back(k);
    y = permute(reshape(y, apart), order);
    if (bias && !narrow) {
      Shape channel(result.size(), 1);
      channel[1] = outputs;
      y = y + reshape(bias, channel);
    }
    return {y};
  }
  static std::vector<Sample> samples() {
    if constexpr (kAxes == 1) {
      return {sample({"f32[2,3,5]", "f32[4,3,3]"}, {{"padding", List{1}}}),
              sample({"f32[1,4,7]", "f32[2,2,2]", "f32[2]"},
                     {{"groups", int64_t{2}}, {"stride", List{2}}, {"dilation", List{3}}}),
              sample({"bf16[2,2,6]", "bf16[3,2,3]", "bf16[3]"}, {{"stride", List{3}}}),
              sample({"f32[0,2,4]", "f32[3,2,2]"}), sample({"f32[1,1,1]", "f32[1,1,1]"})};
    } else {
      return {sample({"f32[2,2,4,4]", "f32[3,2,3,3]"}, {{"padding", List{1, 1}}}),
              sample({"f32[1,2,5,4]", "f32[2,2,2,3]", "f32[2]"}, {{"stride", List{2, 1}}}),
              sample({"f32[2,4,5,5]", "f32[4,1,2,2]", "f32[4]"},
                     {{"groups", int64_t{4}}, {"dilation", List{2, 3}}, {"padding", List{1, 2}}}),
              sample({"bf16[2,4,3,3]", "bf16[2,2,2,2]", "bf16[2]"}, {{"groups", int64_t{2}}}),
              sample({"f32[1,3,2,2]", "f32[2,3,1,1]"}),
              sample({"f32[0,1,3,3]", "f32[1,1,2,2]", "f32[1]"})};
    }
  }
};

template <typename Attrs>
Value build(std::string_view op, std::string_view operand, Value x, Attrs attrs,
            SourceLocation loc) {
  Graph& graph = detail::graph_of(op, operand, x, loc);
  return build_op(graph, op, {x}, std::move(attrs), std::move(loc)).result();
}

Value build_conv(std::string_view op, Value x, Value w, Value bias, ConvAttrs attrs,
                 SourceLocation loc) {
  Graph& graph = detail::graph_of(op, "x", x, loc);
  detail::graph_of(op, "w", w, loc);
  std::vector<Value> operands{x, w};
  if (bias) operands.push_back(bias);
  return build_op(graph, op, std::move(operands), std::move(attrs), std::move(loc)).result();
}

}  // namespace

Value conv1d(Value x, Value w, Value bias, ConvAttrs attrs, SourceLocation loc) {
  return build_conv("conv1d", x, w, bias, std::move(attrs), std::move(loc));
}

Value conv2d(Value x, Value w, Value bias, ConvAttrs attrs, SourceLocation loc) {
  return build_conv("conv2d", x, w, bias, std::move(attrs), std::move(loc));
}

Value im2col(Value x, Im2colAttrs attrs, SourceLocation loc) {
  return build("im2col", "x", x, std::move(attrs), std::move(loc));
}

Value col2im(Value columns, Col2imAttrs attrs, SourceLocation loc) {
  return build("col2im", "columns", columns, std::move(attrs), std::move(loc));
}

void register_conv(OpRegistry& r) {
  r.add<Im2col>();
  r.add<Col2im>();
  r.add<Conv<1>>();
  r.add<Conv<2>>();
}

}  // namespace sinter
