#include <sinter/ir/numeric.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/subgraph.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/scan.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {
namespace {

// Rows are stacked by as many at a time: an op with thousands of operands makes a kernel as large.
constexpr size_t kStackedAtOnce = 32;

TensorType row_type(TensorType type) {
  type.shape.erase(type.shape.begin());
  return type;
}
TensorType stacked_type(TensorType type, int64_t length) {
  type.shape.insert(type.shape.begin(), length);
  return type;
}

// Row i of x.
Value row(Value x, int64_t i, const SourceLocation& loc) {
  return reshape(slice_axis(x, 0, i, i + 1, 1, loc), row_type(x.type()).shape, loc);
}

Value stack_rows(Graph& graph, const std::vector<Value>& rows, const TensorType& type,
                 const SourceLocation& loc) {
  if (rows.empty()) return full(graph, type, 0, loc);
  std::vector<Value> parts;
  for (Value v : rows) parts.push_back(reshape(v, stacked_type(v.type(), 1).shape, loc));
  while (parts.size() > 1) {
    std::vector<Value> joined;
    for (size_t i = 0; i < parts.size(); i += kStackedAtOnce) {
      auto first = parts.begin() + static_cast<int64_t>(i);
      auto last = parts.begin() + static_cast<int64_t>(std::min(i + kStackedAtOnce, parts.size()));
      joined.push_back(last - first == 1 ? *first : concat({first, last}, 0, loc));
    }
    parts = std::move(joined);
  }
  return parts[0];
}

// The operands and results of a scan by their roles.
struct Roles {
  explicit Roles(const Op& op)
      : attrs(op.attrs<ScanAttrs>()),
        carries(static_cast<size_t>(attrs.carries)),
        stacked(static_cast<size_t>(attrs.stacked)),
        constants(op.operands().size() - carries - stacked),
        results(op.num_results() - carries),
        length(scan_length(op)) {}
  bool is_stacked(size_t operand) const {
    return operand >= carries && operand < carries + stacked;
  }

  const ScanAttrs& attrs;
  size_t carries, stacked, constants;
  size_t results;  // stacked ones
  int64_t length;
};

Op& build_scan(Graph& graph, const Graph& body, std::vector<Value> operands, ScanAttrs attrs,
               SourceLocation loc) {
  OpInit init;
  init.callee = body.name();
  init.operands = std::move(operands);
  init.attrs = std::make_shared<ScanAttrs>(attrs);
  init.loc = std::move(loc);
  return graph.create(OpRegistry::get().at("scan"), std::move(init));
}

// Inputs of the body that differ where those of `active` do: with the carries that depend on them.
std::vector<bool> reached_by(const Op& op, std::vector<bool> active) {
  const Graph& body = detail::callee_of(op);
  Roles r(op);
  for (bool again = true; again;) {
    again = false;
    std::unordered_map<Value, bool, ValueHash> depends;
    for (size_t i = 0; i < active.size(); ++i) depends[body.inputs()[i]] = active[i];
    for (Op& inner : body) {
      bool any = std::any_of(inner.operands().begin(), inner.operands().end(),
                             [&](Value v) { return v && depends[v]; });
      for (size_t i = 0; i < inner.num_results(); ++i) depends[inner.result(i)] = any;
    }
    for (size_t k = 0; k < r.carries; ++k) {
      if (active[k] || !depends[body.outputs()[k].value]) continue;
      if (!is_float(op.operand(k).dtype())) continue;
      again = active[k] = true;
    }
  }
  return active;
}

// ---- The gradient

// Differentiates a scan to a scan in the other direction. Its body forms the step again from the
// carry that the step started with, and applies the gradient of that; carried are the cotangents of
// the carries, and the sums of the constants' gradients.
class Pullback {
 public:
  explicit Pullback(const VjpContext& c)
      : c_(c), op_(c.op()), graph_(op_.graph()), body_(detail::callee_of(op_)), r_(op_) {}

  Grads run() {
    for (size_t i = 0; i < op_.operands().size(); ++i)
      active_.push_back(c_.needs(i) && is_float(op_.operand(i).dtype()));
    active_ = reached_by(op_, std::move(active_));
    std::vector<Value> saved = saved_carries();
    Graph& body = backward_body();
    return grads_of(backward_scan(body, saved));
  }

 private:
  // The carries that each step starts with, stacked: from a scan that also gives them. Once both
  // are unrolled, cse makes one of it and the scan that is differentiated.
  std::vector<Value> saved_carries() {
    if (r_.carries == 0) return {};
    ValueMap<Value> map;
    Graph& saving = detail::add_body(graph_.module(), body_.name() + "_saving");
    for (Value v : body_.inputs()) map[v] = saving.add_input(v.name(), v.type());
    clone_ops(body_, saving, map);
    for (size_t k = 0; k < r_.carries; ++k)
      saving.add_output(body_.outputs()[k].name, map.at(body_.outputs()[k].value));
    for (size_t k = 0; k < r_.carries; ++k)
      saving.add_output("at_" + body_.inputs()[k].name(), saving.inputs()[k]);
    Op& op = build_scan(graph_, saving, {op_.operands().begin(), op_.operands().end()}, r_.attrs,
                        op_.loc());
    std::vector<Value> saved;
    for (size_t k = 0; k < r_.carries; ++k) saved.push_back(op.result(r_.carries + k));
    return saved;
  }

  bool has_cotangent(size_t stacked_result) const {
    Value g = c_.grad(r_.carries + stacked_result);
    return g && is_float(g.dtype());
  }

  Graph& backward_body() {
    Graph& backward = detail::add_body(graph_.module(), body_.name() + "_vjp");
    ValueMap<Value> map;
    std::vector<Value> wrt, of, cotangents, sums;
    const auto& inputs = body_.inputs();
    // Carried: cotangents of carries, sums of the constants' gradients, in a type wide enough.
    for (size_t k = 0; k < r_.carries; ++k) {
      if (!active_[k]) continue;
      of.push_back(body_.outputs()[k].value);
      cotangents.push_back(detail::add_input(backward, "d_" + inputs[k].name(), inputs[k].type()));
    }
    for (size_t i = r_.carries + r_.stacked; i < inputs.size(); ++i)
      if (active_[i])
        sums.push_back(detail::add_input(backward, "d_" + inputs[i].name(),
                                         {compute_type(inputs[i].dtype()), inputs[i].shape()}));
    // Stacked: carries, rows, cotangents of the results' rows. Then the constants.
    for (size_t i = 0; i < r_.carries + r_.stacked; ++i)
      map[inputs[i]] = detail::add_input(backward, inputs[i].name(), inputs[i].type());
    for (size_t s = 0; s < r_.results; ++s) {
      if (!has_cotangent(s)) continue;
      const GraphOutput& y = body_.outputs()[r_.carries + s];
      of.push_back(y.value);
      cotangents.push_back(detail::add_input(backward, "d_" + y.name, y.value.type()));
    }
    for (size_t i = r_.carries + r_.stacked; i < inputs.size(); ++i)
      map[inputs[i]] = detail::add_input(backward, inputs[i].name(), inputs[i].type());

    if (r_.attrs.recompute) backward.set_current_segment(backward.name() + ".recompute");
    clone_step(backward, map);
    backward.set_current_segment("");
    for (Value& v : of) v = map.at(v);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (active_[i]) wrt.push_back(map.at(inputs[i]));
    std::vector<Value> grads = c_.transforms().vjp(backward, of, cotangents, wrt);

    // Results: what is carried, then the rows of the stacked operands' gradients.
    size_t next = 0, sum = 0;
    std::vector<std::pair<std::string, Value>> rows;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!active_[i]) continue;
      Value g = grads[next++];
      std::string name = "next_d_" + inputs[i].name();
      if (i < r_.carries) {
        backward.add_output(name, g ? g : zeros(backward, inputs[i].type()));
      } else if (r_.is_stacked(i)) {
        rows.emplace_back(name, g ? g : zeros(backward, inputs[i].type()));
      } else {
        Value so_far = sums[sum++];
        backward.add_output(name, g ? so_far + cast(g, so_far.dtype(), op_.loc()) : so_far);
      }
    }
    for (auto& [name, value] : rows) backward.add_output(name, value);
    return backward;
  }

  Value zeros(Graph& graph, const TensorType& type) const {
    return full(graph, type, 0.0, op_.loc());
  }

  // The ops of the step, in a segment of their own where it is to be computed again.
  void clone_step(Graph& backward, ValueMap<Value>& map) const {
    for (Op& op : body_) {
      std::vector<Value> operands;
      for (Value v : op.operands()) operands.push_back(v ? map.at(v) : Value());
      Op& copy = clone_op(op, backward, std::move(operands));
      if (r_.attrs.recompute) copy.set_segment(backward.current_segment());
      for (size_t i = 0; i < op.num_results(); ++i) map[op.result(i)] = copy.result(i);
    }
  }

  Op& backward_scan(Graph& body, const std::vector<Value>& saved) {
    std::vector<Value> operands;
    ScanAttrs attrs;
    for (size_t k = 0; k < r_.carries; ++k) {
      if (!active_[k]) continue;
      Value g = c_.grad(k);
      operands.push_back(g ? g : zeros(graph_, op_.operand(k).type()));
    }
    for (size_t i = r_.carries + r_.stacked; i < active_.size(); ++i)
      if (active_[i])
        operands.push_back(
            zeros(graph_, {compute_type(op_.operand(i).dtype()), op_.operand(i).shape()}));
    attrs.carries = static_cast<int64_t>(operands.size());
    operands.insert(operands.end(), saved.begin(), saved.end());
    for (size_t i = 0; i < r_.stacked; ++i) operands.push_back(op_.operand(r_.carries + i));
    for (size_t s = 0; s < r_.results; ++s)
      if (has_cotangent(s)) operands.push_back(c_.grad(r_.carries + s));
    attrs.stacked = static_cast<int64_t>(operands.size()) - attrs.carries;
    for (size_t i = r_.carries + r_.stacked; i < active_.size(); ++i)
      operands.push_back(op_.operand(i));
    attrs.length = r_.length;
    attrs.reverse = !r_.attrs.reverse;
    attrs.recompute = r_.attrs.recompute;
    return build_scan(graph_, body, std::move(operands), attrs, op_.loc());
  }

  Grads grads_of(const Op& scan) const {
    Grads grads(active_.size());
    size_t carried = 0, rows = static_cast<size_t>(scan.attrs<ScanAttrs>().carries);
    for (size_t i = 0; i < active_.size(); ++i) {
      if (!active_[i]) continue;
      if (r_.is_stacked(i))
        grads[i] = scan.result(rows++);
      else
        grads[i] = cast(scan.result(carried++), op_.operand(i).dtype(), op_.loc());
    }
    return grads;
  }

  const VjpContext& c_;
  const Op& op_;
  Graph& graph_;
  const Graph& body_;
  Roles r_;
  std::vector<bool> active_;  // by operand
};

// ---- Tangents

// A scan with twice the carries and rows: each beside its tangent, where it has one.
std::vector<Value> push_forward(const JvpContext& c) {
  const Op& op = c.op();
  Graph& graph = op.graph();
  const Graph& body = detail::callee_of(op);
  Roles r(op);
  size_t count = op.operands().size();
  std::vector<bool> active;
  for (size_t i = 0; i < count; ++i) active.push_back(bool(c.tangent(i)));
  active = reached_by(op, std::move(active));

  Graph& forward = detail::add_body(graph.module(), body.name() + "_jvp");
  ValueMap<Value> map;
  std::vector<Value> operands, wrt, moves;
  // Each kind of operand, and behind it the tangents of that kind.
  auto add_kind = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      Value input = body.inputs()[i];
      map[input] = detail::add_input(forward, input.name(), input.type());
      operands.push_back(op.operand(i));
    }
    for (size_t i = begin; i < end; ++i) {
      if (!active[i]) continue;
      Value input = body.inputs()[i];
      wrt.push_back(map.at(input));
      moves.push_back(detail::add_input(forward, "t_" + input.name(), input.type()));
      operands.push_back(c.tangent_or_zero(i));
    }
    return static_cast<int64_t>(operands.size());
  };
  ScanAttrs attrs = r.attrs;
  attrs.length = r.length;
  attrs.carries = add_kind(0, r.carries);
  attrs.stacked = add_kind(r.carries, r.carries + r.stacked) - attrs.carries;
  add_kind(r.carries + r.stacked, count);

  clone_ops(body, forward, map);
  std::vector<Value> of;
  for (const GraphOutput& o : body.outputs()) of.push_back(map.at(o.value));
  std::vector<Value> tangents = c.transforms().jvp(forward, of, wrt, moves);
  // Where each result's tangent is among the new scan's results.
  std::vector<int64_t> place(of.size(), -1);
  auto add_outputs = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) forward.add_output(body.outputs()[i].name, of[i]);
    for (size_t i = begin; i < end; ++i) {
      bool carried = i < r.carries && active[i];
      if (!carried && (i < r.carries || !tangents[i])) continue;
      Value t = tangents[i] ? tangents[i] : full(forward, of[i].type(), 0.0, op.loc());
      place[i] = static_cast<int64_t>(forward.outputs().size());
      forward.add_output("t_" + body.outputs()[i].name, t);
    }
  };
  add_outputs(0, r.carries);
  add_outputs(r.carries, of.size());
  Op& scan = build_scan(graph, forward, std::move(operands), attrs, op.loc());
  std::vector<Value> results;
  for (int64_t at : place)
    results.push_back(at < 0 ? Value() : scan.result(static_cast<size_t>(at)));
  return results;
}

// ---- The op

struct Scan {
  static constexpr std::string_view name = "scan";
  static constexpr std::string_view doc =
      "Runs a graph of the module once for each row of the stacked operands: its inputs are the "
      "carries, a row of each stacked operand and the other operands, its outputs the next carries "
      "and a row of each stacked result.";
  static constexpr std::array operands{variadic("operands")};
  static constexpr OpKind kind = OpKind::Composite;
  static constexpr Autocast autocast = Autocast::Wide;
  using Attrs = ScanAttrs;

  static Inferred infer(const InferContext& c) {
    const Graph& body = *c.callee();
    const Attrs& a = c.attrs<Attrs>();
    auto count = static_cast<int64_t>(c.num_operands());
    if (a.carries < 0 || a.stacked < 0 || a.carries + a.stacked > count)
      return c.error("takes at least {} operands, {} carries and {} stacked, got {}",
                     a.carries + a.stacked, a.carries, a.stacked, count);
    if (a.length < -1) return c.error("length {} is negative", a.length);
    if (a.length == -1 && a.stacked == 0)
      return c.error("nothing is stacked: give the number of steps as length");
    if (auto wrong = detail::miscount(c, body)) return *wrong;
    int64_t length = a.length;
    for (int64_t i = 0; i < count; ++i) {
      auto at = static_cast<size_t>(i);
      bool stacked = i >= a.carries && i < a.carries + a.stacked;
      if (!stacked) {
        if (auto wrong = detail::misfit(c, body, at)) return *wrong;
        continue;
      }
      if (c.rank(at) == 0) return c.error("{} has no axis to go along", c.describe(at));
      if (length == -1) length = c.shape(at)[0];
      if (c.shape(at)[0] != length)
        return c.error("{} has {} rows, the scan {} steps", c.describe(at), c.shape(at)[0], length);
      Value input = body.inputs()[at];
      if (input.type() != row_type(c.type(at)))
        return c.error("input {} of @{} is {}, got rows {} of {}", input.name(), body.name(),
                       input.type().str(), row_type(c.type(at)).str(), c.describe(at));
    }
    const auto& outputs = body.outputs();
    if (static_cast<int64_t>(outputs.size()) < a.carries)
      return c.error("@{} gives {} values, {} are carried", body.name(), outputs.size(), a.carries);
    std::vector<TensorType> types;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const TensorType& type = outputs[i].value.type();
      bool carried = static_cast<int64_t>(i) < a.carries;
      if (carried && type != body.inputs()[i].type())
        return c.error("carry {} goes into @{} as {} and comes out as {}", body.inputs()[i].name(),
                       body.name(), body.inputs()[i].type().str(), type.str());
      types.push_back(carried ? type : stacked_type(type, length));
    }
    return types;
  }

  static Grads vjp(const VjpContext& c) { return Pullback(c).run(); }
  static std::vector<Value> jvp(const JvpContext& c) { return push_forward(c); }
  // Carries always have the axis of examples. Rows have it behind their own axis while they are
  // stacked.
  static Batched batch(const BatchContext& c) {
    const Op& op = c.op();
    Roles r(op);
    std::vector<bool> carried;
    std::vector<Value> values;
    for (size_t i = 0; i < c.num_operands(); ++i) {
      carried.push_back(c.batched(i) || i < r.carries);
      Value v = i < r.carries ? c.carried(i) : c.operand(i);
      values.push_back(r.is_stacked(i) && c.batched(i) ? transpose(v, 0, 1, op.loc()) : v);
    }
    const Graph& body = detail::add_batched(detail::callee_of(op), carried, c);
    ScanAttrs attrs = r.attrs;
    attrs.length = r.length;
    Op& now = build_scan(c.graph(), body, std::move(values), attrs, op.loc());
    std::vector<Value> results;
    for (size_t i = 0; i < now.num_results(); ++i)
      results.push_back(i < r.carries ? now.result(i) : transpose(now.result(i), 0, 1, op.loc()));
    return Batched::all(std::move(results));
  }

  static std::vector<Value> expand(const Op& op) {
    Roles r(op);
    const Graph& body = detail::callee_of(op);
    std::vector<Value> inputs(op.operands().begin(), op.operands().end());
    std::vector<std::vector<Value>> rows(r.results,
                                         std::vector<Value>(static_cast<size_t>(r.length)));
    for (int64_t step = 0; step < r.length; ++step) {
      int64_t i = r.attrs.reverse ? r.length - 1 - step : step;
      for (size_t k = 0; k < r.stacked; ++k)
        inputs[r.carries + k] = row(op.operand(r.carries + k), i, op.loc());
      std::vector<Value> outputs = detail::inline_graph(body, inputs, op);
      std::copy_n(outputs.begin(), r.carries, inputs.begin());
      for (size_t k = 0; k < r.results; ++k)
        rows[k][static_cast<size_t>(i)] = outputs[r.carries + k];
    }
    inputs.resize(r.carries);
    for (size_t k = 0; k < r.results; ++k)
      inputs.push_back(stack_rows(op.graph(), rows[k], op.result(r.carries + k).type(), op.loc()));
    return inputs;
  }

  static Cost cost(const Op& op) {
    Cost total;
    for (Op& inner : detail::callee_of(op)) {
      Cost cost = inner.def().cost(inner);
      total.flops += cost.flops;
      total.bytes += cost.bytes;
    }
    auto steps = static_cast<double>(scan_length(op));
    return {total.flops * steps, total.bytes * steps};
  }

  static std::vector<Sample> samples() {
    Sample carried, constant, empty, narrow;
    carried.operands = {{DType::F32, {3, 4}}};
    carried.attrs = {{"carries", int64_t{1}}, {"length", int64_t{3}}};
    carried.low = -1;
    carried.high = 1;
    constant.operands = {{DType::F32, {5}}, {DType::I32, {2}}, {DType::F32, {}}};
    constant.attrs = {
        {"carries", int64_t{2}}, {"length", int64_t{2}}, {"reverse", true}, {"recompute", true}};
    constant.low = -1;
    constant.high = 1;
    empty.operands = {{DType::F32, {3}}};
    empty.attrs = {{"carries", int64_t{1}}, {"length", int64_t{0}}};
    narrow = carried;
    narrow.operands = {{DType::BF16, {4}}};
    return {carried, constant, empty, narrow};
  }
};

}  // namespace

int64_t scan_length(const Op& op) {
  const auto& a = op.attrs<ScanAttrs>();
  if (a.length >= 0) return a.length;
  return op.operand(static_cast<size_t>(a.carries)).shape()[0];
}

std::vector<Value> scan(Graph& body, std::vector<Value> carries, std::vector<Value> stacked,
                        std::vector<Value> constants, ScanAttrs options, SourceLocation loc) {
  options.carries = static_cast<int64_t>(carries.size());
  options.stacked = static_cast<int64_t>(stacked.size());
  std::vector<Value> operands = std::move(carries);
  operands.insert(operands.end(), stacked.begin(), stacked.end());
  operands.insert(operands.end(), constants.begin(), constants.end());
  if (operands.empty())
    throw Error(Diagnostic{loc, fmt::format("scan: @{} without operands", body.name())});
  Graph& graph = detail::graph_of("scan", "operand", operands[0], loc);
  if (&graph.module() != &body.module())
    throw Error(Diagnostic{
        loc, fmt::format("scan: @{} is of another module than the operands", body.name())});
  body.attributes["private"] = true;
  Op& op = build_scan(graph, body, std::move(operands), options, std::move(loc));
  std::vector<Value> results;
  for (size_t i = 0; i < op.num_results(); ++i) results.push_back(op.result(i));
  return results;
}

void register_scan(OpRegistry& r) {
  OpDef def = make_def<Scan>();
  def.has_callee = true;
  r.add(std::move(def));
}

}  // namespace sinter
