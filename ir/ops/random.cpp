#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/bitwise.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/elementary.h>
#include <sinter/ir/ops/random.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/sort.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>
#include <sinter/ir/philox.h>

#include <cmath>

namespace sinter {

using detail::sample;

namespace {

constexpr double kSqrtHalf = 0.70710678118654752440, kSqrtTwo = 1.41421356237309504880;

constexpr int64_t kSites = int64_t{1} << 32;

// Refuses operands, from `first` on, that are not seed, step and offset, and a site beyond 32 bits.
std::optional<Diagnostic> check_stream(const InferContext& c, size_t first, int64_t site) {
  const TensorType wanted[] = {{DType::U32, {2}}, {DType::U32, {}}, {DType::I64, {}}};
  for (size_t i = 0; i < 3; ++i)
    if (c.type(first + i) != wanted[i])
      return c.error("{} must be {}", c.describe(first + i), wanted[i].str());
  if (site < 0 || site >= kSites) return c.error("site {} is not in 0..{}", site, kSites - 1);
  return std::nullopt;
}

RandomStream stream_of(const EvaluateContext& c) {
  RandomStream s;
  s.seed = {static_cast<uint32_t>(c.operands[0]->data[0].i),
            static_cast<uint32_t>(c.operands[0]->data[1].i)};
  s.step = static_cast<uint32_t>(c.operands[1]->data[0].i);
  s.offset = c.operands[2]->data[0].i;
  s.site = static_cast<uint32_t>(c.op.attrs<RandomAttrs>().site);
  return s;
}

BodyNode random_body(RandomKind random, DType gives, const Op& op, std::span<const IndexExpr> at,
                     BodyBuilder& b) {
  const TensorType& type = op.result().type();
  BodyNode stream[] = {b.operand(0, {IndexExpr(0)}), b.operand(0, {IndexExpr(1)}), b.operand(1, {}),
                       b.operand(2, {})};
  IndexExpr element = linearize({at.begin(), at.end()}, type.shape);
  auto site = static_cast<uint32_t>(op.attrs<RandomAttrs>().site);
  return detail::cast_node(b, b.random(random, site, stream, element), gives, type.dtype);
}

Inferred infer_float(const InferContext& c) {
  const auto& a = c.attrs<RandomAttrs>();
  if (auto refused = check_stream(c, 0, a.site)) return *refused;
  if (!is_float(a.type.type.dtype))
    return c.error("the result {} is not of a float type", a.type.type.str());
  return std::vector{a.type.type};
}

std::vector<Sample> float_samples() {
  auto of = [](std::string_view type, int64_t site) {
    Sample s = sample({"u32[2]", "u32[]", "i64[]"}, {{"site", site}}, type);
    s.integer_high = 1000;
    return s;
  };
  return {of("f32[]", 0), of("f32[9]", 1), of("f32[3,5]", 2), of("bf16[2,1,6]", 3),
          of("f32[0,3]", 4)};
}

// ---- The primitives

struct RandomUniform {
  static constexpr std::string_view name = "random_uniform";
  static constexpr std::string_view doc =
      "Numbers in [0, 1) of the annotated float type from seed u32[2], step u32[], offset i64[] "
      "and "
      "`site`: (word >> 8) * 2^-24 of Philox4x32-10 (Salmon et al., 2011).";
  static constexpr OperandSpec operands[] = {required("seed"), required("step"),
                                             required("offset")};
  static constexpr OpKind kind = OpKind::Random;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = RandomAttrs;
  static Inferred infer(const InferContext& c) { return infer_float(c); }
  static Grads vjp(const VjpContext&) { return Grads(3); }
  static constexpr auto jvp = Jvp::none;
  static constexpr auto batch = Batch::unroll;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 20); }
  static std::vector<Sample> samples() { return float_samples(); }
  static void evaluate(EvaluateContext& c) {
    RandomStream s = stream_of(c);
    ReferenceTensor& y = c.results[0];
    for (size_t i = 0; i < y.data.size(); ++i) {
      Cell cell{};
      cell.f = static_cast<double>(sinter::random_uniform(s, static_cast<int64_t>(i)));
      y.data[i] = canonical(y.type.dtype, cell);
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    return random_body(RandomKind::Uniform, DType::F32, op, at, b);
  }
};

struct RandomNormal {
  static constexpr std::string_view name = "random_normal";
  static constexpr std::string_view doc =
      "Numbers of mean 0 and variance 1 of the annotated float type from seed u32[2], step u32[], "
      "offset i64[] and `site`: Box and Muller (1958) on words of Philox4x32-10.";
  static constexpr OperandSpec operands[] = {required("seed"), required("step"),
                                             required("offset")};
  static constexpr OpKind kind = OpKind::Random;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = RandomAttrs;
  static Inferred infer(const InferContext& c) { return infer_float(c); }
  static Grads vjp(const VjpContext&) { return Grads(3); }
  static constexpr auto jvp = Jvp::none;
  static constexpr auto batch = Batch::unroll;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 40); }
  static std::vector<Sample> samples() { return float_samples(); }
  static void evaluate(EvaluateContext& c) {
    RandomStream s = stream_of(c);
    ReferenceTensor& y = c.results[0];
    bool wide = y.type.dtype == DType::F64;
    for (size_t i = 0; i < y.data.size(); ++i) {
      auto n = static_cast<int64_t>(i);
      Cell cell{};
      cell.f = wide ? sinter::random_normal<double>(s, n)
                    : static_cast<double>(sinter::random_normal<float>(s, n));
      y.data[i] = canonical(y.type.dtype, cell);
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    return random_body(RandomKind::Normal, DType::F32, op, at, b);
  }
};

struct RandomHalf {
  static constexpr std::string_view name = "random_half";
  static constexpr std::string_view doc =
      "Integers in 0..65535 as i32 of the annotated shape from seed u32[2], step u32[], offset "
      "i64[] and `site`: 16-bit halves of Philox4x32-10, 8 elements a call.";
  static constexpr OperandSpec operands[] = {required("seed"), required("step"),
                                             required("offset")};
  static constexpr OpKind kind = OpKind::Random;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = RandomAttrs;
  static constexpr NonDifferentiable vjp{"integers have no derivative"};
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (auto refused = check_stream(c, 0, a.site)) return *refused;
    if (a.type.type.dtype != DType::I32)
      return c.error("the result {} is not of type i32", a.type.type.str());
    return std::vector{a.type.type};
  }
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr auto batch = Batch::unroll;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 10); }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples = float_samples();
    for (Sample& s : samples) s.result->dtype = DType::I32;
    return samples;
  }
  static void evaluate(EvaluateContext& c) {
    RandomStream s = stream_of(c);
    ReferenceTensor& y = c.results[0];
    for (size_t i = 0; i < y.data.size(); ++i) {
      uint64_t e = s.element(static_cast<int64_t>(i));
      int lane = static_cast<int>(e % kDropoutLanes);
      y.data[i].i = dropout_half(s.words(e / kDropoutLanes), lane);
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    return random_body(RandomKind::Half, DType::I32, op, at, b);
  }
};

// ---- Made of uniform numbers

Value uniform_at(int64_t site, TensorType type, std::vector<Value> stream, const Op& op) {
  RandomAttrs attrs{site, {std::move(type)}};
  return build_op(op.graph(), "random_uniform", std::move(stream), std::move(attrs), op.loc())
      .result();
}

struct RandomTruncatedNormal {
  static constexpr std::string_view name = "random_truncated_normal";
  static constexpr std::string_view doc =
      "Normal numbers between `low` and `high` of the annotated float type from seed u32[2], step "
      "u32[], offset i64[] and `site`: the inverse distribution at the uniform number of the "
      "element.";
  static constexpr OperandSpec operands[] = {required("seed"), required("step"),
                                             required("offset")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = TruncatedNormalAttrs;
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (auto refused = check_stream(c, 0, a.site)) return *refused;
    // Further out the distribution has no mass in f32.
    if (!(a.low < a.high && a.low >= -12 && a.high <= 12))
      return c.error("low {} and high {} are not -12 <= low < high <= 12",
                     to_string(AttrValue(a.low)), to_string(AttrValue(a.high)));
    if (!is_float(a.type.type.dtype))
      return c.error("the result {} is not of a float type", a.type.type.str());
    return std::vector{a.type.type};
  }
  static Grads vjp(const VjpContext&) { return Grads(3); }
  static constexpr auto jvp = Jvp::none;
  static constexpr auto batch = Batch::unroll;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 60); }
  static std::vector<Sample> samples() {
    std::vector<Sample> samples = float_samples();
    samples[1].attrs.insert({{"low", -0.5}, {"high", 3.0}});
    samples[2].attrs.insert({{"low", 4.0}, {"high", 6.0}});
    samples[3].attrs.insert({{"low", -9.0}, {"high", -1.0}});
    return samples;
  }
  static std::vector<Value> expand(const Op& op) {
    const Attrs& a = op.attrs<Attrs>();
    TensorType type = a.type.type;
    type.dtype = compute_type(type.dtype);
    Value u = uniform_at(a.site, type, {op.operand(0), op.operand(1), op.operand(2)}, op);
    // By the tail on the side of the shorter one, where it keeps its digits.
    const bool mirrored = -a.low > a.high;
    const double near = mirrored ? -a.high : a.low, far = mirrored ? -a.low : a.high;
    const double first = std::erfc(near * kSqrtHalf), last = std::erfc(far * kSqrtHalf);
    // Of positive terms: 1 - u is exact.
    Value x = erfc_inv((1.0 - u) * (first - last) + last) * (mirrored ? -kSqrtTwo : kSqrtTwo);
    return {cast(clamp(x, a.low, a.high), a.type.type.dtype)};
  }
};

struct RandomBernoulli {
  static constexpr std::string_view name = "random_bernoulli";
  static constexpr std::string_view doc =
      "True with probability p (float), element by element, from seed u32[2], step u32[], offset "
      "i64[] and `site`: where the uniform number of the element is below p.";
  static constexpr OperandSpec operands[] = {required("p"), required("seed"), required("step"),
                                             required("offset")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = BernoulliAttrs;
  static constexpr NonDifferentiable vjp{"a draw is a bool"};
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr auto batch = Batch::through_expand;
  static Inferred infer(const InferContext& c) {
    if (!is_float(c.type(0).dtype)) return c.error("{} is not of a float type", c.describe(0));
    if (auto refused = check_stream(c, 1, c.attrs<Attrs>().site)) return *refused;
    return std::vector{TensorType{DType::Bool, c.shape(0)}};
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 20); }
  static std::vector<Sample> samples() {
    auto of = [](std::string_view type, int64_t site) {
      Sample s = sample({type, "u32[2]", "u32[]", "i64[]"}, {{"site", site}});
      s.integer_high = 1000;
      s.low = 0, s.high = 1;
      return s;
    };
    return {of("f32[9]", 1), of("f32[3,5]", 2), of("bf16[2,1,6]", 3), of("f32[]", 0),
            of("f32[0,2]", 4)};
  }
  static std::vector<Value> expand(const Op& op) {
    Value p = op.operand(0);
    TensorType type{compute_type(p.dtype()), p.shape()};
    Value u =
        uniform_at(op.attrs<Attrs>().site, type, {op.operand(1), op.operand(2), op.operand(3)}, op);
    return {lt(u, cast(p, type.dtype))};
  }
};

// The places of random keys in order. 64 bits a key: equal ones, which stay as they were, do not
// occur in practice.
struct RandomPermutation {
  static constexpr std::string_view name = "random_permutation";
  static constexpr std::string_view doc =
      "0..n-1 in random order along the last axis of the annotated i32 type, each row by itself, "
      "from seed u32[2], step u32[], offset i64[] and `site`: the order of 64-bit keys, four "
      "16-bit "
      "halves of Philox4x32-10 an element.";
  static constexpr OperandSpec operands[] = {required("seed"), required("step"),
                                             required("offset")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = RandomAttrs;
  static constexpr NonDifferentiable vjp{"integers have no derivative"};
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr auto batch = Batch::unroll;
  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    const TensorType& type = a.type.type;
    if (auto refused = check_stream(c, 0, a.site)) return *refused;
    if (type.dtype != DType::I32 || type.rank() == 0)
      return c.error("the result {} is not of type i32 with an axis to permute", type.str());
    return std::vector{type};
  }
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 100); }
  static std::vector<Sample> samples() {
    auto of = [](std::string_view type, int64_t site) {
      Sample s = sample({"u32[2]", "u32[]", "i64[]"}, {{"site", site}}, type);
      s.integer_high = 1000;
      return s;
    };
    return {of("i32[5]", 0), of("i32[2,7]", 1), of("i32[1]", 2), of("i32[0,3]", 3),
            of("i32[2,1,3,4]", 4)};
  }
  static std::vector<Value> expand(const Op& op) {
    const TensorType& type = op.result().type();
    constexpr int64_t kHalves = 4;
    Shape drawn = type.shape;
    drawn.push_back(kHalves);
    RandomAttrs attrs{op.attrs<Attrs>().site, {TensorType{DType::I32, drawn}}};
    std::vector<Value> stream{op.operand(0), op.operand(1),
                              op.operand(2) * static_cast<int>(kHalves)};
    Value halves =
        build_op(op.graph(), "random_half", std::move(stream), std::move(attrs), op.loc()).result();
    Value key;
    for (int64_t k = 0; k < kHalves; ++k) {
      Value half = cast(reshape(slice_axis(halves, -1, k, k + 1), type.shape), DType::I64);
      key = key ? bitwise_or(shift_left(key, 16), half) : half;
    }
    return {argsort(key)};
  }
};

// ---- dropout

struct Dropout {
  static constexpr std::string_view name = "dropout";
  static constexpr std::string_view doc =
      "x (float) with each element set to 0 if its random half is below round(65536 p), else "
      "multiplied by 1/(1-p) (Srivastava et al., 2014); p = 0 is x itself, p = 1 is 0.";
  static constexpr OperandSpec operands[] = {required("x"), required("seed"), required("step"),
                                             required("offset")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = DropoutAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (!is_float(c.type(0).dtype)) return c.error("{} is not of a float type", c.describe(0));
    if (auto refused = check_stream(c, 1, a.site)) return *refused;
    if (!(a.p >= 0 && a.p <= 1))
      return c.error("p = {} is not in [0, 1]", to_string(AttrValue(a.p)));
    return std::vector{c.type(0)};
  }
  // The same elements are dropped, since the same operands and site choose them.
  static Grads vjp(const VjpContext& c) {
    Grads grads(4);
    if (!c.needs(0)) return grads;
    std::vector<Value> inputs{c.grad(), c.operand(1), c.operand(2), c.operand(3)};
    const Op& op = build_op(c.grad().graph(), name, std::move(inputs), c.attrs<Attrs>(), {});
    grads[0] = op.result();
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  // Examples that share a seed share the mask; those with seeds of their own draw one each.
  static constexpr auto batch = Batch::through_expand;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op, 12); }
  static std::vector<Sample> samples() {
    auto of = [](std::string_view type, double p, int64_t site) {
      Sample s = sample({type, "u32[2]", "u32[]", "i64[]"}, {{"p", p}, {"site", site}});
      s.integer_high = 1000;
      return s;
    };
    return {of("f32[10]", 0.5, 0), of("f32[3,7]", 0.1, 1), of("bf16[2,3,4]", 0.25, 2),
            of("f32[4]", 0.0, 3),  of("f32[4]", 1.0, 4),   of("f32[]", 0.5, 5),
            of("f32[0,2]", 0.5, 6)};
  }
  static std::vector<Value> expand(const Op& op) {
    auto [p, site] = op.attrs<Attrs>();
    Value x = op.operand(0);
    if (p == 0) return {x};
    if (p == 1) return {full_like(x, 0.0)};
    RandomAttrs attrs{site, {TensorType{DType::I32, x.shape()}}};
    std::vector<Value> stream{op.operand(1), op.operand(2), op.operand(3)};
    Value half =
        build_op(x.graph(), "random_half", std::move(stream), std::move(attrs), op.loc()).result();
    Value keep = ge(half, static_cast<int>(dropout_threshold(p)));
    // The scale is no bf16 number: it multiplies in the compute type, and the product rounds once.
    Value scaled = cast(cast(x, compute_type(x.dtype())) * (1.0 / (1.0 - p)), x.dtype());
    return {where(keep, scaled, 0.0)};
  }
};

int64_t next_site(Graph& graph) {
  return graph.module().next_random_site++;
}

Value build_random(std::string_view op, Value seed, Value step, Value offset, TensorType type,
                   SourceLocation loc) {
  Graph& graph = detail::graph_of(op, "seed", seed, loc);
  RandomAttrs attrs{next_site(graph), {std::move(type)}};
  return build_op(graph, op, {seed, step, offset}, std::move(attrs), std::move(loc)).result();
}

}  // namespace

Value random_uniform(Value seed, Value step, Value offset, TensorType type, SourceLocation loc) {
  return build_random("random_uniform", seed, step, offset, std::move(type), std::move(loc));
}
Value random_normal(Value seed, Value step, Value offset, TensorType type, SourceLocation loc) {
  return build_random("random_normal", seed, step, offset, std::move(type), std::move(loc));
}
Value random_truncated_normal(Value seed, Value step, Value offset, TensorType type, double low,
                              double high, SourceLocation loc) {
  Graph& graph = detail::graph_of("random_truncated_normal", "seed", seed, loc);
  TruncatedNormalAttrs attrs{low, high, next_site(graph), {std::move(type)}};
  return build_op(graph, "random_truncated_normal", {seed, step, offset}, std::move(attrs),
                  std::move(loc))
      .result();
}
Value random_bernoulli(Value p, Value seed, Value step, Value offset, SourceLocation loc) {
  Graph& graph = detail::graph_of("random_bernoulli", "p", p, loc);
  BernoulliAttrs attrs{next_site(graph)};
  return build_op(graph, "random_bernoulli", {p, seed, step, offset}, attrs, std::move(loc))
      .result();
}
Value random_permutation(Value seed, Value step, Value offset, Shape shape, SourceLocation loc) {
  return build_random("random_permutation", seed, step, offset, {DType::I32, std::move(shape)},
                      std::move(loc));
}
Value random_half(Value seed, Value step, Value offset, Shape shape, SourceLocation loc) {
  return build_random("random_half", seed, step, offset, {DType::I32, std::move(shape)},
                      std::move(loc));
}

Value dropout(Value x, Value seed, Value step, Value offset, double p, SourceLocation loc) {
  Graph& graph = detail::graph_of("dropout", "x", x, loc);
  if (p == 0) return x;
  DropoutAttrs attrs{p, next_site(graph)};
  return build_op(graph, "dropout", {x, seed, step, offset}, attrs, std::move(loc)).result();
}

void register_random(OpRegistry& r) {
  r.add<RandomUniform>();
  r.add<RandomNormal>();
  r.add<RandomHalf>();
  r.add<RandomTruncatedNormal>();
  r.add<RandomBernoulli>();
  r.add<RandomPermutation>();
  r.add<Dropout>();
}

}  // namespace sinter
