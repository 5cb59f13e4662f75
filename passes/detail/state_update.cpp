#include <sinter/passes/detail/state_update.h>

#include <fmt/format.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/iteration_space.h>

#include <unordered_set>

namespace sinter::detail {

namespace {

// Looks at what a body does, without making anything.
class Probe final : public BodyBuilder {
 public:
  bool checks = false;

  BodyNode operand(size_t, std::vector<IndexExpr>, const Guard&, Cell) override { return {}; }
  BodyNode scalar(const ScalarFn&, std::span<const BodyNode>) override { return {}; }
  BodyNode literal(DType, Cell) override { return {}; }
  BodyNode index(const IndexExpr&, DType) override { return {}; }
  BodyNode guard(const Guard&) override { return {}; }
  BodyNode reduce(Fn, int64_t extent, ReduceOrder,
                  const std::function<BodyNode(const IndexExpr&)>& element) override {
    return element(IndexExpr::axis(axes_++, extent));
  }
  BodyNode prefix(Fn, int64_t extent, const PrefixOrder&, const IndexExpr&,
                  const std::function<BodyNode(const IndexExpr&)>& element) override {
    return element(IndexExpr::axis(axes_++, extent));
  }
  BodyNode random(RandomKind, uint32_t, std::span<const BodyNode>, const IndexExpr&) override {
    return {};
  }
  IndexExpr gathered(BodyNode, int64_t low, int64_t high) override {
    return IndexExpr::gathered(gathered_++, low, high);
  }
  BodyNode check(BodyNode, int64_t, int64_t, std::optional<int64_t>, const IndexExpr&) override {
    checks = true;
    return {};
  }

 private:
  int axes_ = 64, gathered_ = 0;
};

bool body_checks(const Op& op) {
  const OpDef& def = op.def();
  if (!def.body || def.scalar) return false;
  for (size_t r = 0; r < op.num_results(); ++r) {
    if (op.result(r).type().elements() == 0) continue;
    std::vector<IndexExpr> at;
    for (int64_t extent : op.result(r).shape())
      at.push_back(IndexExpr::axis(static_cast<int>(at.size()), extent));
    Probe probe;
    def.body(op, r, at, probe);
    if (probe.checks) return true;
  }
  return false;
}

const Graph* callee_of(const Op& op) {
  return op.callee().empty() ? nullptr : op.graph().module().find(op.callee());
}

bool keeps_places(const Op& op) {
  return op.def().kind == OpKind::Pointwise || op.is("reshape");
}

std::string why_not_in_place(const Graph& body, std::span<const size_t> operands) {
  std::vector<const Op*> ops;
  for (Op& op : body) ops.push_back(&op);
  std::vector<Value> results;
  for (const GraphOutput& o : body.outputs()) results.push_back(o.value);
  Result<IterationSpace> space = iteration_space(ops, results);
  SINTER_CHECK(space.ok(), "graph @{} is no kernel", body.name());
  const IterationSpace& s = space.value();
  // What is one element a row is read by all who share the row, and written by one of them.
  if (s.kind == IterationSpace::Row)
    for (size_t i : operands)
      if (s.q == 1 || body.inputs()[i].type().elements() != s.p * s.q)
        return "its kernel reads the old value once a row";
  // A kernel that stores elements does so in its first pass over them.
  std::unordered_set<Value, ValueHash> folded;
  for (const Op* op : ops) {
    const bool folds = op->def().kind == OpKind::Reduce;
    bool reads = false;
    for (Value v : op->operands()) reads = reads || (v && folded.contains(v));
    if (s.elements && folds && reads) return "its kernel reads the old value in a second pass";
    for (size_t r = 0; r < op->num_results() && (folds || reads); ++r) folded.insert(op->result(r));
  }
  std::unordered_set<Value, ValueHash> reached;
  for (size_t i : operands) reached.insert(body.inputs()[i]);
  for (const Op* op : ops) {
    bool reads = false;
    for (Value v : op->operands()) reads = reads || (v && reached.contains(v));
    if (!reads) continue;
    // Whoever stores an element has added it up before.
    if (s.elements && op->def().kind == OpKind::Reduce) continue;
    if (!keeps_places(*op))
      return fmt::format("its kernel reads the old value through {}", op->name());
    for (size_t r = 0; r < op->num_results(); ++r) reached.insert(op->result(r));
  }
  return "";
}

}  // namespace

bool checks_indices(const Op& op) {
  const Graph* body = callee_of(op);
  if (body == nullptr) return body_checks(op);
  for (Op& inner : *body)
    if (body_checks(inner)) return true;
  return false;
}

std::string why_not_in_place(const Op& op, size_t result, std::span<const size_t> operands) {
  const Graph* body = callee_of(op);
  bool pointwise = op.def().kind == OpKind::Pointwise;
  if (body == nullptr && !pointwise) return fmt::format("{} writes it", op.name());
  if (checks_indices(op)) return "its kernel checks indices";
  for (size_t r = 0; r < op.num_results(); ++r)
    if (r != result && is_integer(op.result(r).dtype()))
      return "its kernel gives integers besides, which may serve as indices";
  if (operands.empty() || body == nullptr) return "";
  return why_not_in_place(*body, operands);
}

}  // namespace sinter::detail
