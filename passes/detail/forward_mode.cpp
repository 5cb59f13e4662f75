// Forward mode. Active ops are walked once, in order; each one's rule makes the tangents of its
// results from those of its operands, right behind the op where the given tangents are known there.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/detail/active_path.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/transforms.h>

#include <algorithm>

namespace sinter {

namespace {

using detail::ActivePath, detail::place_of;

class ForwardMode {
 public:
  ForwardMode(Graph& graph, std::span<const Value> of, std::span<const Value> wrt,
              std::span<const Value> tangents, PassContext* context)
      : graph_(graph),
        path_("jvp", graph, of, wrt, context),
        given_(tangents.begin(), tangents.end()) {}

  std::vector<Value> run() {
    path_.require_floats();
    check_tangents();
    path_.find([](const OpDef& def) { return !def.jvp && def.jvp_answer == Jvp::through_expand; },
               given_);
    path_.refuse([](const OpDef& def) -> const std::string* {
      return def.jvp || def.jvp_answer ? nullptr : &def.jvp_refusal;
    });
    for (size_t i = 0; i < given_.size(); ++i) add(path_.wrt[i], given_[i], nullptr);
    interleave_ = known_in_front();
    for (Op* op : path_.ops) differentiate(*op);
    std::vector<Value> out;
    for (Value v : path_.of) {
      Value t = tangent(v);
      if (!t) {
        InsertionScope scope = behind(v.op(), false);
        t = full(graph_, v.type(), 0.0, {});
        if (!v.name().empty()) t.set_name("t_" + v.name());
      }
      out.push_back(t);
    }
    return out;
  }

 private:
  void check_tangents() const {
    SINTER_CHECK(given_.size() == path_.wrt.size(), "{} values and {} tangents", path_.wrt.size(),
                 given_.size());
    for (size_t i = 0; i < given_.size(); ++i)
      if (given_[i].type() != path_.wrt[i].type())
        throw Error(Diagnostic{place_of(path_.wrt[i]), fmt::format("jvp: {} has a tangent {}",
                                                                   detail::describe(path_.wrt[i]),
                                                                   given_[i].type().str())});
  }

  // Whether the given tangents are defined in front of every op on the path.
  bool known_in_front() const {
    if (path_.ops.empty()) return true;
    int64_t first = path_.ops[0]->position();
    for (Value t : given_)
      if (t.op() != nullptr && t.op()->position() >= first) return false;
    return true;
  }

  Value tangent(Value v) const {
    auto it = tangents_.find(v);
    return it == tangents_.end() ? Value() : it->second;
  }

  // An entry of wrt may depend on another: both ways count.
  void add(Value v, Value t, const Op* origin) {
    Value& total = tangents_[v];
    if (total) {
      InsertionScope scope = behind(origin, true);
      t = sinter::add(total, t);
    }
    total = t;
  }

  // Behind `op`, where its operands' tangents are; else at the end. With its location and segment.
  InsertionScope behind(const Op* op, bool on_path) {
    Op* before = op != nullptr && on_path && interleave_ ? op->next() : nullptr;
    if (op == nullptr) return InsertionScope(graph_, before);
    return InsertionScope(graph_, before, *op, op->loc());
  }

  void differentiate(Op& op) {
    std::vector<Value> by_operand;
    bool any = false;
    for (Value v : op.operands()) {
      by_operand.push_back(v ? tangent(v) : Value());
      any = any || by_operand.back();
    }
    if (!any) return;
    // The rule's ops go in front of what stands behind `op` now.
    Op* before = interleave_ ? op.next() : nullptr;
    std::vector<Value> by_result;
    {
      InsertionScope scope(graph_, before, op, op.loc());
      by_result = op.def().jvp
                      ? op.def().jvp(JvpContext(op, std::move(by_operand), &graph_transforms()))
                      : transposed_vjp(op, by_operand, before);
    }
    SINTER_CHECK(by_result.size() == op.num_results(), "{} has {} results and {} tangents",
                 op.name(), op.num_results(), by_result.size());
    for (size_t i = 0; i < by_result.size(); ++i) {
      Value t = by_result[i], v = op.result(i);
      if (!t) continue;
      SINTER_CHECK(t.type() == v.type(), "the tangent of result {} of {} is {}, expected {}", i,
                   op.name(), t.type().str(), v.type().str());
      if (t.name().empty() && !v.name().empty() && t.op() != nullptr) t.set_name("t_" + v.name());
      Value& total = tangents_[v];
      if (total) {
        InsertionScope scope(graph_, before, op, op.loc());
        t = sinter::add(total, t);
      }
      total = t;
    }
  }

  // The VJP w -> w J is linear in w, so that its own VJP at the tangents is J t, whatever w is.
  std::vector<Value> transposed_vjp(Op& op, const std::vector<Value>& tangents, Op* before) {
    std::vector<Value> w;
    std::vector<size_t> floats;
    for (size_t i = 0; i < op.num_results(); ++i) {
      w.emplace_back();
      if (!is_float(op.result(i).dtype())) continue;
      floats.push_back(i);
      w.back() = full(graph_, op.result(i).type(), 0.0, {});
    }
    std::vector<bool> needed;
    for (Value t : tangents) needed.push_back(static_cast<bool>(t));
    Op* first = w[floats.at(0)].op();
    Grads grads = op.def().vjp(VjpContext(op, w, needed, &graph_transforms()));
    std::vector<Value> of, given, wrt;
    for (size_t k = 0; k < grads.size(); ++k)
      if (needed[k] && grads[k]) {
        of.push_back(grads[k]);
        given.push_back(tangents[k]);
      }
    for (size_t i : floats) wrt.push_back(w[i]);
    detail::ReverseOptions options;
    options.pass = path_.pass;
    options.context = path_.context;
    options.unused = detail::ReverseOptions::Null;
    options.first = first;
    options.before = before;
    std::vector<Value> by_float = detail::reverse_mode(graph_, of, given, wrt, options);
    std::vector<Value> out(op.num_results());
    for (size_t i = 0; i < floats.size(); ++i) out[floats[i]] = by_float[i];
    return out;
  }

  Graph& graph_;
  ActivePath path_;
  std::vector<Value> given_;
  ValueMap<Value> tangents_;
  bool interleave_ = false;
};

}  // namespace

std::vector<Value> detail::forward_mode(Graph& graph, std::span<const Value> of,
                                        std::span<const Value> wrt, std::span<const Value> tangents,
                                        PassContext* context) {
  return ForwardMode(graph, of, wrt, tangents, context).run();
}

std::vector<Value> tangents(Graph& graph, std::span<const Value> of, std::span<const Value> wrt,
                            std::span<const Value> tangents) {
  return detail::forward_mode(graph, of, wrt, tangents, nullptr);
}

}  // namespace sinter
