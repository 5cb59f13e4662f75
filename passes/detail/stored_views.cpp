#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/stored_views.h>
#include <sinter/passes/iteration_space.h>
#include <sinter/passes/layout.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

namespace sinter::detail {
namespace {

// What so many read is stored, and not made again by each.
constexpr size_t kManyReaders = 8;

// The op and the copies that it reads through, by position.
std::vector<Op*> body_of(Op& op, const CopiedViews& views) {
  std::vector<Op*> body{&op};
  std::unordered_set<const Op*> seen{&op};
  for (size_t i = 0; i < body.size(); ++i)
    for (Value v : body[i]->operands()) {
      Op* up = v ? v.op() : nullptr;
      if (up != nullptr && views.is_copied(*up) && seen.insert(up).second) body.push_back(up);
    }
  std::sort(body.begin(), body.end(),
            [](const Op* a, const Op* b) { return a->position() < b->position(); });
  return body;
}

std::optional<std::string> why_not_alone(Op& op, const CopiedViews& views) {
  std::vector<Op*> body = body_of(op, views);
  if (body.size() == 1) return std::nullopt;
  std::vector<const Op*> ops(body.begin(), body.end());
  std::vector<Value> results;
  for (size_t r = 0; r < op.num_results(); ++r)
    if (!op.result(r).uses().empty() || op.graph().is_output(op.result(r)))
      results.push_back(op.result(r));
  if (results.empty()) results.push_back(op.result());
  Result<IterationSpace> space = iteration_space(ops, results);
  return space.ok() ? std::nullopt : std::optional(space.error().message);
}

}  // namespace

bool fusible(const Op& op) {
  return op.def().body != nullptr && op.native().empty();
}

bool is_part_of_stored(const Op& op) {
  if (!op.is("slice") || !is_free_view(op)) return false;
  Value whole = op.operand(0);
  while (whole.op() != nullptr && is_free_view(*whole.op())) whole = whole.op()->operand(0);
  return whole.op() == nullptr || !fusible(*whole.op()) || whole.uses().size() >= kManyReaders;
}

void store_unreadable(Graph& graph, const CopiedViews& views, PassContext& context) {
  for (Op& op : graph) {
    if (!views.is_kernel(op) || views.is_copied(op)) continue;
    while (why_not_alone(op, views)) {
      bool stored = false;
      for (Op* part : body_of(op, views)) {
        std::optional<std::string> why = why_not_alone(*part, views);
        if (!why) continue;
        for (Value v : part->operands()) {
          if (!v || !v.op() || v.op()->def().kind != OpKind::View || !views.store(*v.op()))
            continue;
          stored = true;
          context.remark(part->loc(), fmt::format("stored: {}, which {} cannot read through: {}",
                                                  v.op()->name(), part->name(), *why));
        }
      }
      SINTER_CHECK(stored, "{} has no kernel", op.name());
    }
  }
}

}  // namespace sinter::detail
