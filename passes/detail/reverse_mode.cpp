// Reverse mode. Active ops are walked once, in reverse; each one's rule makes ops at the end (or in
// front of a given op). The contributions to a value are kept until its own op is reached, and then
// become one add_n in the order of the value's uses.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/detail/active_path.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/transforms.h>

#include <algorithm>

namespace sinter {

namespace {

using detail::ActivePath, detail::place_of, detail::ReverseOptions;

class ReverseMode {
 public:
  ReverseMode(Graph& graph, std::span<const Value> of, std::span<const Value> cotangents,
              std::span<const Value> wrt, const ReverseOptions& options)
      : graph_(graph),
        path_(options.pass, graph, of, wrt, options.context),
        cotangents_(cotangents.begin(), cotangents.end()),
        options_(options) {
    path_.first = options.first;
    path_.end = options.before;
  }

  std::vector<Value> run() {
    check_cotangents();
    path_.require_floats();
    path_.find(
        [](const OpDef& def) { return !def.vjp && def.vjp_refusal == kThroughExpansion.reason; },
        cotangents_);
    path_.refuse([](const OpDef& def) { return def.vjp ? nullptr : &def.vjp_refusal; });
    if (options_.first == nullptr)
      last_old_ = graph_.back() != nullptr ? graph_.back()->position() : -1;
    seed();
    for (size_t i = path_.ops.size(); i-- > 0;) differentiate(*path_.ops[i], i);
    return results();
  }

 private:
  struct Contribution {
    size_t user;  // position on the path
    size_t operand;
    Value value;
  };

  // A null cotangent is 1, for a scalar.
  void check_cotangents() const {
    SINTER_CHECK(cotangents_.size() == path_.of.size(), "{} values and {} cotangents",
                 path_.of.size(), cotangents_.size());
    for (size_t i = 0; i < path_.of.size(); ++i) {
      Value v = path_.of[i];
      if (!cotangents_[i] && (v.rank() != 0 || !is_float(v.dtype())))
        throw Error(Diagnostic{place_of(v), fmt::format("{}: a loss is a float scalar, {} is not",
                                                        path_.pass, detail::describe(v))});
      if (cotangents_[i] && cotangents_[i].type() != v.type())
        throw Error(
            Diagnostic{place_of(v), fmt::format("{}: {} has a cotangent {}", path_.pass,
                                                detail::describe(v), cotangents_[i].type().str())});
    }
  }

  void seed() {
    for (size_t i = 0; i < path_.of.size(); ++i) {
      Value v = path_.of[i], dv = cotangents_[i];
      if (!path_.active.contains(v)) continue;
      if (!dv) {
        InsertionScope scope = place(v.op());
        dv = full(graph_, v.type(), 1.0, {});
      }
      contributions_[v].push_back({path_.ops.size(), i, dv});
    }
  }

  // New ops carry the place of the op that they are made from, and no segment.
  InsertionScope place(const Op* origin) {
    if (origin == nullptr) return InsertionScope(graph_, options_.before);
    return InsertionScope(graph_, options_.before, *origin, origin->loc(), "");
  }

  // Whether this differentiation made the value, so that it may name it.
  bool may_name(Value v) const {
    return options_.first == nullptr && v.op() != nullptr && v.name().empty() &&
           v.op()->position() > last_old_;
  }

  // The sum of terms of which each is zero but for a part of one axis, where these parts make up
  // the whole: what the gradients of a value's slices are. Null for other terms.
  static Value side_by_side(const std::vector<Value>& terms) {
    struct Part {
      int64_t begin;
      Value value;
    };
    std::vector<Part> parts;
    size_t axis = 0;
    for (Value term : terms) {
      if (term.op() == nullptr || !term.op()->is("pad")) return {};
      const auto& a = term.op()->attrs<PadAttrs>();
      if (a.mode != "constant" || a.value.as_double() != 0 || !a.interior.empty()) return {};
      size_t padded = a.low.size();
      for (size_t i = 0; i < a.low.size(); ++i) {
        if (a.low[i] == 0 && a.high[i] == 0) continue;
        if (padded != a.low.size() || a.low[i] < 0 || a.high[i] < 0) return {};
        padded = i;
      }
      if (padded == a.low.size() || (!parts.empty() && padded != axis)) return {};
      axis = padded;
      parts.push_back({a.low[axis], term.op()->operand(0)});
    }
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
    int64_t end = 0;
    std::vector<Value> values;
    for (const Part& part : parts) {
      if (part.begin != end) return {};
      end += part.value.shape()[axis];
      values.push_back(part.value);
    }
    if (end != terms[0].shape()[axis]) return {};
    return concat(values, static_cast<int64_t>(axis), {});
  }

  // Null when nothing contributes.
  Value gradient(Value v) {
    auto it = contributions_.find(v);
    if (it == contributions_.end()) return {};
    std::vector<Contribution>& all = it->second;
    // They arrive from the last user to the first.
    std::stable_sort(all.begin(), all.end(), [](const Contribution& a, const Contribution& b) {
      return a.user != b.user ? a.user < b.user : a.operand < b.operand;
    });
    Value total = all[0].value;
    if (all.size() > 1) {
      const Op* origin = v.op();
      if (origin == nullptr)
        origin = all[0].user < path_.ops.size() ? path_.ops[all[0].user] : path_.of[0].op();
      InsertionScope scope = place(origin);
      std::vector<Value> terms;
      for (const Contribution& c : all) terms.push_back(c.value);
      total = side_by_side(terms);
      if (!total) total = add_n(std::move(terms), {});
      all = {{all[0].user, all[0].operand, total}};
    }
    if (!v.name().empty() && may_name(total)) total.set_name("d_" + v.name());
    return total;
  }

  std::vector<Value> results() {
    std::vector<Value> out;
    std::string missing;
    for (Value v : path_.wrt) {
      out.push_back(gradient(v));
      if (!out.back()) missing += fmt::format("\n  {}", detail::describe(v));
    }
    if (!missing.empty() && options_.unused == ReverseOptions::Refused)
      throw Error(
          fmt::format("{}: nothing that is differentiated depends on{}", path_.pass, missing));
    if (options_.unused == ReverseOptions::Null) return out;
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i]) continue;
      Value v = path_.wrt[i];
      const Op* origin = v.op();
      if (origin == nullptr && !path_.of.empty()) origin = path_.of[0].op();
      InsertionScope scope = place(origin);
      out[i] = full(graph_, v.type(), 0.0, {});
      if (!v.name().empty()) out[i].set_name("d_" + v.name());
    }
    return out;
  }

  void differentiate(Op& op, size_t at) {
    std::vector<Value> grads;
    bool any = false;
    for (size_t i = 0; i < op.num_results(); ++i) {
      grads.push_back(gradient(op.result(i)));
      any = any || grads.back();
    }
    if (!any) return;
    std::vector<bool> needed;
    for (Value v : op.operands()) needed.push_back(v && path_.active.contains(v));
    InsertionScope scope = place(&op);
    Grads by_operand = op.def().vjp(VjpContext(op, std::move(grads), needed, &graph_transforms()));
    SINTER_CHECK(by_operand.size() == needed.size(), "{} has {} operands and {} gradients",
                 op.name(), needed.size(), by_operand.size());
    for (size_t k = 0; k < needed.size(); ++k) {
      if (!needed[k] || !by_operand[k]) continue;
      Value operand = op.operand(k);
      if (by_operand[k].type() != operand.type())
        throw Error(Diagnostic{
            op.loc(),
            fmt::format("autodiff: the derivative of {} by operand {}: expected {}, got {}",
                        op.name(), detail::operand_name(op, k), operand.type().str(),
                        by_operand[k].type().str())});
      contributions_[operand].push_back({at, k, by_operand[k]});
    }
  }

  Graph& graph_;
  ActivePath path_;
  std::vector<Value> cotangents_;
  const ReverseOptions& options_;
  ValueMap<std::vector<Contribution>> contributions_;
  int64_t last_old_ = -1;  // position of the last op that was there before
};

ReverseOptions options_for(Unused unused) {
  ReverseOptions options;
  options.unused = unused == Unused::Zeros  ? ReverseOptions::Zeros
                   : unused == Unused::Null ? ReverseOptions::Null
                                            : ReverseOptions::Refused;
  return options;
}

}  // namespace

std::vector<Value> detail::reverse_mode(Graph& graph, std::span<const Value> of,
                                        std::span<const Value> cotangents,
                                        std::span<const Value> wrt, const ReverseOptions& options) {
  return ReverseMode(graph, of, cotangents, wrt, options).run();
}

std::vector<Value> gradients(Graph& graph, Value of, std::span<const Value> wrt, Unused unused) {
  Value one;
  return detail::reverse_mode(graph, {&of, 1}, {&one, 1}, wrt, options_for(unused));
}

std::vector<Value> vjp(Graph& graph, std::span<const Value> of, std::span<const Value> cotangents,
                       std::span<const Value> wrt, Unused unused) {
  return detail::reverse_mode(graph, of, cotangents, wrt, options_for(unused));
}

}  // namespace sinter
