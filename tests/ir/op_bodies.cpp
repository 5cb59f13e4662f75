// Every primitive op twice, element by element: by its evaluation and by its kernel body. Both say
// what the op means, so they must agree in every bit.

#include <sinter/ir/op_def.h>
#include <sinter/ir/philox.h>
#include <sinter/tests/support.h>

#include <bit>
#include <cmath>

namespace {

using namespace sinter;

// Runs a body at constant indices at once: a node is its value.
class DirectBuilder : public BodyBuilder {
 public:
  DirectBuilder(std::span<const ReferenceTensor> operands) : operands_(operands) {}

  struct Number {
    DType type;
    Cell cell;
  };
  const Number& get(BodyNode n) const { return numbers_[static_cast<size_t>(n.id)]; }

  BodyNode operand(size_t i, std::vector<IndexExpr> at, const Guard& guard,
                   Cell otherwise) override {
    const ReferenceTensor& t = operands_[i];
    if (!holds(guard)) return add(t.type.dtype, canonical(t.type.dtype, otherwise));
    REQUIRE(at.size() == t.type.shape.size());
    int64_t place = 0;
    for (size_t k = 0; k < at.size(); ++k) {
      int64_t index = value(at[k]);
      REQUIRE(index >= 0);
      REQUIRE(index < t.type.shape[k]);
      place = place * t.type.shape[k] + index;
    }
    return add(t.type.dtype, t.data[static_cast<size_t>(place)]);
  }
  BodyNode scalar(const ScalarFn& fn, std::span<const BodyNode> args) override {
    std::vector<Cell> cells;
    for (size_t i = 0; i < args.size(); ++i) {
      REQUIRE(get(args[i]).type == fn.params[i]);
      cells.push_back(get(args[i]).cell);
    }
    std::vector<const Cell*> pointers;
    for (const Cell& c : cells) pointers.push_back(&c);
    Cell result{};
    Cell* out = &result;
    evaluate(fn, 1, pointers, {&out, 1});
    return add(fn.result_type(), result);
  }
  BodyNode literal(DType type, Cell cell) override { return add(type, canonical(type, cell)); }
  BodyNode index(const IndexExpr& e, DType type) override {
    Cell cell{};
    cell.i = value(e);
    return add(type, convert(cell, DType::I64, type));
  }
  BodyNode guard(const Guard& g) override {
    Cell cell{};
    cell.i = holds(g);
    return add(DType::Bool, cell);
  }
  BodyNode reduce(Fn combine, int64_t extent, ReduceOrder order,
                  const std::function<BodyNode(const IndexExpr&)>& element) override {
    REQUIRE(extent > 0);
    std::vector<std::vector<Number>> lanes(static_cast<size_t>(order.lanes));
    for (int64_t r = 0; r < extent; ++r) {
      Number n = get(element(IndexExpr(r)));
      if (lanes[0].empty())
        for (auto& lane : lanes)
          lane.assign(static_cast<size_t>(order.vector), {n.type, start(combine, n.type)});
      Number& to = lanes[static_cast<size_t>(r / order.vector % order.lanes)]
                        [static_cast<size_t>(r % order.vector)];
      to.cell = fold(combine, n.type, to.cell, n.cell);
    }
    DType type = lanes[0][0].type;
    std::vector<Cell> totals;
    for (auto& lane : lanes) {
      Cell total = lane[0].cell;
      for (size_t v = 1; v < lane.size(); ++v) total = fold(combine, type, total, lane[v].cell);
      totals.push_back(total);
    }
    while (totals.size() > 1) {
      std::vector<Cell> next;
      for (size_t i = 0; i < totals.size(); i += 2)
        next.push_back(fold(combine, type, totals[i], totals[i + 1]));
      totals = std::move(next);
    }
    return add(type, totals[0]);
  }
  // Straight from PrefixOrder's words: every place's value by itself.
  BodyNode prefix(Fn combine, int64_t extent, const PrefixOrder& order, const IndexExpr& at,
                  const std::function<BodyNode(const IndexExpr&)>& element) override {
    int64_t place = order.reverse ? extent - 1 - value(at) : value(at);
    DType type = get(element(at)).type;
    const Cell identity = start(combine, type);
    auto sum = [&](int64_t begin, int64_t end) {
      Cell total = identity;
      for (int64_t i = begin; i < std::min(end, extent); ++i)
        total = fold(combine, type, total,
                     get(element(IndexExpr(order.reverse ? extent - 1 - i : i))).cell);
      return total;
    };
    int64_t run = order.vector, group = run * order.group(), tile = run * order.lanes;
    auto group_sum = [&](int64_t begin) {
      Cell total = identity;
      for (int64_t i = begin; i < begin + group; i += run)
        total = fold(combine, type, total, sum(i, i + run));
      return total;
    };
    Cell before = identity;
    for (int64_t t = 0; t <= place; t += tile)
      for (int64_t g = t; g < t + tile && g + group <= place; g += group)
        before = fold(combine, type, before, group_sum(g));
    for (int64_t r = place - place % group; r + run <= place; r += run)
      before = fold(combine, type, before, sum(r, r + run));
    Cell own = sum(place - place % run, place + (order.exclusive ? 0 : 1));
    return add(type, fold(combine, type, before, own));
  }
  BodyNode random(RandomKind kind, uint32_t site, std::span<const BodyNode> args,
                  const IndexExpr& element) override {
    RandomStream s;
    s.seed = {static_cast<uint32_t>(get(args[0]).cell.i),
              static_cast<uint32_t>(get(args[1]).cell.i)};
    s.step = static_cast<uint32_t>(get(args[2]).cell.i);
    s.offset = get(args[3]).cell.i;
    s.site = site;
    Cell cell{};
    uint64_t e = s.element(value(element));
    if (kind == RandomKind::Half) {
      cell.i = dropout_half(s.words(e / 8), static_cast<int>(e % 8));
      return add(DType::I32, cell);
    }
    cell.f =
        static_cast<double>(kind == RandomKind::Uniform ? random_uniform(s, value(element))
                                                        : random_normal<float>(s, value(element)));
    return add(DType::F32, cell);
  }
  IndexExpr gathered(BodyNode node, int64_t low, int64_t high) override {
    int64_t i = get(node).cell.i;
    REQUIRE(i >= low);
    REQUIRE(i < high);
    return IndexExpr(i);
  }
  BodyNode check(BodyNode node, int64_t low, int64_t high, std::optional<int64_t> ignore,
                 const IndexExpr& position) override {
    Number n = get(node);
    bool good = (n.cell.i >= low && n.cell.i < high) || (ignore && *ignore == n.cell.i);
    if (!good) {
      bad.push_back(value(position));
      n.cell.i = low;
    }
    return add(n.type, n.cell);
  }

  std::vector<int64_t> bad;  // positions reported

 private:
  static int64_t value(const IndexExpr& e) {
    REQUIRE(e.is_constant());
    return e.constant();
  }
  static bool holds(const Guard& g) {
    if (g.never) return false;
    for (const GuardTerm& t : g.terms)
      if (value(t.e) < t.low || value(t.e) >= t.high) return false;
    return true;
  }
  static Cell start(Fn combine, DType type) {
    Cell cell{};
    if (combine == Fn::Add) return cell;
    if (combine == Fn::Mul) {
      if (is_float(type))
        cell.f = 1;
      else
        cell.i = 1;
      return cell;
    }
    bool lowest = combine == Fn::Max;
    if (is_float(type))
      cell.f = lowest ? -INFINITY : INFINITY;
    else if (type == DType::I32)
      cell.i = lowest ? INT32_MIN : INT32_MAX;
    else if (type == DType::U32)
      cell.i = lowest ? 0 : UINT32_MAX;
    else
      cell.i = lowest ? INT64_MIN : INT64_MAX;
    return cell;
  }
  static Cell fold(Fn combine, DType type, Cell a, Cell b) {
    const Intrinsic& row = intrinsic(combine);
    Cell out{};
    if (type == DType::F64)
      out.f = row.f64(a.f, b.f, 0);
    else if (type == DType::F32)
      out.f = static_cast<double>(row.f32(static_cast<float>(a.f), static_cast<float>(b.f), 0));
    else
      out.i = row.integer(a.i, b.i, 0);
    return canonical(type, out);
  }
  BodyNode add(DType type, Cell cell) {
    numbers_.push_back({type, cell});
    return {static_cast<int>(numbers_.size()) - 1};
  }
  std::span<const ReferenceTensor> operands_;
  std::vector<Number> numbers_;
};

ReferenceTensor fill(const TensorType& type, const Sample& s, uint32_t seed) {
  ReferenceTensor t{type, std::vector<Cell>(static_cast<size_t>(type.elements()))};
  for (size_t i = 0; i < t.data.size(); ++i) {
    uint32_t word = philox4x32({static_cast<uint32_t>(i), seed, 0, 0}, {1, 2})[0];
    Cell cell{};
    if (is_float(type.dtype))
      cell.f = s.low + (s.high - s.low) * (static_cast<double>(word) * 0x1p-32);
    else if (type.dtype == DType::Bool)
      cell.i = word & 1;
    else
      cell.i = s.integer_low + static_cast<int64_t>(word) % (s.integer_high - s.integer_low);
    t.data[i] = canonical(type.dtype, cell);
  }
  return t;
}

Op& build(Graph& graph, const OpDef& def, const Sample& s) {
  OpInit init;
  std::shared_ptr<void> attrs = def.schema.make();
  for (size_t i = 0; i < def.schema.items.size(); ++i) {
    const AttrSchema::Item& item = def.schema.items[i];
    if (item.is_result_type)
      REQUIRE(item.set(attrs.get(), i, *s.result));
    else if (auto at = s.attrs.find(item.name); at != s.attrs.end())
      REQUIRE(item.set(attrs.get(), i, at->second));
  }
  init.attrs = attrs;
  for (size_t i = 0; i < s.operands.size(); ++i)
    init.operands.push_back(graph.add_input(fmt::format("x{}", i), s.operands[i]));
  return graph.create(def, std::move(init));
}

}  // namespace

TEST_CASE("bodies agree with evaluation in every bit") {
  size_t compared = 0;
  for (const OpDef* def : OpRegistry::get().all()) {
    if (!def->body || !def->evaluate) continue;
    size_t number = 0;
    for (const Sample& s : def->samples()) {
      if (!s.absent.empty()) continue;
      CAPTURE(def->name);
      CAPTURE(number++);
      Module module;
      Op& op = build(module.add_graph("g"), *def, s);
      std::vector<ReferenceTensor> operands;
      std::vector<const ReferenceTensor*> pointers;
      for (size_t i = 0; i < s.operands.size(); ++i)
        operands.push_back(fill(s.operands[i], s, static_cast<uint32_t>(i)));
      for (const ReferenceTensor& t : operands) pointers.push_back(&t);
      std::vector<ReferenceTensor> results;
      for (size_t i = 0; i < op.num_results(); ++i) {
        TensorType type = op.result(i).type();
        results.push_back({type, std::vector<Cell>(static_cast<size_t>(type.elements()))});
      }
      EvaluateContext context{
          op, pointers, results,
          [](int64_t position, int64_t, int64_t, int64_t) { FAIL("bad index at ", position); }};
      def->evaluate(context);
      for (size_t r = 0; r < results.size(); ++r) {
        Shape strides = row_major_strides(results[r].type.shape);
        for (size_t i = 0; i < results[r].data.size(); ++i) {
          std::vector<IndexExpr> at;
          for (size_t k = 0; k < strides.size(); ++k)
            at.push_back(static_cast<int64_t>(i) / strides[k] % results[r].type.shape[k]);
          DirectBuilder builder(operands);
          DirectBuilder::Number got = builder.get(def->body(op, r, at, builder));
          CHECK(got.type == results[r].type.dtype);
          CHECK(builder.bad.empty());
          CHECK(got.cell.i == results[r].data[i].i);
          ++compared;
        }
      }
    }
  }
  CHECK(compared > 1000);
}

TEST_CASE("bad indices are found by evaluation and by the body") {
  for (std::string_view name : {"embedding", "check_index"}) {
    CAPTURE(name);
    const OpDef& def = OpRegistry::get().at(name);
    Sample s;
    if (name == "embedding")
      s.operands = {*parse_tensor_type("f32[3,1]"), *parse_tensor_type("i32[2,2]")};
    else
      s.operands = {*parse_tensor_type("i32[2,2]")};
    s.attrs["high"] = int64_t{3};
    Module module;
    Op& op = build(module.add_graph("g"), def, s);
    std::vector<ReferenceTensor> operands;
    for (const TensorType& type : s.operands) operands.push_back(fill(type, s, 0));
    ReferenceTensor& ids = operands.back();
    int64_t values[] = {2, -1, 0, 3};
    for (size_t i = 0; i < 4; ++i) ids.data[i].i = values[i];
    std::vector<const ReferenceTensor*> pointers;
    for (const ReferenceTensor& t : operands) pointers.push_back(&t);
    std::vector<ReferenceTensor> results{{op.result().type(), std::vector<Cell>(4)}};
    std::vector<int64_t> bad;
    EvaluateContext context{op, pointers, results,
                            [&](int64_t position, int64_t value, int64_t low, int64_t high) {
                              CHECK(value == values[position]);
                              CHECK(low == 0);
                              CHECK(high == 3);
                              bad.push_back(position);
                            }};
    def.evaluate(context);
    CHECK(bad == std::vector<int64_t>{1, 3});
    for (int64_t i = 0; i < 4; ++i) {
      std::vector<IndexExpr> at{IndexExpr(i / 2), IndexExpr(i % 2)};
      if (name == "embedding") at.emplace_back(0);
      DirectBuilder builder(operands);
      Cell cell = builder.get(def.body(op, 0, at, builder)).cell;
      CHECK(cell.i == results[0].data[static_cast<size_t>(i)].i);
      CHECK(builder.bad == (i % 2 == 1 ? std::vector<int64_t>{i} : std::vector<int64_t>{}));
    }
  }
}
