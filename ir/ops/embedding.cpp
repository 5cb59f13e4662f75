#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {

using detail::sample;

namespace {

bool is_index_type(DType type) {
  return type == DType::I32 || type == DType::I64;
}

std::vector<IndexExpr> leading(std::span<const IndexExpr> at, size_t count) {
  return {at.begin(), at.begin() + static_cast<int64_t>(count)};
}

// Ids [N, ...] into tables of `rows` rows each, as ids into the tables one after another.
Value rows_of_examples(const BatchContext& c, Value ids, int64_t rows) {
  DType type = c.size() * rows > INT32_MAX ? DType::I64 : ids.dtype();
  Shape along(ids.shape().size(), 1);
  along[0] = c.size();
  return cast(ids, type) + iota(c.graph(), {type, along}, 0) * static_cast<double>(rows);
}

// ---- embedding

struct Embedding {
  static constexpr std::string_view name = "embedding";
  static constexpr std::string_view doc =
      "Row ids[i] of table [v,c] (any dtype) for each id (i32 or i64, any shape): ids.shape + [c]; "
      "an id outside 0..v-1 is an error when executed.";
  static constexpr OperandSpec operands[] = {required("table"), required("ids")};
  static constexpr OpKind kind = OpKind::Gather;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = NoAttrs;

  static Inferred infer(const InferContext& c) {
    if (c.rank(0) != 2) return c.error("{} is not of rank 2", c.describe(0));
    if (!is_index_type(c.type(1).dtype)) return c.error("{} is not i32 or i64", c.describe(1));
    if (c.shape(0)[0] == 0) return c.error("{} has no rows", c.describe(0));
    TensorType type{c.type(0).dtype, c.shape(1)};
    type.shape.push_back(c.shape(0)[1]);
    return std::vector{type};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    if (c.needs(0)) grads[0] = embedding_backward(c.operand(1), c.grad(), c.operand(0).dim(0));
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    if (!c.batched(0)) return Batched::all({embedding(c.operand(0), c.operand(1))});
    // One table of all examples' rows; an id is checked before it is moved into its example's part.
    Value table = c.operand(0);
    int64_t rows = table.dim(1);
    Value ids = check_index(c.carried(1), 0, rows);
    ids = rows_of_examples(c, ids, rows);
    return Batched::all({embedding(reshape(table, {c.size() * rows, table.dim(2)}), ids)});
  }
  static Cost cost(const Op& op) {
    Cost cost;
    cost.bytes = 2.0 * static_cast<double>(op.result().type().bytes()) +
                 static_cast<double>(op.operand(1).type().bytes());
    return cost;
  }
  static std::vector<Sample> samples() {
    return {sample({"f32[4,3]", "i32[5]"}), sample({"f32[4,2]", "i64[2,3]"}),
            sample({"bf16[5,3]", "i32[]"}), sample({"i32[4,2]", "i64[3]"}),
            sample({"f32[4,1]", "i32[0]"}), sample({"f32[4,0]", "i32[2]"})};
  }
  static void evaluate(EvaluateContext& c) {
    const ReferenceTensor& table = *c.operands[0];
    const ReferenceTensor& ids = *c.operands[1];
    int64_t rows = table.type.shape[0], width = table.type.shape[1];
    for (size_t n = 0; n < ids.data.size(); ++n) {
      int64_t id = ids.data[n].i, place = static_cast<int64_t>(n);
      if (id < 0 || id >= rows) {
        c.bad_index(place, id, 0, rows);
        id = 0;
      }
      std::copy_n(table.data.begin() + id * width, width,
                  c.results[0].data.begin() + place * width);
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Shape& ids = op.operand(1).shape();
    int64_t rows = op.operand(0).dim(0);
    std::vector<IndexExpr> place = leading(at, ids.size());
    IndexExpr position = linearize(place, ids);
    BodyNode id = b.check(b.operand(1, std::move(place)), 0, rows, std::nullopt, position);
    return b.operand(0, {b.gathered(id, 0, rows), at.back()});
  }
};

// ---- embedding_backward

struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  static constexpr std::string_view doc =
      "The gradient of embedding by its table: row v of [vocab,c] is the sum of the rows of dy "
      "(ids.shape + [c]) whose id is v, in f32 for bf16 and f16, rounded once.";
  static constexpr OperandSpec operands[] = {required("ids"), required("dy")};
  static constexpr OpKind kind = OpKind::Scatter;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = EmbeddingBackwardAttrs;

  static Inferred infer(const InferContext& c) {
    int64_t vocab = c.attrs<Attrs>().vocab;
    if (vocab < 1) return c.error("vocab = {} is not positive", vocab);
    if (!is_index_type(c.type(0).dtype)) return c.error("{} is not i32 or i64", c.describe(0));
    if (!is_float(c.type(1).dtype)) return c.error("{} is not of a float type", c.describe(1));
    const Shape& ids = c.shape(0);
    const Shape& dy = c.shape(1);
    if (dy.size() != ids.size() + 1 || !std::equal(ids.begin(), ids.end(), dy.begin()))
      return c.error("the shape of {} is not that of {} and one more axis", c.describe(1),
                     c.describe(0));
    return std::vector{TensorType{c.type(1).dtype, {vocab, dy.back()}}};
  }
  static Grads vjp(const VjpContext& c) {
    Grads grads(2);
    if (c.needs(1)) grads[1] = embedding(c.grad(), c.operand(0));
    return grads;
  }
  static constexpr auto jvp = Jvp::linear;
  static Batched batch(const BatchContext& c) {
    int64_t rows = c.attrs<Attrs>().vocab;
    Value ids = c.carried(0), dy = c.carried(1);
    // What counts nowhere must not become a neighbour's row.
    Value inside = logical_and(ge(ids, 0), lt(ids, static_cast<double>(rows)));
    ids = rows_of_examples(c, where(inside, ids, 0), rows);
    ids = where(inside, ids, -1);
    Value all = embedding_backward(ids, dy, c.size() * rows);
    return Batched::all({reshape(all, c.carried_type(c.op().result().type()).shape)});
  }
  static Cost cost(const Op& op) {
    return {static_cast<double>(op.operand(1).type().elements()),
            static_cast<double>(op.operand(0).type().bytes() + op.operand(1).type().bytes() +
                                op.result().type().bytes())};
  }
  static std::vector<Sample> samples() {
    AttrMap vocab{{"vocab", int64_t{4}}};
    return {sample({"i32[5]", "f32[5,3]"}, vocab), sample({"i64[2,3]", "f32[2,3,2]"}, vocab),
            sample({"i32[7]", "bf16[7,2]"}, vocab), sample({"i32[]", "f32[3]"}, vocab),
            sample({"i32[0]", "f32[0,2]"}, vocab)};
  }
  template <typename T>
  static void evaluate_as(EvaluateContext& c) {
    const ReferenceTensor& ids = *c.operands[0];
    const ReferenceTensor& dy = *c.operands[1];
    ReferenceTensor& y = c.results[0];
    int64_t rows = y.type.shape[0], width = y.type.shape[1];
    std::vector<T> total(y.data.size(), T{0});
    for (size_t n = 0; n < ids.data.size(); ++n) {
      int64_t id = ids.data[n].i;
      if (id < 0 || id >= rows) continue;
      T* row = total.data() + id * width;
      const Cell* from = dy.data.data() + static_cast<int64_t>(n) * width;
      for (int64_t k = 0; k < width; ++k) row[k] += static_cast<T>(from[k].f);
    }
    for (size_t i = 0; i < total.size(); ++i) {
      Cell cell{};
      cell.f = static_cast<double>(total[i]);
      y.data[i] = canonical(y.type.dtype, cell);
    }
  }
  static void evaluate(EvaluateContext& c) {
    if (c.results[0].type.dtype == DType::F64)
      evaluate_as<double>(c);
    else
      evaluate_as<float>(c);
  }
  // A sum over all ids in which those of other rows count as 0.
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const TensorType& ids = op.operand(0).type();
    DType dtype = op.result().dtype(), compute = compute_type(dtype);
    if (ids.elements() == 0) return b.literal(dtype, Cell{});
    BodyNode zero = b.literal(compute, Cell{});
    ScalarBuilder s;
    Expr first = s.param(ids.dtype), second = s.param(ids.dtype);
    Expr same = first == second;
    ScalarFn equal = s.finish({&same, 1});
    auto element = [&](const IndexExpr& n) {
      std::vector<IndexExpr> place = delinearize(n, ids.shape);
      BodyNode pair[] = {b.operand(0, place), b.index(at[0], ids.dtype)};
      place.push_back(at[1]);
      BodyNode g = detail::cast_node(b, b.operand(1, std::move(place)), dtype, compute);
      return detail::select_node(b, b.scalar(equal, pair), g, zero, compute);
    };
    BodyNode total = b.reduce(Fn::Add, ids.elements(), ReduceOrder{}, element);
    return detail::cast_node(b, total, compute, dtype);
  }
};

// ---- check_index

struct CheckIndex {
  static constexpr std::string_view name = "check_index";
  static constexpr std::string_view doc =
      "t (i32 or i64) itself; an element outside low..high-1, other than `ignore`, is an error "
      "when "
      "executed.";
  static constexpr OperandSpec operands[] = {required("t")};
  static constexpr OpKind kind = OpKind::Pointwise;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = CheckIndexAttrs;
  static constexpr NonDifferentiable vjp{"integers have no derivative"};

  static Inferred infer(const InferContext& c) {
    const Attrs& a = c.attrs<Attrs>();
    if (!is_index_type(c.type(0).dtype)) return c.error("{} is not i32 or i64", c.describe(0));
    if (a.low >= a.high && c.type(0).elements() > 0)
      return c.error("no index lies in {}..{}", a.low, a.high - 1);
    return std::vector{c.type(0)};
  }
  static constexpr NonDifferentiable jvp = vjp;
  static constexpr auto batch = Batch::shift_axes;
  static Cost cost(const Op& op) { return Cost::bytes_moved(op); }
  static std::vector<Sample> samples() {
    Sample ignoring = sample(
        {"i32[2,3]"},
        {{"low", int64_t{1}}, {"high", int64_t{4}}, {"ignore", int64_t{0}}, {"has_ignore", true}});
    AttrMap four{{"high", int64_t{4}}};
    return {sample({"i32[5]"}, four), sample({"i64[2,2]"}, four), sample({"i64[]"}, four),
            sample({"i32[0]"}, four), ignoring};
  }
  static void evaluate(EvaluateContext& c) {
    const Attrs& a = c.op.attrs<Attrs>();
    const ReferenceTensor& t = *c.operands[0];
    for (size_t i = 0; i < t.data.size(); ++i) {
      Cell cell = t.data[i];
      bool good = (cell.i >= a.low && cell.i < a.high) || (a.has_ignore && cell.i == a.ignore);
      if (!good) {
        c.bad_index(static_cast<int64_t>(i), cell.i, a.low, a.high);
        cell.i = a.low;
      }
      c.results[0].data[i] = cell;
    }
  }
  static BodyNode body(const Op& op, size_t, std::span<const IndexExpr> at, BodyBuilder& b) {
    const Attrs& a = op.attrs<Attrs>();
    std::vector<IndexExpr> place(at.begin(), at.end());
    IndexExpr position = linearize(place, op.operand(0).shape());
    std::optional<int64_t> ignore;
    if (a.has_ignore) ignore = a.ignore;
    return b.check(b.operand(0, std::move(place)), a.low, a.high, ignore, position);
  }
};

}  // namespace

std::string bad_index_message(const Op& op, int64_t position, int64_t value, int64_t low,
                              int64_t high) {
  std::string what = fmt::format("{}: index", op.name()), place = "position";
  for (const AttrSchema::Item& item : op.def().schema.items) {
    if (item.name == "what") what = std::get<std::string>(op.attr("what"));
    if (item.name == "place") place = std::get<std::string>(op.attr("place"));
  }
  return fmt::format("{} {} at {} {} is outside {}..{}", what, value, place, position, low,
                     high - 1);
}

Value embedding(Value table, Value ids, SourceLocation loc) {
  Graph& graph = detail::graph_of("embedding", "table", table, loc);
  return build_op(graph, "embedding", {table, ids}, NoAttrs{}, std::move(loc)).result();
}

Value embedding_backward(Value ids, Value dy, int64_t vocab, SourceLocation loc) {
  Graph& graph = detail::graph_of("embedding_backward", "ids", ids, loc);
  EmbeddingBackwardAttrs attrs{vocab};
  return build_op(graph, "embedding_backward", {ids, dy}, attrs, std::move(loc)).result();
}

Value check_index(Value t, int64_t low, int64_t high, std::optional<int64_t> ignore,
                  std::string what, std::string place, SourceLocation loc) {
  Graph& graph = detail::graph_of("check_index", "t", t, loc);
  CheckIndexAttrs attrs;
  attrs.low = low;
  attrs.high = high;
  attrs.ignore = ignore.value_or(0);
  attrs.has_ignore = ignore.has_value();
  attrs.what = std::move(what);
  attrs.place = std::move(place);
  return build_op(graph, "check_index", {t}, std::move(attrs), std::move(loc)).result();
}

void register_embedding(OpRegistry& r) {
  r.add<Embedding>();
  r.add<EmbeddingBackward>();
  r.add<CheckIndex>();
}

}  // namespace sinter
