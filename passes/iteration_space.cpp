#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/view.h>
#include <sinter/passes/iteration_space.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace sinter {
namespace {

enum TraceAxis : int { kAll = 0, kRow = 1, kReduced = 2 };

// Bounds on what a kernel is made from, lest its text, or the time to write it, grow without end.
// CUDA passes at most 512 arguments, those for the sites of random ops included.
constexpr size_t kMaxBuffers = 500;
// Ops between a result and an input: bodies nest as deep.
constexpr int kMaxDepth = 512;
// Nodes copied for what is read under guards.
constexpr uint64_t kMaxCopies = 2048;
// Axes, divisions and remainders in the indices of one place.
constexpr int kMaxAtoms = 512;

bool mentions(const IndexExpr& e, int axis) {
  std::vector<int> axes;
  e.collect_axes(axes);
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Adds the atoms of `e`, those below divisions too; gives up above kMaxAtoms.
void count_atoms(const IndexExpr& e, int& count) {
  for (const IndexExpr::Term& t : e.terms()) {
    if (++count > kMaxAtoms) return;
    if (t.atom->of) count_atoms(*t.atom->of, count);
  }
}

struct Declined {
  std::string reason;
};

// Follows every access from the results down, checking that each reduction is read where its rows
// or columns stand in the kernel.
class Tracer {
 public:
  // `counting`: what guards copy is counted, too.
  Tracer(std::span<const Op* const> ops, const IterationSpace& space, std::span<const Value> once,
         bool counting)
      : space_(space),
        once_(once.begin(), once.end()),
        reduced_(space.elements),
        counting_(counting) {
    members_.insert(ops.begin(), ops.end());
  }
  // Whether a guard stood over more than a load.
  bool copies() const { return copies_ > 0; }

  // `in_terms`: a result of all elements, which is made before anything is reduced.
  void result(Value v, std::vector<IndexExpr> at, bool in_terms) {
    in_terms_ = in_terms;
    value(v, std::move(at));
  }

 private:
  // An element of a value, with the places that it is made from.
  struct Place {
    std::vector<uint64_t> plain;  // those read without a guard
    uint64_t copies = 0;          // nodes copied for those read under one
  };

  // Gives the key of the place; nothing for what is loaded.
  std::optional<uint64_t> value(Value v, std::vector<IndexExpr> at) {
    if (once_.contains(v)) {
      auto [first, fresh] = read_at_.emplace(v, at);
      if (!fresh && first->second != at)
        throw Declined{fmt::format("%{} is read in two orders", v.name())};
    }
    const Op* op = v.op();
    if (op == nullptr || !members_.contains(op)) return std::nullopt;
    // Under a guard, and before anything is reduced, more is refused than elsewhere.
    uint64_t h = std::hash<const void*>()(v.id()) + (guarded_ > 0) + 2 * in_terms_;
    for (const IndexExpr& e : at) h = h * 0x9e3779b97f4a7c15ULL + e.hash();
    if (!places_.try_emplace(h).second) return h;
    if (places_.size() > 8 * members_.size() + 64)
      throw Declined{fmt::format("{} is read at too many places", op->name())};
    if (depth_ >= kMaxDepth)
      throw Declined{fmt::format("{} is read through {} ops", op->name(), kMaxDepth)};
    int atoms = 0;
    for (const IndexExpr& e : at) count_atoms(e, atoms);
    if (atoms > kMaxAtoms)
      throw Declined{fmt::format("{} is read where too many divisions point", op->name())};
    OpKind kind = op->def().kind;
    if (kind == OpKind::Reduce || kind == OpKind::Scatter) reduction(*op, at);
    ++depth_;
    Place place;
    if (kind == OpKind::Pointwise && op->def().scalar) {
      for (Value operand : op->operands()) read(place, value(operand, at), false);
    } else {
      Body body(*this, *op, place);
      op->def().body(*op, static_cast<size_t>(v.index()), at, body);
    }
    --depth_;
    if (counting_) places_[h] = std::move(place);
    return h;
  }

  // What a guard protects is copied, with what was copied for it before.
  void read(Place& place, std::optional<uint64_t> from, bool guarded) {
    if (!from) return;
    if (!counting_) {
      copies_ += guarded;
      return;
    }
    if (!guarded) return place.plain.push_back(*from);
    uint64_t copies = 0;
    std::vector<uint64_t> cone{*from};
    std::unordered_set<uint64_t> seen{*from};
    for (size_t i = 0; i < cone.size(); ++i) {
      const Place& below = places_.at(cone[i]);
      copies += 1 + below.copies;
      for (uint64_t next : below.plain)
        if (seen.insert(next).second) cone.push_back(next);
    }
    place.copies += copies;
    copies_ += copies;
    if (copies_ > kMaxCopies)
      throw Declined{fmt::format("guards stand in guards: more than {} copies", kMaxCopies)};
  }

  void reduction(const Op& op, const std::vector<IndexExpr>& at) {
    int axis = space_.kind == IterationSpace::Row ? kRow : kReduced;
    if (guarded_ > 0)
      throw Declined{fmt::format("{} is read past its edges, where it has no row", op.name())};
    if (in_terms_)
      throw Declined{
          fmt::format("the result of {} is read by what the kernel stores on the way "
                      "to it",
                      op.name())};
    for (const IndexExpr& e : at) {
      if (mentions(e, axis))
        throw Declined{
            fmt::format("the result of {} is read along the axis it reduces", op.name())};
      std::vector<int> indices;
      e.collect_gathered(indices);
      if (!indices.empty())
        throw Declined{fmt::format("the result of {} is read where an index points", op.name())};
      if (mentions(e, kReduced))
        throw Declined{fmt::format("{} is reduced inside another reduction", op.name())};
    }
  }

  class Body : public BodyBuilder {
   public:
    Body(Tracer& tracer, const Op& op, Place& place) : t_(tracer), op_(op), place_(place) {}
    BodyNode operand(size_t i, std::vector<IndexExpr> at, const Guard& guard, Cell) override {
      if (guard.never) return {};
      t_.guarded_ += !guard.always();
      std::optional<uint64_t> from = t_.value(op_.operand(i), std::move(at));
      t_.guarded_ -= !guard.always();
      t_.read(place_, from, !guard.always());
      return {};
    }
    BodyNode scalar(const ScalarFn&, std::span<const BodyNode>) override { return {}; }
    BodyNode literal(DType, Cell) override { return {}; }
    BodyNode index(const IndexExpr&, DType) override { return {}; }
    BodyNode guard(const Guard&) override { return {}; }
    BodyNode reduce(Fn, int64_t extent, ReduceOrder,
                    const std::function<BodyNode(const IndexExpr&)>& element) override {
      bool row = t_.space_.kind == IterationSpace::Row;
      int64_t want = row ? t_.space_.q : t_.space_.r;
      if (row || t_.reduced_) {
        if (extent != want)
          throw Declined{
              fmt::format("{} reduces {} elements, the kernel {}", op_.name(), extent, want)};
      } else {
        t_.space_.r = extent;
        t_.reduced_ = true;
      }
      return element(IndexExpr::axis(row ? kRow : kReduced, extent));
    }
    BodyNode prefix(Fn, int64_t extent, const PrefixOrder&, const IndexExpr&,
                    const std::function<BodyNode(const IndexExpr&)>& element) override {
      if (extent != t_.space_.q)
        throw Declined{fmt::format("{} runs over {} elements, the kernel's rows have {}",
                                   op_.name(), extent, t_.space_.q)};
      return element(IndexExpr::axis(kRow, extent));
    }
    BodyNode random(RandomKind, uint32_t, std::span<const BodyNode>, const IndexExpr&) override {
      return {};
    }
    IndexExpr gathered(BodyNode, int64_t low, int64_t high) override {
      return IndexExpr::gathered(t_.gathered_++, low, high);
    }
    BodyNode check(BodyNode, int64_t, int64_t, std::optional<int64_t>, const IndexExpr&) override {
      return {};
    }

   private:
    Tracer& t_;
    const Op& op_;
    Place& place_;
  };

 public:
  IterationSpace space_;

 private:
  std::unordered_set<const Op*> members_;
  std::unordered_set<Value, ValueHash> once_;
  ValueMap<std::vector<IndexExpr>> read_at_;
  std::unordered_map<uint64_t, Place> places_;
  uint64_t copies_ = 0;
  int gathered_ = 0, guarded_ = 0, depth_ = 0;
  bool reduced_;  // whether space_.r is settled
  bool in_terms_ = false;
  bool counting_;
};

// Whether a reduction runs over the last axes, those of one place aside: then its rows lie one
// after another in its input.
bool reduces_trailing(const Op& op) {
  const Shape& in = op.operand(0).shape();
  auto axes = normalize_axes(std::get<std::vector<int64_t>>(op.attr("axes")), op.operand(0).rank());
  if (!axes) return false;
  bool kept_seen = false;
  for (size_t i = in.size(); i-- > 0;) {
    if (in[i] == 1) continue;
    bool reduced = axes->empty() ||
                   std::find(axes->begin(), axes->end(), static_cast<int64_t>(i)) != axes->end();
    if (reduced && kept_seen) return false;
    kept_seen = kept_seen || !reduced;
  }
  return true;
}

// Elements that each result of a reduction is made of.
int64_t reduced_elements(const Op& op) {
  const Shape& in = op.operand(0).shape();
  auto axes = normalize_axes(std::get<std::vector<int64_t>>(op.attr("axes")), op.operand(0).rank());
  if (!axes || axes->empty()) return num_elements(in);
  int64_t count = 1;
  for (int64_t axis : *axes) count *= in[static_cast<size_t>(axis)];
  return count;
}

// What a reduction of neighbouring axes is given, seen as outer x reduced x inner elements.
struct Blocks {
  int64_t outer = 1, reduced = 1, inner = 1;
  bool operator==(const Blocks&) const = default;
};
std::optional<Blocks> blocks_of(const Op& op) {
  if (op.def().kind != OpKind::Reduce) return std::nullopt;
  const Shape& in = op.operand(0).shape();
  auto axes = normalize_axes(std::get<std::vector<int64_t>>(op.attr("axes")), op.operand(0).rank());
  if (!axes) return std::nullopt;
  Blocks b;
  int stage = 0;  // before, within and behind the reduced axes
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] == 1) continue;
    bool reduced = axes->empty() ||
                   std::find(axes->begin(), axes->end(), static_cast<int64_t>(i)) != axes->end();
    if (reduced && stage == 2) return std::nullopt;
    if (reduced)
      stage = 1;
    else if (stage == 1)
      stage = 2;
    (stage == 0 ? b.outer : stage == 1 ? b.reduced : b.inner) *= in[i];
  }
  return b;
}

int64_t lanes_of(const Op& op) {
  for (const AttrSchema::Item& item : op.def().schema.items)
    if (item.name == "lanes") return std::get<int64_t>(op.attr("lanes"));
  return 0;
}

// Orders must agree within a kernel: they fix which lane adds which element.
std::pair<int64_t, int64_t> order_of(const Op& op) {
  int64_t vector = 0;
  for (const AttrSchema::Item& item : op.def().schema.items)
    if (item.name == "vector") vector = std::get<int64_t>(op.attr("vector"));
  return {std::max<int64_t>(lanes_of(op), 1), std::max<int64_t>(vector, 1)};
}

}  // namespace

std::vector<StoredPart> stored_parts(Value result) {
  const Op* op = result.op();
  if (op == nullptr || !op->is("concat") || op->operands().size() < 2) return {{result}};
  std::vector<StoredPart> parts;
  const int64_t axis = *normalize_axis(op->attrs<ConcatAttrs>().axis.value, result.rank());
  for (Value v : op->operands()) {
    if (v.shape() != op->operand(0).shape()) return {{result}};
    const auto count = static_cast<int64_t>(parts.size());
    parts.push_back({v, axis, count * v.shape()[static_cast<size_t>(axis)]});
  }
  return parts;
}

namespace {

// The space with what `visit` finds out. Throws Declined.
IterationSpace trace(std::span<const Op* const> ops, const IterationSpace& space,
                     std::span<const Value> once, const std::function<void(Tracer&)>& visit) {
  Tracer tracer(ops, space, once, false);
  visit(tracer);
  if (tracer.copies()) {
    Tracer counting(ops, space, once, true);
    visit(counting);
  }
  return tracer.space_;
}

// Results of one size, some of them parts of concats, and no reduction. Null: not so.
std::optional<IterationSpace> space_by_parts(std::span<const Op* const> ops,
                                             std::span<const Value> results,
                                             std::span<const Value> once) {
  for (const Op* op : ops) {
    const OpKind kind = op->def().kind;
    if (kind == OpKind::Prefix || kind == OpKind::Reduce || kind == OpKind::Scatter)
      return std::nullopt;
  }
  std::vector<StoredPart> stored;
  for (Value v : results)
    for (const StoredPart& part : stored_parts(v)) stored.push_back(part);
  if (stored.size() == results.size()) return std::nullopt;
  IterationSpace space;
  space.by_parts = true;
  space.p = stored.front().value.type().elements();
  for (const StoredPart& part : stored)
    if (part.value.type().elements() != space.p) return std::nullopt;
  const IndexExpr all = IndexExpr::axis(kAll, space.p);
  try {
    return trace(ops, space, once, [&](Tracer& tracer) {
      for (const StoredPart& part : stored)
        tracer.result(part.value, delinearize(all, part.value.shape()), false);
    });
  } catch (const Declined&) {
    return std::nullopt;
  }
}

}  // namespace

size_t count_buffers(std::span<const Op* const> ops, std::span<const Value> results) {
  std::unordered_set<const Op*> inside(ops.begin(), ops.end());
  std::unordered_set<Value, ValueHash> inputs;
  for (const Op* op : ops)
    for (Value v : op->operands())
      if (v && !(v.op() && inside.contains(v.op()))) inputs.insert(v);
  return inputs.size() + results.size();
}

Result<IterationSpace> iteration_space(std::span<const Op* const> ops,
                                       std::span<const Value> results,
                                       std::span<const Value> once) {
  auto declined = [](std::string reason) { return Diagnostic{{}, std::move(reason)}; };
  size_t count = results.size();
  for (const Op* op : ops) count += op->operands().size();
  if (count > kMaxBuffers && (count = count_buffers(ops, results)) > kMaxBuffers)
    return declined(
        fmt::format("{} inputs and results, a kernel takes at most {}", count, kMaxBuffers));
  if (auto space = space_by_parts(ops, results, once)) return *space;
  int64_t most = 0, least = INT64_MAX;
  for (Value v : results) {
    most = std::max(most, v.type().elements());
    least = std::min(least, v.type().elements());
  }
  const Op* reduction = nullptr;
  const Op* prefix = nullptr;
  bool lanes = false;
  for (const Op* op : ops) {
    OpKind kind = op->def().kind;
    if (kind == OpKind::Prefix) {
      if (prefix != nullptr || results.size() != 1 || results[0].op() != op)
        return declined(fmt::format("{} is stored as it is, and alone", op->name()));
      prefix = op;
    }
    if (kind != OpKind::Reduce && kind != OpKind::Scatter) continue;
    if (reduction && order_of(*op) != order_of(*reduction))
      return declined("its reductions add up in different orders");
    if (!reduction) reduction = op;
    lanes = lanes || lanes_of(*op) > 1;
  }
  IterationSpace space;
  space.p = most;
  if (prefix != nullptr) {
    if (reduction != nullptr)
      return declined(
          fmt::format("{} runs over what {} has yet to give", prefix->name(), reduction->name()));
    space.kind = IterationSpace::Prefix;
    const Shape& shape = prefix->result().shape();
    space.q = space.r = shape.back();
    space.p = num_elements({shape.begin(), shape.end() - 1});
  } else if (!reduction) {
    if (least != most) return declined(fmt::format("results have {} and {} elements", least, most));
  } else {
    int64_t rows = reduction->result().type().elements();
    std::optional<Blocks> blocks = blocks_of(*reduction);
    bool columns = blocks && blocks->inner > 1 && !lanes;
    bool row = reduction->def().kind == OpKind::Reduce && (lanes || (most > rows && !columns));
    if (row) {
      space.kind = IterationSpace::Row;
      space.p = rows;
      space.q = space.r = reduced_elements(*reduction);
      if (most > rows)
        for (const Op* op : ops)
          if (op->def().kind == OpKind::Reduce && !reduces_trailing(*op))
            return declined(
                fmt::format("{} does not reduce the last axes, so its input's elements "
                            "do not lie in rows",
                            op->name()));
      for (Value v : results)
        if (int64_t n = v.type().elements(); n != rows && n != rows * space.q)
          return declined(
              fmt::format("a result has {} elements, the rows are {} x {}", n, rows, space.q));
    } else {
      space.kind = IterationSpace::Column;
      space.p = rows;
      space.elements = least != most || most != rows;
      if (space.elements) {
        if (!columns || rows == 0 || blocks->reduced == 0)
          return declined(
              fmt::format("results have {} to {} elements, its reduction {}", least, most, rows));
        space.r = blocks->reduced;
        space.inner = blocks->inner;
        for (const Op* op : ops)
          if ((op->def().kind == OpKind::Reduce || op->def().kind == OpKind::Scatter) &&
              blocks_of(*op) != blocks)
            return declined(
                fmt::format("{} and {} reduce different elements", op->name(), reduction->name()));
        for (Value v : results)
          if (int64_t n = v.type().elements(); n != rows && n != rows * space.r)
            return declined(fmt::format("a result has {} elements, the columns are {} of {}", n,
                                        rows, space.r));
      }
    }
  }
  IndexExpr all = IndexExpr::axis(kAll, space.p), row = IndexExpr::axis(kRow, space.q);
  IndexExpr reduced = IndexExpr::axis(kReduced, space.r);
  try {
    return trace(ops, space, once, [&](Tracer& tracer) {
      for (Value v : results) {
        bool per_row =
            space.kind == IterationSpace::Row && v.type().elements() == space.p && space.q != 1;
        bool in_terms = space.elements && v.type().elements() != space.p;
        IndexExpr linear = in_terms  ? space.element(all, reduced)
                           : per_row ? all
                                     : all * space.q + row;
        tracer.result(v, delinearize(linear, v.shape()), in_terms);
      }
    });
  } catch (const Declined& d) {
    return declined(d.reason);
  }
}

}  // namespace sinter
