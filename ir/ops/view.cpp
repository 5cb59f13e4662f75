#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/operand.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/shape.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;

namespace {

// Calls f(index, linear) for each index of `shape` in row-major order.
template <typename F>
void for_each_index(const Shape& shape, F f) {
  Shape index(shape.size(), 0);
  int64_t count = num_elements(shape);
  for (int64_t linear = 0; linear < count; ++linear) {
    f(index, linear);
    for (size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

// ---- broadcast

struct Broadcast {
  static constexpr std::string_view name = "broadcast";
  static constexpr std::string_view doc =
      "x of any dtype in the annotated shape: aligned at the last axis, axes of extent 1 and "
      "missing ones are repeated.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = BroadcastAttrs;

  static Inferred infer(const InferContext& c) {
    const TensorType& to = c.attrs<Attrs>().type.type;
    if (to.dtype != c.type(0).dtype)
      return c.error("the dtype of {} is not that of the result {}", c.describe(0), to.str());
    if (c.rank(0) > to.rank())
      return c.error("{} has more axes than the result {}", c.describe(0), to.str());
    size_t ahead = to.shape.size() - c.shape(0).size();
    for (size_t i = 0; i < c.shape(0).size(); ++i)
      if (int64_t extent = c.shape(0)[i]; extent != 1 && extent != to.shape[ahead + i])
        return c.error("{} does not fit {}: axis {} has extent {}, the result's axis {} has {}",
                       c.describe(0), to.str(), i, extent, ahead + i, to.shape[ahead + i]);
    return std::vector{to};
  }
  static Grads vjp(const VjpContext& c) {
    const Shape& from = c.operand(0).shape();
    const Shape& to = c.result().shape();
    size_t ahead = to.size() - from.size();
    List axes;
    for (size_t i = 0; i < to.size(); ++i)
      if (i < ahead || (from[i - ahead] == 1 && to[i] != 1))
        axes.push_back(static_cast<int64_t>(i));
    Value dx = axes.empty() ? c.grad() : sum(c.grad(), axes);
    return {reshape(dx, from)};
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    // Missing axes are put in behind the leading one.
    const Shape& from = c.op().operand(0).shape();
    const Shape& to = c.op().result().shape();
    Shape aligned(to.size() - from.size(), 1);
    aligned.insert(aligned.begin(), c.size());
    aligned.insert(aligned.end(), from.begin(), from.end());
    return Batched::all({broadcast_to(reshape(c.operand(0), aligned),
                                      c.carried_type(c.op().result().type()).shape)});
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {sample({"f32[]"}, {}, "f32[2,3]"),    sample({"f32[3]"}, {}, "f32[2,3]"),
            sample({"f32[2,1]"}, {}, "f32[2,4]"), sample({"bf16[1,3,1]"}, {}, "bf16[2,2,3,4]"),
            sample({"i32[1]"}, {}, "i32[3]"),     sample({"bool[2]"}, {}, "bool[2]"),
            sample({"f32[1,3]"}, {}, "f32[0,3]"), sample({"f32[1,1]"}, {}, "f32[1,1,1]")};
  }
  static List strides(const Shape& from, const Shape& to) {
    List out(to.size(), 0), inner = row_major_strides(from);
    size_t ahead = to.size() - from.size();
    for (size_t i = 0; i < from.size(); ++i)
      if (from[i] != 1) out[ahead + i] = inner[i];
    return out;
  }
  static void evaluate(EvaluateContext& c) {
    const ReferenceTensor& x = *c.operands[0];
    ReferenceTensor& y = c.results[0];
    List stride = strides(x.type.shape, y.type.shape);
    for_each_index(y.type.shape, [&](const Shape& at, int64_t i) {
      int64_t from = std::inner_product(at.begin(), at.end(), stride.begin(), int64_t{0});
      y.data[static_cast<size_t>(i)] = x.data[static_cast<size_t>(from)];
    });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Shape& from = op.operand(0).shape();
    size_t ahead = at.size() - from.size();
    std::vector<IndexExpr> in;
    for (size_t i = 0; i < from.size(); ++i)
      in.push_back(from[i] == 1 ? IndexExpr(0) : at[ahead + i]);
    return b.operand(0, std::move(in));
  }
};

// ---- reshape

struct Reshape {
  static constexpr std::string_view name = "reshape";
  static constexpr std::string_view doc =
      "x of any dtype in the annotated shape of as many elements, in row-major order.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ReshapeAttrs;

  static Inferred infer(const InferContext& c) {
    const TensorType& to = c.attrs<Attrs>().type.type;
    if (to.dtype != c.type(0).dtype)
      return c.error("the dtype of {} is not that of the result {}", c.describe(0), to.str());
    if (std::any_of(to.shape.begin(), to.shape.end(), [](int64_t d) { return d < 0; }))
      return c.error("the result {} has a negative extent", to.str());
    if (to.elements() != c.type(0).elements())
      return c.error("{} has {} elements, the result {} has {}", c.describe(0),
                     c.type(0).elements(), to.str(), to.elements());
    return std::vector{to};
  }
  static Grads vjp(const VjpContext& c) { return {reshape(c.grad(), c.operand(0).shape())}; }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {sample({"f32[2,6]"}, {}, "f32[3,4]"),     sample({"f32[4,3,2]"}, {}, "f32[4,6]"),
            sample({"bf16[1]"}, {}, "bf16[]"),        sample({"f32[]"}, {}, "f32[1,1]"),
            sample({"i32[2,3,4]"}, {}, "i32[4,1,6]"), sample({"f32[0,3]"}, {}, "f32[2,0]"),
            sample({"bool[6]"}, {}, "bool[2,3]")};
  }
  static void evaluate(EvaluateContext& c) { c.results[0].data = c.operands[0]->data; }
  // Axes are matched in groups of equal size, so that only what is split or merged is divided.
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Shape& from = op.operand(0).shape();
    const Shape& to = op.result().shape();
    std::vector<IndexExpr> in(from.size());
    if (num_elements(to) == 0) return b.operand(0, std::move(in));
    size_t i = 0, j = 0;
    while (i < from.size() && j < to.size()) {
      // The index along an axis of extent 1 is 0.
      if (from[i] == 1 || to[j] == 1) {
        if (from[i] == 1)
          ++i;
        else
          ++j;
        continue;
      }
      size_t i_end = i + 1, j_end = j + 1;
      int64_t a = from[i], z = to[j];
      while (a != z) {
        if (a < z)
          a *= from[i_end++];
        else
          z *= to[j_end++];
      }
      auto first_from = from.begin() + static_cast<int64_t>(i);
      auto first_to = to.begin() + static_cast<int64_t>(j);
      Shape group_from(first_from, from.begin() + static_cast<int64_t>(i_end));
      Shape group_to(first_to, to.begin() + static_cast<int64_t>(j_end));
      auto group_at = at.subspan(j, j_end - j);
      if (group_from.size() == 1 && group_to.size() == 1) {
        in[i] = group_at[0];
      } else {
        IndexExpr linear = linearize({group_at.begin(), group_at.end()}, group_to);
        std::vector<IndexExpr> parts = delinearize(linear, group_from);
        std::move(parts.begin(), parts.end(), in.begin() + static_cast<int64_t>(i));
      }
      i = i_end, j = j_end;
    }
    // What is left over on either side has extent 1; the index there is 0.
    return b.operand(0, std::move(in));
  }
};

// ---- permute

List permutation(const PermuteAttrs& attrs, int64_t rank) {
  List out;
  for (int64_t axis : attrs.axes.value) out.push_back(*normalize_axis(axis, rank));
  return out;
}

struct Permute {
  static constexpr std::string_view name = "permute";
  static constexpr std::string_view doc =
      "x of any dtype with its axes in another order: axis i of the result is x's axis axes[i].";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = PermuteAttrs;

  static Inferred infer(const InferContext& c) {
    const List& axes = c.attrs<Attrs>().axes.value;
    if (static_cast<int64_t>(axes.size()) != c.rank(0) || !normalize_axes(axes, c.rank(0)))
      return c.error("axes {} do not name each axis of {} once", to_string(AttrValue(axes)),
                     c.describe(0));
    TensorType type = c.type(0);
    for (size_t i = 0; i < axes.size(); ++i)
      type.shape[i] = c.shape(0)[static_cast<size_t>(*normalize_axis(axes[i], c.rank(0)))];
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) {
    List axes = permutation(c.attrs<Attrs>(), c.operand(0).rank()), inverse(axes.size());
    for (size_t i = 0; i < axes.size(); ++i)
      inverse[static_cast<size_t>(axes[i])] = static_cast<int64_t>(i);
    return {permute(c.grad(), inverse)};
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    List axes = permutation(c.attrs<Attrs>(), c.op().operand(0).rank());
    for (int64_t& axis : axes) ++axis;
    axes.insert(axes.begin(), 0);
    return Batched::all({permute(c.operand(0), std::move(axes))});
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {sample({"f32[2,3]"}, {{"axes", List{1, 0}}}),
            sample({"f32[2,3,4]"}, {{"axes", List{2, 0, 1}}}),
            sample({"bf16[2,1,3]"}, {{"axes", List{-1, 1, 0}}}),
            sample({"i64[3,3]"}, {{"axes", List{1, 0}}}),
            sample({"f32[]"}),
            sample({"f32[0,2]"}, {{"axes", List{1, 0}}})};
  }
  static void evaluate(EvaluateContext& c) {
    const ReferenceTensor& x = *c.operands[0];
    ReferenceTensor& y = c.results[0];
    List axes = permutation(c.op.attrs<Attrs>(), x.type.rank());
    List inner = row_major_strides(x.type.shape), stride(axes.size());
    for (size_t i = 0; i < axes.size(); ++i) stride[i] = inner[static_cast<size_t>(axes[i])];
    for_each_index(y.type.shape, [&](const Shape& at, int64_t i) {
      int64_t from = std::inner_product(at.begin(), at.end(), stride.begin(), int64_t{0});
      y.data[static_cast<size_t>(i)] = x.data[static_cast<size_t>(from)];
    });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    List axes = permutation(op.attrs<Attrs>(), op.operand(0).rank());
    std::vector<IndexExpr> in(at.size());
    for (size_t i = 0; i < at.size(); ++i) in[static_cast<size_t>(axes[i])] = at[i];
    return b.operand(0, std::move(in));
  }
};

// ---- slice

int64_t step(const List& strides, size_t axis) {
  return strides.empty() ? 1 : strides[axis];
}

struct Slice {
  static constexpr std::string_view name = "slice";
  static constexpr std::string_view doc =
      "The elements of x (any dtype) at start, start + stride, … below limit of each axis.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = SliceAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    size_t rank = c.shape(0).size();
    if (a.start.size() != rank || a.limit.size() != rank ||
        (!a.stride.empty() && a.stride.size() != rank))
      return c.error("start, limit and stride need {} entries, one for each axis of {}", rank,
                     c.describe(0));
    TensorType type = c.type(0);
    for (size_t i = 0; i < rank; ++i) {
      if (a.start[i] < 0 || a.start[i] > a.limit[i] || a.limit[i] > c.shape(0)[i])
        return c.error("{}..{} is outside axis {} of {}", a.start[i], a.limit[i], i, c.describe(0));
      if (step(a.stride, i) < 1)
        return c.error("stride {} of axis {} is not positive", a.stride[i], i);
      type.shape[i] = (a.limit[i] - a.start[i] + step(a.stride, i) - 1) / step(a.stride, i);
    }
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    Value x = c.operand(0);
    if (c.result().type().elements() == 0) return {full_like(x, 0.0)};
    List high, interior;
    bool strided = false;
    for (size_t i = 0; i < a.start.size(); ++i) {
      int64_t stride = step(a.stride, i);
      high.push_back(x.shape()[i] - a.start[i] - ((c.result().shape()[i] - 1) * stride + 1));
      interior.push_back(stride - 1);
      strided |= stride != 1;
    }
    if (!strided) interior.clear();
    return {pad(c.grad(), a.start, high, 0.0, interior)};
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    Attrs a = c.attrs<Attrs>();
    a.start.insert(a.start.begin(), 0);
    a.limit.insert(a.limit.begin(), c.size());
    if (!a.stride.empty()) a.stride.insert(a.stride.begin(), 1);
    return Batched::all({rebuild_with(c.op(), c.graph(), {c.operand(0)}, std::move(a)).result()});
  }
  static Cost cost(const Op& op) {
    Cost cost;
    cost.bytes = 2.0 * static_cast<double>(op.result().type().bytes());
    return cost;
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[5]"}, {{"start", List{1}}, {"limit", List{4}}}),
            sample({"f32[4,5]"}, {{"start", List{0, 2}}, {"limit", List{4, 5}}}),
            sample({"bf16[7,3]"},
                   {{"start", List{1, 0}}, {"limit", List{7, 3}}, {"stride", List{2, 1}}}),
            sample({"f32[2,6,3]"},
                   {{"start", List{1, 0, 1}}, {"limit", List{2, 6, 2}}, {"stride", List{1, 5, 3}}}),
            sample({"i32[4]"}, {{"start", List{2}}, {"limit", List{2}}}),
            sample({"f32[3,2]"}, {{"start", List{0, 1}}, {"limit", List{3, 1}}}),
            sample({"f32[]"})};
  }
  static void evaluate(EvaluateContext& c) {
    const Attrs& a = c.op.attrs<Attrs>();
    const ReferenceTensor& x = *c.operands[0];
    ReferenceTensor& y = c.results[0];
    List inner = row_major_strides(x.type.shape);
    for_each_index(y.type.shape, [&](const Shape& at, int64_t i) {
      int64_t from = 0;
      for (size_t k = 0; k < at.size(); ++k)
        from += (a.start[k] + at[k] * step(a.stride, k)) * inner[k];
      y.data[static_cast<size_t>(i)] = x.data[static_cast<size_t>(from)];
    });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Attrs& a = op.attrs<Attrs>();
    std::vector<IndexExpr> in;
    for (size_t i = 0; i < at.size(); ++i)
      in.push_back(at[i] * step(a.stride, i) + IndexExpr(a.start[i]));
    return b.operand(0, std::move(in));
  }
};

// ---- pad

struct Pad {
  static constexpr std::string_view name = "pad";
  static constexpr std::string_view doc =
      "x (any dtype) with `value` around it: low[i] in front of axis i, high[i] behind, "
      "interior[i] between neighbours; or with its nearest (edge) or mirrored (reflect) elements.";
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = PadAttrs;

  static bool is_constant(const Attrs& a) { return a.mode == "constant"; }
  // For an axis of `extent` elements, the one that stands at `at`, counted from x's first.
  static int64_t nearest(const Attrs& a, int64_t at, int64_t extent) {
    if (a.mode == "edge") return std::clamp<int64_t>(at, 0, extent - 1);
    return extent - 1 - std::abs(std::abs(at) - (extent - 1));
  }
  static IndexExpr nearest(const Attrs& a, const IndexExpr& at, int64_t extent, BodyBuilder& b) {
    if (at.low() >= 0 && at.high() < extent) return at;
    ScalarBuilder s;
    Expr e = s.param(DType::I64), last = s.literal_integer(DType::I64, extent - 1);
    Expr inside = a.mode == "edge" ? min(max(e, 0), last) : last - abs(abs(e) - last);
    BodyNode place = b.index(at, DType::I64);
    return b.gathered(b.scalar(s.finish({&inside, 1}), {&place, 1}), 0, extent);
  }
  // The gradient by x of x padded with its own elements: axis by axis, what lies on the padding is
  // added where it came from.
  static Value fold_padding(Value dy, const Attrs& a, const Shape& shape) {
    Value g = cast(dy, compute_type(dy.dtype()));
    for (size_t k = 0; k < shape.size(); ++k) {
      auto axis = static_cast<int64_t>(k);
      int64_t low = a.low[k], high = a.high[k], n = shape[k];
      if (low == 0 && high == 0) continue;
      std::vector<Value> terms{slice_axis(g, axis, low, low + n)};
      auto add_part = [&](int64_t from, int64_t count, int64_t first) {
        if (count == 0) return;
        Value part = slice_axis(g, axis, from, from + count);
        List in_front(shape.size(), 0), behind(shape.size(), 0);
        if (a.mode == "edge") {
          part = sum(part, {axis}, true);
          first = from == 0 ? 0 : n - 1;
          count = 1;
        } else {
          part = reverse(part, {axis});
        }
        in_front[k] = first;
        behind[k] = n - first - count;
        terms.push_back(pad(part, in_front, behind, 0.0));
      };
      add_part(0, low, 1);
      add_part(low + n, high, n - 1 - high);
      g = add_n(std::move(terms));
    }
    return cast(g, dy.dtype());
  }
  // From one element of x to the next.
  static int64_t pitch(const Attrs& a, size_t axis) {
    return a.interior.empty() ? 1 : a.interior[axis] + 1;
  }
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    size_t rank = c.shape(0).size();
    if (a.low.size() != rank || a.high.size() != rank ||
        (!a.interior.empty() && a.interior.size() != rank))
      return c.error("low, high and interior need {} entries, one for each axis of {}", rank,
                     c.describe(0));
    TensorType type = c.type(0);
    if (!detail::fits(a.value, type.dtype))
      return c.error("value {} does not fit {}", to_string(detail::to_attr(a.value)),
                     to_string(type.dtype));
    if (a.mode != "constant" && a.mode != "edge" && a.mode != "reflect")
      return c.error("mode \"{}\" is not constant, edge or reflect", a.mode);
    if (!is_constant(a) && !a.interior.empty())
      return c.error("mode \"{}\" has nothing to put between neighbours", a.mode);
    for (size_t i = 0; i < rank; ++i) {
      if (a.low[i] < 0 || a.high[i] < 0 || pitch(a, i) < 1)
        return c.error("the padding of axis {} of {} is negative", i, c.describe(0));
      if (!is_constant(a))
        if (int64_t most = std::max(a.low[i], a.high[i]), extent = c.shape(0)[i];
            most > 0 && (extent == 0 || (a.mode == "reflect" && most >= extent)))
          return c.error("axis {} of {} has too few elements for {} of padding by mode \"{}\"", i,
                         c.describe(0), most, a.mode);
      int64_t extent = c.shape(0)[i];
      type.shape[i] = a.low[i] + a.high[i] + (extent > 0 ? (extent - 1) * pitch(a, i) + 1 : 0);
    }
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    Value x = c.operand(0);
    if (x.type().elements() == 0) return {full_like(x, 0.0)};
    if (!is_constant(a)) return {fold_padding(c.grad(), a, x.shape())};
    List limit, stride;
    for (size_t i = 0; i < a.low.size(); ++i) {
      stride.push_back(pitch(a, i));
      limit.push_back(a.low[i] + (x.shape()[i] - 1) * stride[i] + 1);
    }
    if (a.interior.empty()) stride.clear();
    return {slice(c.grad(), a.low, limit, stride)};
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (!is_constant(a)) return {pad_mode(c.tangent(), a.low, a.high, a.mode)};
    return {pad(c.tangent(), a.low, a.high, 0.0, a.interior)};
  }
  static Batched batch(const BatchContext& c) {
    Attrs a = c.attrs<Attrs>();
    a.low.insert(a.low.begin(), 0);
    a.high.insert(a.high.begin(), 0);
    if (!a.interior.empty()) a.interior.insert(a.interior.begin(), 0);
    return Batched::all({rebuild_with(c.op(), c.graph(), {c.operand(0)}, std::move(a)).result()});
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {
        sample({"f32[3]"}, {{"low", List{1}}, {"high", List{2}}}),
        sample({"f32[2,3]"}, {{"low", List{0, 1}}, {"high", List{2, 0}}, {"value", -1.5}}),
        sample({"bf16[3,2]"},
               {{"low", List{1, 0}}, {"high", List{0, 1}}, {"interior", List{2, 0}}}),
        sample({"i32[1,2,2]"}, {{"low", List{1, 0, 0}},
                                {"high", List{1, 0, 1}},
                                {"value", int64_t{7}},
                                {"interior", List{1, 1, 0}}}),
        sample({"bool[2]"}, {{"low", List{1}}, {"high", List{0}}, {"value", int64_t{1}}}),
        sample({"f32[0,2]"}, {{"low", List{2, 0}}, {"high", List{1, 1}}}),
        sample({"f32[3,2]"},
               {{"low", List{2, 0}}, {"high", List{1, 3}}, {"mode", std::string("edge")}}),
        sample({"f32[1,4,3]"},
               {{"low", List{0, 3, 1}}, {"high", List{0, 1, 2}}, {"mode", std::string("reflect")}}),
        sample({"bf16[3]"},
               {{"low", List{2}}, {"high", List{2}}, {"mode", std::string("reflect")}}),
        sample({"f32[]"})};
  }
  static void evaluate(EvaluateContext& c) {
    const Attrs& a = c.op.attrs<Attrs>();
    const ReferenceTensor& x = *c.operands[0];
    ReferenceTensor& y = c.results[0];
    DType dtype = y.type.dtype;
    if (!is_constant(a)) {
      List inner = row_major_strides(x.type.shape);
      for_each_index(y.type.shape, [&](const Shape& at, int64_t i) {
        int64_t from = 0;
        for (size_t k = 0; k < at.size(); ++k)
          from += nearest(a, at[k] - a.low[k], x.type.shape[k]) * inner[k];
        y.data[static_cast<size_t>(i)] = x.data[static_cast<size_t>(from)];
      });
      return;
    }
    std::fill(y.data.begin(), y.data.end(), canonical(dtype, detail::number_cell(a.value, dtype)));
    List outer = row_major_strides(y.type.shape);
    for_each_index(x.type.shape, [&](const Shape& at, int64_t i) {
      int64_t to = 0;
      for (size_t k = 0; k < at.size(); ++k) to += (a.low[k] + at[k] * pitch(a, k)) * outer[k];
      y.data[static_cast<size_t>(to)] = x.data[static_cast<size_t>(i)];
    });
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Attrs& a = op.attrs<Attrs>();
    const TensorType& type = op.operand(0).type();
    Cell value = detail::number_cell(a.value, type.dtype);
    Guard guard;
    std::vector<IndexExpr> in;
    if (!is_constant(a)) {
      if (type.elements() == 0) return b.literal(type.dtype, Cell{});
      for (size_t i = 0; i < at.size(); ++i)
        in.push_back(nearest(a, at[i] - IndexExpr(a.low[i]), type.shape[i], b));
      return b.operand(0, std::move(in));
    }
    for (size_t i = 0; i < at.size(); ++i) {
      IndexExpr e = at[i] - IndexExpr(a.low[i]);
      int64_t extent = type.shape[i], gap = pitch(a, i);
      guard.add(e, 0, extent > 0 ? (extent - 1) * gap + 1 : 0);
      if (gap > 1) {
        guard.add(mod(e, gap), 0, 1);
        e = floordiv(e, gap);
      }
      in.push_back(std::move(e));
    }
    if (guard.never || type.elements() == 0) return b.literal(type.dtype, value);
    return b.operand(0, std::move(in), guard, value);
  }
};

// ---- concat

struct Concat {
  static constexpr std::string_view name = "concat";
  static constexpr std::string_view doc =
      "The operands (one dtype, any) one after another along `axis`; other axes agree.";
  static constexpr OperandSpec operands[] = {variadic("x")};
  static constexpr OpKind kind = OpKind::View;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ConcatAttrs;

  static size_t axis_of(const Op& op) {
    return static_cast<size_t>(*normalize_axis(op.attrs<Attrs>().axis.value, op.result().rank()));
  }
  static Inferred infer(const InferContext& c) {
    TensorType type = c.type(0);
    auto axis = normalize_axis(c.attrs<Attrs>().axis.value, type.rank());
    if (!axis)
      return c.error("axis {} is out of range for {}", c.attrs<Attrs>().axis.value, c.describe(0));
    for (size_t i = 1; i < c.num_operands(); ++i) {
      if (c.type(i).dtype != type.dtype)
        return c.error("the dtypes of {} and {} differ", c.describe(0), c.describe(i));
      if (c.rank(i) != type.rank())
        return c.error("the ranks of {} and {} differ", c.describe(0), c.describe(i));
      for (size_t k = 0; k < type.shape.size(); ++k)
        if (k != static_cast<size_t>(*axis) && c.shape(i)[k] != type.shape[k])
          return c.error("{} and {} disagree on axis {}: {} and {}", c.describe(0), c.describe(i),
                         k, type.shape[k], c.shape(i)[k]);
      type.shape[static_cast<size_t>(*axis)] += c.shape(i)[static_cast<size_t>(*axis)];
    }
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) {
    size_t axis = axis_of(c.op());
    Grads grads(c.op().operands().size());
    int64_t offset = 0;
    for (size_t i = 0; i < grads.size(); ++i) {
      int64_t extent = c.operand(i).shape()[axis];
      if (c.needs(i))
        grads[i] = slice_axis(c.grad(), static_cast<int64_t>(axis), offset, offset + extent);
      offset += extent;
    }
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 0); }
  static std::vector<Sample> samples() {
    return {sample({"f32[2]", "f32[3]"}),
            sample({"f32[2,3]", "f32[2,1]", "f32[2,2]"}, {{"axis", int64_t{1}}}),
            sample({"bf16[1,2,3]", "bf16[1,2,3]"}, {{"axis", int64_t{-1}}}),
            sample({"i64[2,2]"}, {{"axis", int64_t{0}}}),
            sample({"f32[0,2]", "f32[3,2]", "f32[0,2]"}, {{"axis", int64_t{0}}}),
            sample({"bool[1]", "bool[2]"})};
  }
  static void evaluate(EvaluateContext& c) {
    ReferenceTensor& y = c.results[0];
    size_t axis = axis_of(c.op);
    const Shape& shape = y.type.shape;
    int64_t outer = 1, inner = 1;
    for (size_t k = 0; k < axis; ++k) outer *= shape[k];
    for (size_t k = axis + 1; k < shape.size(); ++k) inner *= shape[k];
    int64_t offset = 0;
    for (const ReferenceTensor* x : c.operands) {
      int64_t run = x->type.shape[axis] * inner;
      for (int64_t o = 0; o < outer; ++o)
        std::copy_n(x->data.begin() + o * run, run,
                    y.data.begin() + o * shape[axis] * inner + offset);
      offset += run;
    }
  }
  // The operands are tried from last to first; those that the index cannot reach are left out.
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    size_t axis = axis_of(op);
    DType dtype = op.result().dtype();
    int64_t offset = op.result().shape()[axis];
    BodyNode node;
    for (size_t i = op.operands().size(); i-- > 0;) {
      int64_t extent = op.operand(i).shape()[axis];
      offset -= extent;
      Guard guard;
      guard.add(at[axis], offset, offset + extent);
      if (guard.never || extent == 0) continue;
      std::vector<IndexExpr> in(at.begin(), at.end());
      in[axis] = at[axis] - IndexExpr(offset);
      BodyNode x = b.operand(i, std::move(in), guard);
      node = node.id < 0 ? x : detail::select_node(b, b.guard(guard), x, node, dtype);
    }
    return node.id < 0 ? b.literal(dtype, Cell{}) : node;
  }
};

}  // namespace

Value reshape(Value x, Shape shape, SourceLocation loc) {
  Graph& graph = detail::graph_of("reshape", "x", x, loc);
  if (x.shape() == shape) return x;
  ReshapeAttrs attrs{{TensorType{x.dtype(), std::move(shape)}}};
  return build_op(graph, "reshape", {x}, std::move(attrs), std::move(loc)).result();
}

Value permute(Value x, std::vector<int64_t> axes, SourceLocation loc) {
  Graph& graph = detail::graph_of("permute", "x", x, loc);
  for (int64_t& axis : axes) axis = normalize_axis(axis, x.rank()).value_or(axis);
  return build_op(graph, "permute", {x}, PermuteAttrs{{std::move(axes)}}, std::move(loc)).result();
}

Value transpose(Value x, int64_t a, int64_t b, SourceLocation loc) {
  detail::graph_of("transpose", "x", x, loc);
  auto first = normalize_axis(a, x.rank()), second = normalize_axis(b, x.rank());
  if (!first || !second)
    throw Error(
        Diagnostic{loc, fmt::format("transpose: axis {} is out of range for {} ({})", first ? b : a,
                                    x.name().empty() ? "x" : x.name(), x.type().str())});
  List axes(x.shape().size());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  std::swap(axes[static_cast<size_t>(*first)], axes[static_cast<size_t>(*second)]);
  return permute(x, std::move(axes), std::move(loc));
}

Value slice(Value x, std::vector<int64_t> start, std::vector<int64_t> limit,
            std::vector<int64_t> stride, SourceLocation loc) {
  Graph& graph = detail::graph_of("slice", "x", x, loc);
  if (std::all_of(stride.begin(), stride.end(), [](int64_t s) { return s == 1; })) stride.clear();
  SliceAttrs attrs{std::move(start), std::move(limit), std::move(stride)};
  return build_op(graph, "slice", {x}, std::move(attrs), std::move(loc)).result();
}

Value slice_axis(Value x, int64_t axis, int64_t start, int64_t limit, int64_t stride,
                 SourceLocation loc) {
  detail::graph_of("slice", "x", x, loc);
  auto at = normalize_axis(axis, x.rank());
  if (!at)
    throw Error(Diagnostic{loc, fmt::format("slice: axis {} is out of range for {} ({})", axis,
                                            x.name().empty() ? "x" : x.name(), x.type().str())});
  auto k = static_cast<size_t>(*at);
  List starts(x.shape().size(), 0), limits = x.shape(), strides(x.shape().size(), 1);
  starts[k] = start < 0 ? start + x.shape()[k] : start;
  limits[k] = limit < 0 ? limit + x.shape()[k] : limit;
  strides[k] = stride;
  return slice(x, std::move(starts), std::move(limits), std::move(strides), std::move(loc));
}

Value concat(std::vector<Value> values, int64_t axis, SourceLocation loc) {
  if (values.empty()) throw Error(Diagnostic{loc, "concat: takes at least 1 operand, got 0"});
  Graph& graph = detail::graph_of("concat", "x", values[0], loc);
  axis = normalize_axis(axis, values[0].rank()).value_or(axis);
  return build_op(graph, "concat", std::move(values), ConcatAttrs{Axis{axis}}, std::move(loc))
      .result();
}

Value pad(Value x, std::vector<int64_t> low, std::vector<int64_t> high, Number value,
          std::vector<int64_t> interior, SourceLocation loc) {
  Graph& graph = detail::graph_of("pad", "x", x, loc);
  PadAttrs attrs{std::move(low), std::move(high), value, std::move(interior), "constant"};
  return build_op(graph, "pad", {x}, std::move(attrs), std::move(loc)).result();
}

Value pad_mode(Value x, std::vector<int64_t> low, std::vector<int64_t> high, std::string mode,
               SourceLocation loc) {
  Graph& graph = detail::graph_of("pad", "x", x, loc);
  PadAttrs attrs{std::move(low), std::move(high), 0, {}, std::move(mode)};
  return build_op(graph, "pad", {x}, std::move(attrs), std::move(loc)).result();
}

void register_view(OpRegistry& r) {
  r.add<Broadcast>();
  r.add<Reshape>();
  r.add<Permute>();
  r.add<Slice>();
  r.add<Concat>();
  r.add<Pad>();
}

}  // namespace sinter
