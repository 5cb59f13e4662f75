// layout: says which ops move no bytes (see layout.h).
//
// With `off` a graph is marked `layout = "dense"`: every value has storage of its own, reshapes and
// slices of whole rows are copies, and kernel templates read and write dense values.

#include <sinter/passes/layout.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/view.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/native.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <unordered_set>

namespace sinter {

namespace {

bool is_dense(const Graph& graph) {
  return graph.attributes.contains("layout");
}

bool takes(const Op& op, bool is_result, size_t index, const StridedView& view) {
  const NativeRule* rule = native_rule(op);
  return rule != nullptr && rule->takes_strides != nullptr &&
         rule->takes_strides(op, is_result, index, view.offset, view.strides);
}
// Whether a template reads operand `index` with strides, whatever they are.
bool takes_some(const Op& op, size_t index) {
  const NativeRule* rule = native_rule(op);
  return rule != nullptr && rule->takes_strides != nullptr &&
         rule->takes_strides(op, false, index, 0, dense_strides(op.operand(index).shape()));
}

bool rearranges(const Op& op) {
  return op.is("permute") || op.is("reshape") || op.is("concat");
}

std::vector<size_t> permuted_axes(const Op& op) {
  std::vector<size_t> axes;
  for (int64_t axis : op.attrs<PermuteAttrs>().axes.value)
    axes.push_back(static_cast<size_t>(*normalize_axis(axis, op.result().rank())));
  return axes;
}

// What operand `index` is of the storage that `result` says of the op's result.
std::optional<StridedView> operand_view(const Op& op, size_t index, const StridedView& result) {
  StridedView view = result;
  const Shape& shape = op.operand(index).shape();
  if (op.is("permute")) {
    std::vector<size_t> axes = permuted_axes(op);
    for (size_t i = 0; i < shape.size(); ++i) view.strides[axes[i]] = result.strides[i];
    return view;
  }
  if (op.is("reshape")) {
    auto strides = reshape_strides(op.result().shape(), result.strides, shape);
    if (!strides) return std::nullopt;
    view.strides = std::move(*strides);
    return view;
  }
  auto axis = static_cast<size_t>(
      *normalize_axis(op.attrs<ConcatAttrs>().axis.value, static_cast<int64_t>(shape.size())));
  for (size_t i = 0; i < index; ++i)
    view.offset += op.operand(i).shape()[axis] * result.strides[axis];
  return view;
}

// The first element of a slice of neighbours; nullopt for one with gaps.
std::optional<int64_t> first_element(const Op& op) {
  const auto& attrs = op.attrs<SliceAttrs>();
  const Shape &from = op.operand(0).shape(), &to = op.result().shape();
  if (op.result().type().elements() == 0) return std::nullopt;
  Shape strides = row_major_strides(from);
  int64_t first = 0;
  bool whole = true;  // all axes so far, from the last one
  for (size_t i = from.size(); i-- > 0;) {
    bool one = to[i] == 1;
    if (!whole && !one) return std::nullopt;
    if (!one && !attrs.stride.empty() && attrs.stride[i] != 1) return std::nullopt;
    whole = whole && to[i] == from[i];
    first += attrs.start[i] * strides[i];
  }
  return first;
}

}  // namespace

std::vector<int64_t> dense_strides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

std::optional<std::vector<int64_t>> reshape_strides(const Shape& from,
                                                    const std::vector<int64_t>& strides,
                                                    const Shape& to) {
  if (num_elements(from) == 0) return std::nullopt;
  // Runs of axes that lie behind each other as those of a dense tensor do, innermost first.
  struct Run {
    int64_t count, stride;
  };
  std::vector<Run> runs;
  for (size_t i = from.size(); i-- > 0;) {
    if (from[i] == 1) continue;
    if (!runs.empty() && strides[i] == runs.back().stride * runs.back().count)
      runs.back().count *= from[i];
    else
      runs.push_back({from[i], strides[i]});
  }
  // Each is cut into axes of `to`.
  std::vector<int64_t> out(to.size(), 1);
  size_t k = to.size();
  for (const Run& run : runs) {
    int64_t filled = 1;
    while (filled < run.count) {
      --k;
      out[k] = run.stride * filled;
      filled *= to[k];
    }
    if (filled != run.count) return std::nullopt;
  }
  return out;
}

bool is_free_view(const Op& op) {
  return is_dense_view(op) && !is_dense(op.graph());
}

bool is_dense_view(const Op& op) {
  if (op.is("reshape")) return true;
  if (!op.is("slice")) return false;
  std::optional<int64_t> first = first_element(op);
  const Target& target = op.graph().module().target;
  int64_t step = target.is_cuda() ? target.vector_bytes : 1;
  return first && *first * size_of(op.result().dtype()) % step == 0;
}

int64_t view_offset(const Op& op) {
  return op.is("slice") ? first_element(op).value_or(0) * size_of(op.result().dtype()) : 0;
}

// ---- Views

// From a template's result through the ops that rearrange it.
struct Views::Chain {
  Value result;
  std::vector<std::pair<Op*, size_t>> steps;  // with the operand by which each is entered
};

Views::Views(const Graph& graph) {
  if (is_dense(graph)) return;
  find_results(graph);
  find_operands(graph);
  find_reshapes(graph);
}

const StridedView* Views::find(Value v) const {
  auto it = views_.find(v);
  return it == views_.end() ? nullptr : &it->second;
}

bool Views::is_strided(const Op& op) const {
  auto it = free_.find(&op);
  return it != free_.end() && it->second;
}

StridedView Views::of(Value v) const {
  const StridedView* view = find(v);
  return view != nullptr ? *view : StridedView{v, 0, dense_strides(v.shape())};
}

void Views::find_results(const Graph& graph) {
  std::vector<Chain> chains;
  for (Op& op : graph) {
    if (op.native().empty()) continue;
    for (size_t r = 0; r < op.num_results(); ++r) {
      StridedView dense{op.result(r), 0, dense_strides(op.result(r).shape())};
      if (op.result(r).type().elements() == 0 || !takes(op, true, r, dense)) continue;
      Chain chain{op.result(r), {}};
      for (Value v = op.result(r); !graph.is_output(v);) {
        // The one reader that is no template.
        const Use* next = nullptr;
        bool several = false;
        for (const Use& use : v.uses()) {
          if (takes_some(*use.op, static_cast<size_t>(use.operand))) continue;
          several = several || next != nullptr;
          next = &use;
        }
        if (next == nullptr || several || !rearranges(*next->op)) break;
        chain.steps.emplace_back(next->op, static_cast<size_t>(next->operand));
        v = next->op->result();
      }
      if (!chain.steps.empty()) chains.push_back(std::move(chain));
    }
  }
  // A concat is free if all its operands come from templates.
  for (bool changed = true; changed;) {
    std::unordered_map<const Op*, size_t> arrivals;
    for (const Chain& chain : chains)
      for (const auto& [op, index] : chain.steps) ++arrivals[op];
    changed = false;
    for (Chain& chain : chains) {
      // The longest part of the chain that strides say.
      size_t length = 0;
      for (size_t n = chain.steps.size(); n > 0 && length == 0; --n) {
        StridedView view{chain.steps[n - 1].first->result(), 0, {}};
        view.strides = dense_strides(view.root.shape());
        bool fits = true;
        for (size_t i = n; fits && i-- > 0;) {
          const auto& [op, index] = chain.steps[i];
          fits = !op->is("concat") || arrivals[op] == op->operands().size();
          auto before = fits ? operand_view(*op, index, view) : std::nullopt;
          fits = before.has_value();
          if (!fits) break;
          view = *before;
          for (const Use& use : op->operand(index).uses()) {
            auto at = static_cast<size_t>(use.operand);
            fits = fits && (!takes_some(*use.op, at) || takes(*use.op, false, at, view));
          }
        }
        const Op& maker = *chain.result.op();
        if (fits && takes(maker, true, static_cast<size_t>(chain.result.index()), view)) length = n;
      }
      if (length < chain.steps.size()) {
        chain.steps.resize(length);
        changed = true;
      }
    }
    // Where one chain ends at a concat, the others do.
    std::unordered_set<const Op*> ends;
    for (const Chain& chain : chains)
      if (!chain.steps.empty() && chain.steps.back().first->is("concat"))
        ends.insert(chain.steps.back().first);
    for (Chain& chain : chains)
      for (size_t i = 0; i + 1 < chain.steps.size(); ++i)
        if (ends.contains(chain.steps[i].first)) {
          chain.steps.resize(i + 1);
          changed = true;
        }
  }
  for (const Chain& chain : chains) {
    if (chain.steps.empty()) continue;
    StridedView view{chain.steps.back().first->result(), 0, {}};
    view.strides = dense_strides(view.root.shape());
    for (size_t i = chain.steps.size(); i-- > 0;) {
      const auto& [op, index] = chain.steps[i];
      free_[op] = true;
      view = *operand_view(*op, index, view);
      views_[op->operand(index)] = view;
    }
  }
}

// Whether only templates read the value, some of them through views.
bool Views::read_by_templates(Value v) const {
  return !v.graph().is_output(v) && !v.uses().empty() &&
         std::all_of(v.uses().begin(), v.uses().end(), [&](const Use& use) {
           return is_strided(*use.op) || takes_some(*use.op, static_cast<size_t>(use.operand));
         });
}

// The op's result as a view of what its operand is a view of.
std::optional<StridedView> Views::view_by(const Op& op) const {
  StridedView view = of(op.operand(0));
  std::vector<int64_t> strides = view.strides;
  if (op.is("permute")) {
    std::vector<size_t> axes = permuted_axes(op);
    for (size_t i = 0; i < strides.size(); ++i) strides[i] = view.strides[axes[i]];
  } else if (op.is("slice")) {
    const auto& a = op.attrs<SliceAttrs>();
    for (size_t i = 0; i < strides.size(); ++i) {
      view.offset += a.start[i] * view.strides[i];
      if (!a.stride.empty()) strides[i] *= a.stride[i];
    }
  } else {
    auto reshaped = reshape_strides(op.operand(0).shape(), strides, op.result().shape());
    if (!reshaped) return std::nullopt;
    strides = std::move(*reshaped);
  }
  view.strides = std::move(strides);
  return view;
}

void Views::find_operands(const Graph& graph) {
  std::vector<Op*> candidates;  // last first
  for (Op* op = graph.back(); op != nullptr; op = op->prev()) {
    bool view = op->is("permute") || op->is("slice") || op->is("reshape");
    if (!view || is_free(*op) || op->result().type().elements() == 0 ||
        !read_by_templates(op->result()))
      continue;
    free_[op] = true;
    candidates.push_back(op);
  }
  // Where one is refused it is a dense value, and views may begin at it, but not pass through it.
  for (bool refused = true; refused;) {
    refused = false;
    for (size_t i = candidates.size(); i-- > 0;) {
      Op* op = candidates[i];
      views_.erase(op->result());
      if (!is_strided(*op)) continue;
      std::optional<StridedView> view = view_by(*op);
      bool fits = view.has_value();
      for (const Use& use : op->result().uses())
        fits = fits && (is_strided(*use.op) ||
                        takes(*use.op, false, static_cast<size_t>(use.operand), *view));
      if (fits) {
        views_[op->result()] = std::move(*view);
      } else {
        free_.erase(op);
        refused = true;
      }
    }
  }
}

void Views::find_reshapes(const Graph& graph) {
  for (Op& op : graph) {
    if (is_free(op) || !is_dense_view(op)) continue;
    StridedView view = of(op.operand(0));
    if (view.strides != dense_strides(op.operand(0).shape())) continue;
    view.offset += view_offset(op) / size_of(op.result().dtype());
    view.strides = dense_strides(op.result().shape());
    views_[op.result()] = std::move(view);
    free_[&op] = false;
  }
}

void run_layout(Module& module, PassContext& context) {
  for (Graph* graph : detail::entry_graphs(module)) {
    if (context.has_option("off")) {
      graph->attributes["layout"] = std::string("dense");
      continue;
    }
    graph->attributes.erase("layout");
    Views views(*graph);
    for (Op& op : *graph) {
      if (views.is_free(op)) {
        bool inside = views.find(op.result()) == nullptr;  // its operands lie in its result
        context.remark(
            op.loc(),
            inside ? fmt::format("view: {} is written in parts", detail::describe(op.result()))
                   : fmt::format("view: {} of {}", detail::describe(op.result()),
                                 detail::describe(views.find(op.result())->root)));
      } else if (op.def().kind == OpKind::View) {
        context.remark(op.loc(),
                       fmt::format("no view: {} {}", op.name(), detail::describe(op.result())));
      }
    }
  }
}

}  // namespace sinter
