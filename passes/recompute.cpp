// recompute: computes forward values again for the backward pass, in place of keeping them.
//
// Ops marked `{segment = "NAME"}` are a segment of the user's. Its inputs are kept, and so are its
// outputs: what forward ops outside of it, or the graph's caller, read. Any other value of the
// segment that a backward op (one with `from`) needs is computed again by copies of the segment's
// ops, with the segment `NAME.recompute`. A segment may take a gradient inside itself and read it,
// and then some copies cannot come sooner than that. cse leaves ops of different segments apart,
// and so does not undo this. Copies give the same bits as the originals, random ops included.
//
// With the option `budget`, or the graph's attribute `recompute_budget`, segments are ignored: the
// pass chooses what to keep itself, so that activations fit that many bytes; see
// detail/recompute_budget.cpp.
//
// With `off` nothing is computed again, and the marks are removed.

#include <sinter/passes/detail/recomputation.h>
#include <sinter/passes/detail/util.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

namespace sinter {

namespace {

using detail::is_backward, detail::ValueSet;

constexpr std::string_view kSuffix = ".recompute";
constexpr std::string_view kBudget = "recompute_budget";

void recompute_segment(const std::string& name, const std::vector<Op*>& ops,
                       const ValueSet& outputs, PassContext& context) {
  auto outside = [&](const Use& use) { return !is_backward(*use.op) && use.op->segment() != name; };
  ValueSet kept;
  for (Op* op : ops)
    for (size_t i = 0; i < op->num_results(); ++i) {
      Value v = op->result(i);
      if (outputs.contains(v) || std::any_of(v.uses().begin(), v.uses().end(), outside))
        kept.insert(v);
    }
  detail::Recomputation again(ops, std::move(kept), name + std::string(kSuffix));
  again.run(context);
  if (again.num_ops() > 0)
    context.remark(ops.front()->loc(),
                   fmt::format("segment {}: {} ops are computed again, {} bytes need not be kept",
                               name, again.num_ops(), again.bytes()));
}

void recompute_segments(Graph& graph, PassContext& context) {
  std::map<std::string, std::vector<Op*>> by_name;
  std::vector<std::string> order;
  for (Op& op : graph) {
    const std::string& name = op.segment();
    if (name.empty() || name.ends_with(kSuffix) || is_backward(op)) continue;
    std::vector<Op*>& ops = by_name[name];
    if (ops.empty()) order.push_back(name);
    ops.push_back(&op);
  }
  ValueSet outputs;
  for (const GraphOutput& o : graph.outputs()) outputs.insert(o.value);
  for (const std::string& name : order) recompute_segment(name, by_name[name], outputs, context);
}

std::optional<int64_t> budget_of(Graph& graph, const PassContext& context) {
  int64_t bytes = 0;
  if (auto it = graph.attributes.find(kBudget); it != graph.attributes.end()) {
    AttrValue value = it->second;
    graph.attributes.erase(it);
    if (!detail::from_attr(bytes, value) || bytes < 0)
      throw Error(fmt::format("recompute: graph @{}: {} cannot be {}", graph.name(), kBudget,
                              to_string(value)));
    return bytes;
  }
  std::string_view text = context.option("budget");
  if (text.empty()) return std::nullopt;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size() || bytes < 0)
    throw Error(fmt::format("recompute: the budget must be a number of bytes, not '{}'", text));
  return bytes;
}

}  // namespace

namespace {

// A sub-graph is differentiated as one op, which decides for all of it what is kept: a scan by its
// attribute `recompute`. Segments inside have no say in that.
void say_what_is_ignored(const Graph& graph, PassContext& context) {
  std::set<std::string> said;
  for (Op& op : graph) {
    if (op.callee().empty()) continue;
    for (Op& inner : *graph.module().find(op.callee())) {
      const std::string& name = inner.segment();
      if (name.empty() || name.ends_with(kSuffix)) continue;
      std::string text =
          fmt::format("segment {} inside of {} is ignored: it is kept or computed again as a whole",
                      name, op.name());
      if (said.insert(op.loc().str() + text).second) context.remark(op.loc(), std::move(text));
    }
  }
}

}  // namespace

void run_recompute(Module& module, PassContext& context) {
  for (Graph* graph : detail::entry_graphs(module)) {
    if (!context.has_option("off")) say_what_is_ignored(*graph, context);
    std::optional<int64_t> budget = budget_of(*graph, context);
    bool off = context.has_option("off");
    if (off || budget)
      for (Op& op : *graph) op.set_segment("");
    if (off) continue;
    if (int64_t bytes = detail::activation_bytes(*graph); bytes > 0 && !budget)
      context.remark({}, fmt::format("@{}: the backward pass reads {} bytes of activations",
                                     graph->name(), bytes));
    if (budget)
      detail::recompute_within(*graph, *budget, context);
    else
      recompute_segments(*graph, context);
  }
  // Sub-graphs too: a scan may ask, in the body of its gradient, for values to be computed again.
  if (context.has_option("off"))
    for (const auto& graph : module.graphs())
      for (Op& op : *graph) op.set_segment("");
}

}  // namespace sinter
