// cse: merges ops that compute the same from the same operands, keeping the first.
//
// All ops are pure, random ones included: equal seeds, steps, offsets and sites give equal bits.
// Only ops of the same segment are merged. The copies that recompute makes have a segment of their
// own, `NAME.recompute`, so that they stay apart from the originals.

#include <sinter/ir/op_def.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

namespace sinter {

namespace {

size_t mix(size_t h, size_t x) {
  return (h ^ x) * 0x9e3779b97f4a7c15u + (h >> 29);
}

struct AttrHash {
  size_t operator()(bool v) const { return v ? 1 : 2; }
  size_t operator()(int64_t v) const { return static_cast<size_t>(v); }
  size_t operator()(double v) const { return std::bit_cast<uint64_t>(v); }
  size_t operator()(const std::string& v) const { return std::hash<std::string>()(v); }
  size_t operator()(const std::vector<int64_t>& v) const {
    size_t h = v.size();
    for (int64_t x : v) h = mix(h, static_cast<size_t>(x));
    return h;
  }
  size_t operator()(const std::vector<std::string>& v) const {
    size_t h = v.size();
    for (const std::string& x : v) h = mix(h, (*this)(x));
    return h;
  }
  size_t operator()(const TensorType& v) const {
    return mix(static_cast<size_t>(v.dtype), (*this)(v.shape));
  }
};

struct OpHash {
  size_t operator()(const Op* op) const {
    size_t h = std::hash<const void*>()(&op->def());
    const AttrSchema& schema = op->def().schema;
    for (size_t i = 0; i < schema.items.size(); ++i)
      h = mix(h, std::visit(AttrHash{}, schema.get(op->raw_attrs().get(), i)));
    for (Value v : op->operands()) h = mix(h, ValueHash()(v));
    h = mix(h, std::hash<std::string>()(op->segment()));
    return mix(h, std::hash<std::string>()(op->callee()));
  }
};

struct OpEqual {
  bool operator()(const Op* a, const Op* b) const {
    return &a->def() == &b->def() && a->segment() == b->segment() && a->native() == b->native() &&
           a->callee() == b->callee() &&
           std::equal(a->operands().begin(), a->operands().end(), b->operands().begin(),
                      b->operands().end()) &&
           a->def().schema.equal(a->raw_attrs().get(), b->raw_attrs().get());
  }
};

size_t merge_equal_ops(Graph& graph) {
  std::unordered_set<Op*, OpHash, OpEqual> first;
  size_t merged = 0;
  for (Op& op : graph) {
    auto [it, fresh] = first.insert(&op);
    if (fresh) continue;
    for (size_t i = 0; i < op.num_results(); ++i) {
      Value kept = (*it)->result(i), gone = op.result(i);
      if (kept.name().empty()) kept.set_name(gone.name());
      gone.replace_all_uses_with(kept);
    }
    graph.erase(op);
    ++merged;
  }
  return merged;
}

}  // namespace

void run_cse(Module& module, PassContext& context) {
  for (const auto& graph : module.graphs())
    if (size_t merged = merge_equal_ops(*graph); merged > 0)
      context.remark({}, fmt::format("@{}: merged {} ops", graph->name(), merged));
}

}  // namespace sinter
