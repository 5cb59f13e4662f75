#include <sinter/passes/detail/same_place.h>

#include <sinter/ir/op_def.h>
#include <sinter/passes/iteration_space.h>

#include <unordered_set>

namespace sinter::detail {

namespace {

// Follows the accesses of one element of the results down to the operand.
class Follower {
 public:
  Follower(Value operand, int64_t elements)
      : operand_(operand), all_(IndexExpr::axis(0, elements)) {}

  bool holds() const { return holds_; }

  void result(Value v) { value(v, delinearize(all_, v.shape())); }

 private:
  void value(Value v, std::vector<IndexExpr> at) {
    const Op* op = v.op();
    if (v == operand_)
      holds_ = holds_ && (at == delinearize(all_, v.shape()) || linearize(at, v.shape()) == all_);
    if (!holds_ || op == nullptr) return;
    uint64_t h = std::hash<const void*>()(v.id());
    for (const IndexExpr& e : at) h = h * 0x9e3779b97f4a7c15ULL + e.hash();
    if (!seen_.insert(h).second) return;
    if (op->def().kind == OpKind::Pointwise && op->def().scalar) {
      for (Value from : op->operands()) value(from, at);
    } else if (op->def().body == nullptr) {
      holds_ = false;
    } else {
      Body body(*this, *op);
      op->def().body(*op, static_cast<size_t>(v.index()), at, body);
    }
  }

  class Body final : public BodyBuilder {
   public:
    Body(Follower& follower, const Op& op) : f_(follower), op_(op) {}
    BodyNode operand(size_t i, std::vector<IndexExpr> at, const Guard& guard, Cell) override {
      if (!guard.never) f_.value(op_.operand(i), std::move(at));
      return {};
    }
    BodyNode scalar(const ScalarFn&, std::span<const BodyNode>) override { return {}; }
    BodyNode literal(DType, Cell) override { return {}; }
    BodyNode index(const IndexExpr&, DType) override { return {}; }
    BodyNode guard(const Guard&) override { return {}; }
    BodyNode reduce(Fn, int64_t, ReduceOrder,
                    const std::function<BodyNode(const IndexExpr&)>&) override {
      f_.holds_ = false;
      return {};
    }
    BodyNode prefix(Fn, int64_t, const PrefixOrder&, const IndexExpr&,
                    const std::function<BodyNode(const IndexExpr&)>&) override {
      f_.holds_ = false;
      return {};
    }
    BodyNode random(RandomKind, uint32_t, std::span<const BodyNode>, const IndexExpr&) override {
      return {};
    }
    IndexExpr gathered(BodyNode, int64_t low, int64_t high) override {
      return IndexExpr::gathered(f_.gathered_++, low, high);
    }
    BodyNode check(BodyNode, int64_t, int64_t, std::optional<int64_t>, const IndexExpr&) override {
      return {};
    }

   private:
    Follower& f_;
    const Op& op_;
  };

  const Value operand_;
  const IndexExpr all_;
  std::unordered_set<uint64_t> seen_;
  int gathered_ = 0;
  bool holds_ = true;
};

}  // namespace

bool reads_where_it_writes(const Op& op, size_t operand) {
  const Graph* body = op.callee().empty() ? nullptr : op.graph().module().find(op.callee());
  if (body == nullptr) return false;
  std::vector<const Op*> ops;
  for (Op& inner : *body) ops.push_back(&inner);
  std::vector<Value> results;
  for (const GraphOutput& o : body->outputs()) results.push_back(o.value);
  Result<IterationSpace> space = iteration_space(ops, results);
  if (!space.ok() || space.value().kind != IterationSpace::Pointwise || space.value().by_parts)
    return false;
  const Value v = body->inputs()[operand];
  if (v.type().elements() != space.value().p) return false;
  Follower follower(v, space.value().p);
  for (Value result : results) follower.result(result);
  return follower.holds();
}

}  // namespace sinter::detail
