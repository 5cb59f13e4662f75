#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/index.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/shape.h>
#include <sinter/ir/ops/sort.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <bit>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;

namespace {

// Indices count to three times the padded extent; see `network`.
constexpr int64_t kMostElements = int64_t{1} << 29;
// The largest k of topk that is found one by one.
constexpr int64_t kMostRounds = 32;

// ---- The network

struct Pairs {
  Value keys, places;
};

// One step on rows of 2^n pairs: in each block of `block`, the first half is compared with the
// second, element by element, or in opposite directions where `mirrored`. Each element looks at its
// partner and takes the pair's earlier or later one, as its half wants. No two pairs are equal.
Pairs step(const Pairs& in, int64_t block, bool mirrored, bool descending) {
  const Shape& flat = in.keys.shape();
  Shape blocks{flat[0], flat[1] / block, 2, block / 2};
  List turned{2};
  if (mirrored) turned.push_back(3);
  Value key = reshape(in.keys, blocks), place = reshape(in.places, blocks);
  Value other = reverse(key, turned), other_place = reverse(place, turned);
  Value first_half = eq(iota(key.graph(), {DType::I32, blocks}, 2), 0);
  Value behind = descending ? lt(key, other) : gt(key, other);
  Value later = logical_or(behind, logical_and(eq(key, other), gt(place, other_place)));
  Value exchange = eq(later, first_half);
  return {reshape(where(exchange, other, key), flat),
          reshape(where(exchange, other_place, place), flat)};
}

Number last_key(DType type, bool descending) {
  // What comes last is what leaves a minimum (falling: a maximum) unchanged.
  Cell cell = identity_element(descending ? Fn::Max : Fn::Min, type);
  return is_float(type) ? Number(cell.f) : Number(cell.i);
}

int64_t padded_extent(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

// Each element of x [rows, n] with its place. NaN has the last key there is, and a place moved up
// by the padded extent, so that it comes behind a real element with that key.
Pairs keyed(Value x, bool descending) {
  Pairs pairs{x, iota(x.graph(), {DType::I32, x.shape()}, 1)};
  if (is_float(x.dtype())) {
    Value nan = ne(x, x);
    pairs.keys = where(nan, full_like(x, last_key(x.dtype(), descending)), x);
    pairs.places =
        where(nan, pairs.places + static_cast<double>(padded_extent(x.dim(1))), pairs.places);
  }
  return pairs;
}

// The first k places of x [rows, n] in sorted order, one by one: of what comes behind the last one
// taken the best key, and of its places the lowest.
Value leading_places(Value x, int64_t k, bool descending) {
  const Pairs all = keyed(x, descending);
  const Number last = last_key(x.dtype(), descending);
  List axis{1};
  std::vector<Value> places;
  Value taken_key, taken_place;
  for (int64_t i = 0; i < k; ++i) {
    Value key = all.keys, open;
    if (i > 0) {
      Value from = broadcast_to(taken_key, key.shape());
      Value place = broadcast_to(taken_place, key.shape());
      Value behind = descending ? lt(key, from) : gt(key, from);
      open = logical_or(behind, logical_and(eq(key, from), gt(all.places, place)));
      key = where(open, key, full_like(key, last));
    }
    taken_key = descending ? max(key, axis, true) : min(key, axis, true);
    Value here = eq(key, broadcast_to(taken_key, key.shape()));
    if (open) here = logical_and(here, open);
    taken_place = min(where(here, all.places, static_cast<double>(INT32_MAX)), axis, true);
    places.push_back(taken_place);
  }
  Value found = concat(places, 1);
  if (!is_float(x.dtype())) return found;
  const auto shift = static_cast<double>(padded_extent(x.dim(1)));
  return where(ge(found, shift), found - shift, found);
}

// How many steps the network of `n` elements has.
int64_t network_steps(int64_t n) {
  int64_t width = std::bit_width(static_cast<uint64_t>(padded_extent(n))) - 1;
  return width * (width + 1) / 2;
}

// x [rows, n] sorted along its last axis, with the place of each element (bitonic sort; Batcher,
// 1968). Padding has the last key there is too, and places moved up twice as far as NaN.
Pairs network(Value x, bool descending) {
  Graph& graph = x.graph();
  const int64_t n = x.dim(1), padded = padded_extent(n);
  const auto shift = static_cast<double>(padded);
  const Number last = last_key(x.dtype(), descending);
  Pairs pairs = keyed(x, descending);
  if (padded > n) {
    List none{0, 0}, behind{0, padded - n};
    pairs.keys = pad(pairs.keys, none, behind, last);
    Value own = iota(graph, {DType::I32, {x.dim(0), padded}}, 1);
    Value real = pad(pairs.places, none, behind, 0);
    pairs.places = where(lt(own, static_cast<double>(n)), real, own + 2 * shift);
  }
  for (int64_t block = 2; block <= padded; block *= 2) {
    pairs = step(pairs, block, true, descending);
    for (int64_t part = block / 2; part >= 2; part /= 2)
      pairs = step(pairs, part, false, descending);
  }
  if (padded > n) {
    pairs.keys = slice_axis(pairs.keys, 1, 0, n);
    pairs.places = slice_axis(pairs.places, 1, 0, n);
  }
  if (is_float(x.dtype())) {
    Value nan = ge(pairs.places, shift);
    pairs.keys = where(nan, std::numeric_limits<double>::quiet_NaN(), pairs.keys);
    pairs.places = where(nan, pairs.places - shift, pairs.places);
  }
  return pairs;
}

Pairs sorted_along(Value x, int64_t axis, bool descending) {
  Shape shape = x.shape();
  if (shape[static_cast<size_t>(axis)] <= 1 || num_elements(shape) == 0)
    return {x, full(x.graph(), {DType::I32, shape}, 0)};
  const int64_t last = x.rank() - 1;
  if (axis != last) x = transpose(x, axis, last);
  shape = x.shape();
  Pairs pairs = network(reshape(x, {num_elements(shape) / shape.back(), shape.back()}), descending);
  auto back = [&](Value v) {
    v = reshape(v, shape);
    return axis == last ? v : transpose(v, axis, last);
  };
  return {back(pairs.keys), back(pairs.places)};
}

// ---- What the ops share

struct Sorting {
  static constexpr OperandSpec operands[] = {required("x")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 1); }
};

std::optional<Diagnostic> refuse_operand(const InferContext& c, int64_t axis) {
  if (c.type(0).dtype == DType::Bool) return c.error("{} is not numeric", c.describe(0));
  auto at = normalize_axis(axis, c.rank(0));
  if (!at) return c.error("axis {} is out of range for {}", axis, c.describe(0));
  if (int64_t n = c.shape(0)[static_cast<size_t>(*at)]; n > kMostElements)
    return c.error("axis {} of {} has more than {} elements", axis, c.describe(0), kMostElements);
  return std::nullopt;
}

TensorType places_of(TensorType type) {
  type.dtype = DType::I32;
  return type;
}

std::vector<Sample> sort_samples() {
  AttrMap falling{{"descending", true}};
  std::vector<Sample> samples = {sample({"f32[5]"}),
                                 sample({"f32[2,3]"}, {{"axis", int64_t{0}}, {"descending", true}}),
                                 sample({"f32[2,1,4]"}, falling),
                                 sample({"bf16[3,2]"}),
                                 sample({"i32[7]"}, falling),
                                 sample({"f32[1,2,3,2]"}, {{"axis", int64_t{2}}}),
                                 sample({"f32[2,1]"}),
                                 sample({"f32[2,0]"}),
                                 sample({"f32[0,2]"})};
  for (Sample& s : samples) s.gap = 0.01;  // ties are kinks
  return samples;
}

// ---- The ops

struct Sort : Sorting {
  static constexpr std::string_view name = "sort";
  static constexpr std::string_view doc =
      "x (numeric) in rising or falling order along `axis`, stable, NaN last, and the i32 indices "
      "of its elements in x.";
  using Attrs = SortAttrs;

  static Inferred infer(const InferContext& c) {
    if (auto refused = refuse_operand(c, c.attrs<Attrs>().axis.value)) return *refused;
    return std::vector{c.type(0), places_of(c.type(0))};
  }
  // What stands at i in x went where the inverse permutation has i.
  static Grads vjp(const VjpContext& c) {
    int64_t axis = c.attrs<Attrs>().axis.value;
    if (!c.grad()) return {Value()};
    return {take_along_axis(c.grad(), argsort(c.result(1), axis), axis)};
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    return {take_along_axis(c.tangent(), c.result(1), c.attrs<Attrs>().axis.value), Value()};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = op.operand(0);
    Pairs pairs = sorted_along(x, *normalize_axis(a.axis.value, x.rank()), a.descending);
    return {pairs.keys, pairs.places};
  }
  static std::vector<Sample> samples() { return sort_samples(); }
};

struct Argsort : Sorting {
  static constexpr std::string_view name = "argsort";
  static constexpr std::string_view doc =
      "The i32 indices that put x (numeric) in rising or falling order along `axis`: stable, NaN "
      "last.";
  using Attrs = SortAttrs;
  static constexpr NonDifferentiable vjp{"integers have no derivative"};
  static constexpr NonDifferentiable jvp = vjp;

  static Inferred infer(const InferContext& c) {
    if (auto refused = refuse_operand(c, c.attrs<Attrs>().axis.value)) return *refused;
    return std::vector{places_of(c.type(0))};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    return {sort(op.operand(0), a.axis.value, a.descending).indices};
  }
  static std::vector<Sample> samples() { return sort_samples(); }
};

struct TopK : Sorting {
  static constexpr std::string_view name = "topk";
  static constexpr std::string_view doc =
      "The k largest (or smallest) elements of x (numeric) along `axis`, in falling (rising) "
      "order, and their i32 indices; ties by the lowest index, NaN last.";
  using Attrs = TopKAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (auto refused = refuse_operand(c, a.axis.value)) return *refused;
    TensorType type = c.type(0);
    int64_t& extent = type.shape[static_cast<size_t>(*normalize_axis(a.axis.value, type.rank()))];
    if (a.k < 0 || a.k > extent)
      return c.error("k = {} of the {} elements along axis {} of {}", a.k, extent, a.axis.value,
                     c.describe(0));
    extent = a.k;
    return std::vector{type, places_of(type)};
  }
  static Grads vjp(const VjpContext& c) {
    int64_t axis = c.attrs<Attrs>().axis.value;
    if (!c.grad()) return {Value()};
    return {take_along_axis_backward(c.result(1), c.grad(), axis, c.operand(0).dim(axis))};
  }
  static std::vector<Value> jvp(const JvpContext& c) {
    return {take_along_axis(c.tangent(), c.result(1), c.attrs<Attrs>().axis.value), Value()};
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    Value x = op.operand(0);
    int64_t axis = *normalize_axis(a.axis.value, x.rank()), last = x.rank() - 1, n = x.dim(axis);
    // A round reads x twice, a step of the network reads and writes two arrays.
    if (a.k > 0 && a.k <= kMostRounds && a.k < 2 * network_steps(n) && x.type().elements() > 0) {
      Value moved = axis == last ? x : transpose(x, axis, last);
      Shape shape = moved.shape();
      Value rows = reshape(moved, {num_elements(shape) / n, n});
      shape.back() = a.k;
      Value places = reshape(leading_places(rows, a.k, a.largest), shape);
      if (axis != last) places = transpose(places, axis, last);
      return {take_along_axis(x, places, axis), places};
    }
    Sorted all = sort(x, a.axis.value, a.largest);
    return {slice_axis(all.values, a.axis.value, 0, a.k),
            slice_axis(all.indices, a.axis.value, 0, a.k)};
  }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples = {
        sample({"f32[5]"}, {{"k", int64_t{2}}}),
        sample({"f32[3,2]"}, {{"k", int64_t{3}}, {"axis", int64_t{0}}}),
        sample({"bf16[2,4]"}, {{"k", int64_t{1}}, {"largest", false}}),
        sample({"i64[1,2,6]"}, {{"k", int64_t{4}}, {"axis", int64_t{-1}}}),
        sample({"f32[2,3]"}, {{"k", int64_t{0}}}),
        sample({"f32[0,2]"}, {{"k", int64_t{1}}})};
    for (Sample& s : samples) s.gap = 0.01;
    return samples;
  }
};

template <typename Attrs>
Op& build(std::string_view op, Value x, Attrs attrs, SourceLocation loc) {
  Graph& graph = detail::graph_of(op, "x", x, loc);
  return build_op(graph, op, {x}, std::move(attrs), std::move(loc));
}

}  // namespace

Sorted sort(Value x, int64_t axis, bool descending, SourceLocation loc) {
  Op& op = build("sort", x, SortAttrs{Axis{axis}, descending}, std::move(loc));
  return {op.result(0), op.result(1)};
}

Value argsort(Value x, int64_t axis, bool descending, SourceLocation loc) {
  return build("argsort", x, SortAttrs{Axis{axis}, descending}, std::move(loc)).result();
}

Sorted topk(Value x, int64_t k, int64_t axis, bool largest, SourceLocation loc) {
  Op& op = build("topk", x, TopKAttrs{k, Axis{axis}, largest}, std::move(loc));
  return {op.result(0), op.result(1)};
}

void register_sort(OpRegistry& r) {
  r.add<Sort>();
  r.add<Argsort>();
  r.add<TopK>();
}

}  // namespace sinter
