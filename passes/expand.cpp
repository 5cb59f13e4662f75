// expand: from composite ops to primitives, with the order of every reduction fixed.
//
// Every op that has an expansion is replaced by it, until none is left, except those that a kernel
// template carries out (pass native); the new ops keep location, `from`, segment and value names.
// The same goes for the ops that stand for a graph: calls are inlined, loops unrolled.
// stop_gradient has done its work by now and vanishes.
//
// Then each sum, max and min without an order of its own gets one from its shape and the target,
// so that whatever fuses or schedules it later adds up alike. A reduction is a row when the
// innermost axis longer than 1 is reduced: neighbouring lanes take neighbouring elements. All
// others are columns: each lane owns an output, and adds in rising order.
//
// A running fold gets its order likewise, and a long one goes in two stages: within parts, and over
// the totals of the parts.
//
// An op of more operands than a kernel takes arguments becomes several: a concat a tree of them, a
// sum of n terms a running one, in the compute type, so that it is still rounded once.
//
// A reduction with too few outputs to fill the machine is first split in two: over parts of its
// longest reduced axis, then over the parts. The second of them may be split again.

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <bit>

namespace sinter {

namespace {

void expand_all(Graph& graph) {
  bool templates = graph.module().target.is_cuda();
  for (Op* op = graph.front(); op != nullptr;) {
    Op* before = op->prev();
    Op* next = op->next();
    bool gone = true;
    if (!templates) op->set_native("");
    if (op->is("stop_gradient")) {
      op->result().replace_all_uses_with(op->operand(0));
      graph.erase(*op);
    } else if (op->def().expand && op->native().empty()) {
      detail::expand_in_place(*op);
    } else {
      gone = false;
    }
    // What the expansion made may have expansions in turn.
    op = !gone ? next : before != nullptr ? before->next() : graph.front();
  }
}

// What is read besides, and the results, have to find room beside them: see iteration_space.cpp.
constexpr size_t kMaxOperands = 448;

Value concat_in_parts(std::vector<Value> parts, int64_t axis, const SourceLocation& loc) {
  while (parts.size() > 1) {
    std::vector<Value> joined;
    for (size_t i = 0; i < parts.size(); i += kMaxOperands) {
      auto first = parts.begin() + static_cast<int64_t>(i);
      auto last = parts.begin() + static_cast<int64_t>(std::min(i + kMaxOperands, parts.size()));
      joined.push_back(last - first == 1 ? *first : concat({first, last}, axis, loc));
    }
    parts = std::move(joined);
  }
  return parts[0];
}

Value add_in_parts(std::span<const Value> terms, const SourceLocation& loc) {
  DType type = terms[0].dtype();
  bool narrow = is_float(type) && size_of(type) < size_of(DType::F32);
  // Each part adds the sum so far to as many terms as the others, where that comes out even: then
  // they are one kernel, and a deeper model takes no more of them.
  size_t most = kMaxOperands;
  for (size_t parts = terms.size() / (most - 1) + 1, tried = 0; tried < 8; ++parts, ++tried)
    if ((terms.size() - 1) % parts == 0) {
      most = (terms.size() - 1) / parts + 1;
      break;
    }
  std::vector<Value> part;
  for (size_t i = 0; i < terms.size(); ++i) {
    part.push_back(narrow ? cast(terms[i], DType::F32, loc) : terms[i]);
    if (part.size() == most || i + 1 == terms.size()) part = {add_n(part, loc)};
  }
  return cast(part[0], type, loc);
}

void split_wide(Graph& graph) {
  for (Op* op = graph.front(); op != nullptr;) {
    Op* next = op->next();
    if (op->operands().size() > kMaxOperands && (op->is("concat") || op->is("add_n"))) {
      Value y;
      {
        InsertionScope scope(graph, op, *op, op->from());
        std::vector<Value> operands(op->operands().begin(), op->operands().end());
        y = op->is("add_n") ? add_in_parts(operands, op->loc())
                            : concat_in_parts(std::move(operands),
                                              op->attrs<ConcatAttrs>().axis.value, op->loc());
      }
      if (y.name().empty()) y.set_name(op->result().name());
      op->result().replace_all_uses_with(y);
      graph.erase(*op);
    }
    op = next;
  }
}

bool is_plain_reduction(const Op& op) {
  return op.def().kind == OpKind::Reduce && *op.def().schema.type == typeid(ReduceAttrs);
}

// A reduction seen as runs of neighbouring axes that are all reduced or all kept; axes of extent 1
// belong to no run.
struct Runs {
  struct Run {
    int64_t extent;
    bool reduced;
  };
  std::vector<Run> runs;
  int64_t length = 1;  // elements per output
  int64_t outputs = 1;

  explicit Runs(const Op& op) {
    const Shape& shape = op.operand(0).shape();
    std::vector<int64_t> axes =
        reduced_axes(op.attrs<ReduceAttrs>(), static_cast<int64_t>(shape.size()));
    for (size_t i = 0; i < shape.size(); ++i) {
      bool reduced = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(i));
      (reduced ? length : outputs) *= shape[i];
      if (shape[i] == 1) continue;
      if (runs.empty() || runs.back().reduced != reduced)
        runs.push_back({shape[i], reduced});
      else
        runs.back().extent *= shape[i];
    }
  }
  bool is_row() const { return !runs.empty() && runs.back().reduced; }
  // The elements of one output that lie side by side.
  int64_t contiguous() const { return is_row() ? runs.back().extent : 1; }
  size_t longest() const {
    size_t best = runs.size();
    for (size_t i = 0; i < runs.size(); ++i)
      if (runs[i].reduced && (best == runs.size() || runs[i].extent > runs[best].extent)) best = i;
    return best;
  }
};

// Elements that one lane loads at once.
int64_t vector_of(const Target& target, DType type) {
  if (!target.is_cuda()) return 1;
  return target.vector_bytes / std::max<int64_t>(size_of(type), 2);
}

ReduceOrder order_of(const Op& op, const Target& target) {
  Runs shape(op);
  if (!shape.is_row()) return {1, 1};
  DType type = op.operand(0).dtype();
  int64_t vector = vector_of(target, type);
  // A long row may end within a vector.
  if (shape.contiguous() % vector != 0 && shape.contiguous() < 32 * target.warp) vector = 1;
  // A warp for a short row, a block for a long one; a SIMD register of accumulators on the host.
  int64_t lanes = target.is_cuda()
                      ? (shape.length <= 32 * target.warp ? target.warp : target.block())
                      : target.vector_bytes / size_of(type == DType::F64 ? type : DType::F32);
  auto loads = static_cast<uint64_t>(std::max<int64_t>((shape.length + vector - 1) / vector, 1));
  return {std::min(lanes, static_cast<int64_t>(std::bit_ceil(loads))), vector};
}

// ---- Splitting

// In how many parts to split, or 1: enough to fill the machine, none shorter than is worth a part.
int64_t wanted_parts(const Op& op, const Runs& shape, const Target& target) {
  int64_t extent = shape.runs[shape.longest()].extent;
  int64_t machine = target.multiprocessors;
  int64_t wanted = 1, shortest = 1, fewest = 4;
  if (!target.is_cuda()) {
    // Each core folds one part or two.
    if (machine < 2 || shape.outputs >= 256 || shape.length < 65536) return 1;
    wanted = 2 * machine;
    shortest = 4096;
  } else if (shape.is_row()) {
    // A block of lanes per part.
    if (shape.outputs >= machine) return 1;
    wanted = 2 * machine / std::max<int64_t>(shape.outputs, 1);
    shortest = 4096;
  } else {
    // A lane per part and vector of outputs; what a lane has on its way to it makes up for those
    // that a multiprocessor could hold besides. Fewer parts than 8 are not worth a kernel.
    int64_t vector = vector_of(target, compute_type(op.operand(0).dtype()));
    int64_t lanes = machine * (target.threads_per_multiprocessor / 2) * vector;
    wanted = (lanes + shape.outputs - 1) / std::max<int64_t>(shape.outputs, 1);
    shortest = 32;
    fewest = 8;
  }
  int64_t parts = std::min(wanted, extent / shortest);
  return parts < fewest ? 1 : parts;
}

struct Split {
  int64_t parts = 1, length = 1;  // parts * length >= the extent; the rest is padding
};

// The number of parts nearest below `parts` that divides the extent (into multiples of `vector`),
// unless it is less than half of it: then the extent is padded.
Split choose_split(int64_t extent, int64_t parts, int64_t vector) {
  for (int64_t p = parts; p >= std::max<int64_t>(parts / 2, 2); --p)
    if (extent % p == 0 && extent / p % vector == 0) return {p, extent / p};
  int64_t length = (extent + parts - 1) / parts;
  length = (length + vector - 1) / vector * vector;
  return {(extent + length - 1) / length, length};
}

Value reduce_like(const Op& op, Value x, std::vector<int64_t> axes) {
  return build_op(op.graph(), op.name(), {x}, ReduceAttrs{{std::move(axes)}, false, 0, 0}, op.loc())
      .result();
}

// Replaces the reduction by two; the first of them, or null when it stays whole.
Op* split(Op& op, const Target& target, PassContext& context) {
  Runs shape(op);
  if (shape.outputs == 0 || shape.length == 0 || shape.longest() == shape.runs.size())
    return nullptr;
  int64_t parts = wanted_parts(op, shape, target);
  if (parts == 1) return nullptr;
  size_t at = shape.longest();
  int64_t extent = shape.runs[at].extent;
  bool innermost = at + 1 == shape.runs.size();
  Split s = choose_split(extent, parts, innermost ? vector_of(target, op.operand(0).dtype()) : 1);

  Graph& graph = op.graph();
  InsertionScope scope(graph, &op, op, op.from());
  Op* before = op.prev();
  Value x = op.operand(0);
  DType stored = x.dtype();
  Fn combine = combine_of(op);
  // Sums and products of bf16 are kept in f32 and rounded once: so are the parts of one.
  if (combine == Fn::Add || combine == Fn::Mul) x = cast(x, compute_type(stored));
  Shape merged, apart;
  std::vector<int64_t> first_axes, second_axes;
  for (size_t i = 0; i < shape.runs.size(); ++i) {
    merged.push_back(shape.runs[i].extent);
    if (i == at) {
      second_axes.push_back(static_cast<int64_t>(apart.size() - first_axes.size()));
      apart.push_back(s.parts);
    }
    if (shape.runs[i].reduced) first_axes.push_back(static_cast<int64_t>(apart.size()));
    apart.push_back(i == at ? s.length : shape.runs[i].extent);
  }
  x = reshape(x, merged);
  if (int64_t rest = s.parts * s.length - extent; rest > 0) {
    std::vector<int64_t> low(merged.size(), 0), high(merged.size(), 0);
    high[at] = rest;
    Cell identity = identity_element(combine, x.dtype());
    x = pad(x, low, high, is_float(x.dtype()) ? Number(identity.f) : Number(identity.i));
  }
  x = reshape(x, apart);
  Value partial = reduce_like(op, x, first_axes);
  Value total = reduce_like(op, partial, second_axes);
  total = reshape(cast(total, stored), op.result().shape());
  context.remark(op.loc(),
                 fmt::format("split: {} over {} elements for {} outputs, in {} parts of {}",
                             op.name(), shape.length, shape.outputs, s.parts, s.length));
  if (total.name().empty()) total.set_name(op.result().name());
  op.result().replace_all_uses_with(total);
  return before != nullptr ? before->next() : graph.front();
}

// The reduction again, with its order.
void set_order(Op& op, ReduceOrder order) {
  Graph& graph = op.graph();
  ReduceAttrs attrs = op.attrs<ReduceAttrs>();
  attrs.lanes = order.lanes;
  attrs.vector = order.vector;
  Value now;
  {
    InsertionScope scope(graph, &op, op, op.from());
    now = build_op(graph, op.name(), {op.operand(0)}, attrs, op.loc()).result();
  }
  now.set_name(op.result().name());
  op.result().replace_all_uses_with(now);
  graph.erase(op);
}

void order_reductions(Graph& graph, const Target& target, PassContext& context) {
  for (Op* op = graph.front(); op != nullptr;) {
    Op* next = op->next();
    // An order that is there already was chosen by someone who knew better.
    if (is_plain_reduction(*op) && op->attrs<ReduceAttrs>().lanes == 0) {
      if (Op* first = split(*op, target, context)) {
        next = first;
        graph.erase(*op);
      } else {
        set_order(*op, order_of(*op, target));
      }
    }
    op = next;
  }
}

// ---- Running folds

// Rows longer than this go in parts of a fixed length, whatever the machine: sums by parts are also
// the more exact ones. Where rows are many, only the exactness counts.
constexpr int64_t kLongestRun = 8192, kPartOfRun = 2048;

// What stands for the op: itself with an order, or two of its kind.
Value ordered_running(const Op& op, const Target& target, PassContext& context) {
  RunningAttrs attrs = op.attrs<RunningAttrs>();
  Value x = op.operand(0);
  DType stored = x.dtype();
  int64_t n = x.shape().back();
  if (n <= kLongestRun) {
    attrs.lanes = attrs.vector = 1;
    if (target.is_cuda() && n > 0) {
      attrs.vector = vector_of(target, compute_type(stored));
      auto runs = static_cast<uint64_t>((n + attrs.vector - 1) / attrs.vector);
      attrs.lanes = std::min(target.block(), static_cast<int64_t>(std::bit_ceil(runs)));
    }
    return running(x, attrs, op.loc());
  }

  bool product = attrs.combine == "prod";
  auto combine = [&](Value a, Value b) { return product ? a * b : a + b; };
  int64_t parts = (n + kPartOfRun - 1) / kPartOfRun;
  Shape flat(x.shape()), apart(x.shape());
  flat.back() = parts * kPartOfRun;
  apart.back() = parts;
  apart.push_back(kPartOfRun);
  auto rank = static_cast<size_t>(x.rank());
  std::vector<int64_t> none(rank, 0), rest(rank, 0);
  rest.back() = flat.back() - n;
  x = cast(x, compute_type(stored));
  if (rest.back() > 0) x = pad(x, none, rest, product ? 1 : 0);
  x = reshape(x, apart);
  Value inner = running(x, attrs, op.loc());
  // What a part amounts to is the value at its far end, with that element itself.
  int64_t end = attrs.reverse ? 0 : kPartOfRun - 1, axis = x.rank() - 1;
  Value total = slice_axis(inner, axis, end, end + 1);
  if (attrs.exclusive) total = combine(total, slice_axis(x, axis, end, end + 1));
  RunningAttrs over{attrs.combine, attrs.reverse, true};
  Shape totals(apart.begin(), apart.end() - 1), kept(apart);
  kept.back() = 1;
  Value before = reshape(running(reshape(total, totals), over, op.loc()), kept);
  Value y = reshape(combine(broadcast_to(before, apart), inner), flat);
  if (rest.back() > 0) y = slice_axis(y, axis - 1, 0, n);
  y = cast(y, stored);
  context.remark(op.loc(), fmt::format("split: running {} of {} elements, in {} parts of {}",
                                       attrs.combine, n, parts, kPartOfRun));
  return y;
}

// Those that a split makes too, until each has its order.
void order_running_all(Graph& graph, const Target& target, PassContext& context) {
  for (Op* op = graph.front(); op != nullptr;) {
    Op *next = op->next(), *before = op->prev();
    if (op->is("running") && op->attrs<RunningAttrs>().lanes == 0) {
      Value y;
      {
        InsertionScope scope(graph, op, *op, op->from());
        y = ordered_running(*op, target, context);
      }
      if (y.name().empty()) y.set_name(op->result().name());
      op->result().replace_all_uses_with(y);
      graph.erase(*op);
      next = before != nullptr ? before->next() : graph.front();
    }
    op = next;
  }
}

}  // namespace

void run_expand(Module& module, PassContext& context) {
  std::vector<Graph*> entries = detail::entry_graphs(module);
  for (Graph* graph : entries) expand_all(*graph);
  // Calls are gone, and so are the graphs called, except those that are kernels already.
  detail::erase_uncalled(module, entries);
  for (const auto& graph : module.graphs()) {
    expand_all(*graph);
    split_wide(*graph);
    order_running_all(*graph, module.target, context);
    order_reductions(*graph, module.target, context);
  }
}

}  // namespace sinter
