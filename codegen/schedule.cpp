#include <fmt/format.h>
#include <sinter/codegen/schedule.h>
#include <sinter/ir/diagnostic.h>

#include <algorithm>

namespace sinter {
namespace {

constexpr int64_t kUnrolledElements = 32;
// Column kernels on CUDA: bytes that a thread loads at once, terms at most, and how many scalar
// operations a term may take for so many; blocks wanted for each multiprocessor.
constexpr int64_t kLoadedBytes = 128, kTerms = 16, kFewScalars = 4, kBlocksEach = 8;
constexpr int64_t kHostChunk = 4096;
constexpr int64_t kHostColumnChunk = 256;
// Columns of a scatter that one iteration has to itself, and totals that it may keep.
constexpr int64_t kScatterChunk = 64, kScatterRoom = int64_t{1} << 16;

// The largest divisor of n that is at most `most`.
int64_t largest_divisor(int64_t n, int64_t most) {
  for (int64_t d = std::min(n, most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Values that a lane may keep across phases: registers on CUDA, as many as leave a multiprocessor
// the threads of a full block; on the host what takes up a small part of a core's cache.
int64_t kept_values(const Target& target) {
  return target.is_cuda() ? target.registers / target.threads
                          : target.l2 / 16 / static_cast<int64_t>(sizeof(double));
}

// The widest access that suits the buffers that make up the traffic: one vector of their widest
// element. What every row reads again (a bias in f32) comes from the cache, in several accesses.
int widest_vector(const Kernel& k, const Target& target) {
  int64_t most = 0, bytes = 1;
  for (const KernelBuffer& b : k.buffers) most = std::max(most, b.type.elements());
  for (const KernelBuffer& b : k.buffers)
    if (b.type.elements() >= std::max(most / 4, k.extent[kAxisQ] / 4))
      bytes = std::max(bytes, size_of(b.type.dtype));
  return static_cast<int>(std::clamp<int64_t>(target.vector_bytes / bytes, 1, 8));
}

// What it takes to make an element of a node, in scalar operations; worth keeping is what saves at
// least kWorthKeeping. On the host a row lies in the cache, so that loading it again costs no more
// than a kept copy.
constexpr int64_t kCostOfLoad = 8, kCostOfCall = 16, kWorthKeeping = 8;
int64_t cost_of(const KernelNode& n, bool loads) {
  if (!(n.domain & axis_bit(kAxisQ))) return 0;
  if (n.kind == KernelNode::Load) return loads ? kCostOfLoad : 0;
  if (n.kind == KernelNode::Random) return kCostOfCall;
  if (n.kind == KernelNode::Scalar) return intrinsic(n.fn).costly ? kCostOfCall : 1;
  return 0;
}

// Registers that a kept element takes: on CUDA two of 16-bit floats share one. On the host a place.
double room_of(const KernelNode& n, bool loads) {
  if (!loads) return 1;
  return is_packed(n.type) ? 0.5 : n.type == DType::F64 || n.type == DType::I64 ? 2 : 1;
}

// Whether a load waits for nothing.
bool is_loadable(const KernelNode& n) {
  return n.kind == KernelNode::Load && node_inputs(n).empty();
}

// Nodes to keep for later phases, as far as `capacity` elements of a row reach: those that save the
// most work for the room that they take, loads and functions below them included. What is left
// goes to elements that a later phase alone reads: loaded before the first, they are there when
// that phase begins.
std::vector<int> choose_kept(const Kernel& k, int64_t elements, int64_t capacity, bool loads) {
  std::vector<int> kept;
  if (elements == 0) return kept;
  auto is_kept = [&](size_t i) {
    return std::find(kept.begin(), kept.end(), static_cast<int>(i)) != kept.end();
  };
  auto work = [&] {
    int64_t total = 0;
    Phases phases = make_phases(k, kept);
    std::vector<bool> made(k.nodes.size(), false);
    for (const auto& needed : phases.needed)
      for (size_t i = 0; i < needed.size(); ++i) {
        if (!needed[i] || made[i]) continue;
        total += cost_of(k.nodes[i], loads);
        made[i] = is_kept(i);
      }
    return total;
  };
  double room = static_cast<double>(capacity) / static_cast<double>(elements);
  auto fits = [&](size_t i) { return room_of(k.nodes[i], loads) <= room; };
  auto keep = [&](size_t i) {
    kept.push_back(static_cast<int>(i));
    room -= room_of(k.nodes[i], loads);
  };
  for (int64_t now = work();;) {
    Phases phases = make_phases(k, kept);
    size_t best = k.nodes.size();
    double most = 0;
    int64_t left = 0;
    // The last node in order of those that save as much.
    for (size_t i = k.nodes.size(); i-- > 0;) {
      const KernelNode& n = k.nodes[i];
      bool element = n.kind == KernelNode::Load || n.kind == KernelNode::Random ||
                     n.kind == KernelNode::Scalar;
      if (!element || !(n.domain & axis_bit(kAxisQ)) || is_kept(i) || !fits(i)) continue;
      int uses = 0;
      for (const auto& needed : phases.needed) uses += needed[i];
      if (uses < 2) continue;
      kept.push_back(static_cast<int>(i));
      int64_t then = work();
      kept.pop_back();
      double saved = static_cast<double>(now - then) / room_of(n, loads);
      if (now - then < kWorthKeeping || saved <= most) continue;
      best = i;
      most = saved;
      left = then;
    }
    if (best == k.nodes.size()) break;
    keep(best);
    now = left;
  }
  if (!loads) return kept;
  Phases phases = make_phases(k, kept);
  constexpr AxisSet kElement = axis_bit(kAxisP) | axis_bit(kAxisQ);
  for (size_t i = 0; i < k.nodes.size(); ++i) {
    const KernelNode& n = k.nodes[i];
    bool later = false;
    for (const auto& needed : phases.needed) later = later || needed[i];
    if (n.kind == KernelNode::Load && (n.domain & kElement) == kElement && later &&
        !phases.needed[0][i] && !is_kept(i) && is_loadable(n) && fits(i))
      keep(i);
  }
  return kept;
}

// Column kernels: how many terms' loads may be on their way at once. Threads are few and memory is
// far, so many; as many as leave registers, and code that is not too long.
int64_t terms_at_once(const Kernel& k, int vector) {
  int64_t bytes = 0, scalars = 0, longest = 0;
  for (const KernelNode& n : k.nodes) {
    if (n.kind == KernelNode::Reduce) {
      if (n.order.vector > 1) return 1;
      longest = k.extent[kAxisR];
    }
    scalars += n.kind == KernelNode::Scalar && (n.domain & axis_bit(kAxisR));
    if (n.kind != KernelNode::Load || !(n.domain & axis_bit(kAxisR))) continue;
    bool wide = (n.domain & axis_bit(kAxisQ)) && reads_vectors(n, vector);
    bytes += size_of(n.type) * (wide ? vector : 1);
  }
  if (bytes == 0) return 1;
  int64_t most = std::min(kLoadedBytes / bytes, scalars <= kFewScalars ? kTerms : kTerms / 4);
  int64_t batch = 1;
  while (2 * batch <= std::min(most, longest)) batch *= 2;
  return batch;
}

// Pointwise kernels on CUDA: how many strips a thread should have. One that computes for long after
// its loads leaves memory idle meanwhile; with the loads of two strips it has as much on its way
// again. Many waves of blocks are left, and every thread has as many strips.
int strips_at_once(const Kernel& k, const Target& target, int vector, int64_t blocks, int block) {
  constexpr int kAtOnce = 2, kWaves = 16, kBytes = 32;
  bool computes = false;
  int64_t bytes = 0;
  for (const KernelNode& n : k.nodes) {
    const bool element = (n.domain & axis_bit(kAxisQ)) != 0;
    computes = computes || (n.kind == KernelNode::Scalar && element && intrinsic(n.fn).costly);
    if (n.kind == KernelNode::Random || n.kind == KernelNode::Check) return 1;
    if (n.kind != KernelNode::Load || !element) continue;
    if (!reads_vectors(n, vector)) return 1;
    if (k.extent[kAxisP] == 1 || (n.domain & axis_bit(kAxisP))) bytes += size_of(n.type) * vector;
  }
  const int64_t wave = target.multiprocessors * target.threads_per_multiprocessor / block;
  const bool whole = k.extent[kAxisP] * (k.extent[kAxisQ] / vector) % (kAtOnce * block) == 0;
  return computes && whole && bytes <= kBytes && blocks >= kWaves * wave ? kAtOnce : 1;
}

}  // namespace

bool is_packed(DType type) {
  return is_float(type) && size_of(type) == 2;
}

std::vector<int> node_inputs(const KernelNode& n) {
  std::vector<int> in = n.args;
  n.index.collect_gathered(in);
  for (const GuardTerm& t : n.guard.terms) t.e.collect_gathered(in);
  return in;
}

std::vector<int> node_levels(const Kernel& k) {
  std::vector<int> level(k.nodes.size(), 0);
  for (size_t i = 0; i < k.nodes.size(); ++i) {
    for (int a : node_inputs(k.nodes[i]))
      level[i] = std::max(level[i], level[static_cast<size_t>(a)]);
    if (k.nodes[i].kind == KernelNode::Reduce) ++level[i];
  }
  return level;
}

bool is_vector_access(const IndexExpr& e, int width) {
  // Memory moves by powers of two; a reduction may count in threes.
  if ((width & (width - 1)) != 0) return false;
  int64_t step = 0;
  for (const IndexExpr::Term& t : e.terms()) {
    if (t.atom->kind == IndexAtom::Axis && t.atom->id == kAxisQ) {
      step = t.coefficient;
      continue;
    }
    if (t.atom->of) {
      std::vector<int> axes;
      t.atom->of->collect_axes(axes);
      if (std::find(axes.begin(), axes.end(), kAxisQ) != axes.end()) return false;
    }
    if (t.coefficient % width != 0) return false;
  }
  return step == 1 && e.constant() % width == 0;
}

bool is_straight(const Guard& guard) {
  for (const GuardTerm& term : guard.terms) {
    std::vector<int> gathered;
    term.e.collect_gathered(gathered);
    if (!gathered.empty()) return false;
    for (const IndexExpr::Term& t : term.e.terms()) {
      std::vector<int> below;
      if (t.atom->of) t.atom->of->collect_axes(below);
      if (std::find(below.begin(), below.end(), kAxisQ) != below.end()) return false;
    }
  }
  return true;
}

bool reads_vectors(const KernelNode& load, int width) {
  return load.kind == KernelNode::Load && !load.guard.never &&
         is_vector_access(load.index, width) && is_straight(load.guard);
}

Phases make_phases(const Kernel& k, const std::vector<int>& kept) {
  std::vector<int> level = node_levels(k);
  Phases out;
  for (int l : level) out.last = std::max(out.last, l);
  // Terms that are stored need their loop over r, be there a reduction left in it or not.
  for (const KernelStore& s : k.stores)
    if (s.axes & axis_bit(kAxisR)) out.last = std::max(out.last, 1);
  out.reductions.resize(static_cast<size_t>(out.last));
  for (size_t i = 0; i < k.nodes.size(); ++i)
    if (k.nodes[i].kind == KernelNode::Reduce)
      out.reductions[static_cast<size_t>(level[i] - 1)].push_back(static_cast<int>(i));
  std::vector<bool> made(k.nodes.size(), false);  // kept nodes that an earlier phase has made
  for (int phase = 0; phase <= out.last; ++phase) {
    std::vector<bool> needed(k.nodes.size(), false);
    auto need = [&](int i) { needed[static_cast<size_t>(i)] = true; };
    if (phase < out.last)
      for (int r : out.reductions[static_cast<size_t>(phase)])
        need(k.nodes[static_cast<size_t>(r)].args[0]);
    for (const KernelStore& s : k.stores)
      if (phase == (s.axes & axis_bit(kAxisR) ? 0 : out.last)) need(s.node);
    if (phase == 0)
      for (int i : kept)
        if (is_loadable(k.nodes[static_cast<size_t>(i)])) need(i);
    for (size_t i = k.nodes.size(); i-- > 0;) {
      if (!needed[i] || k.nodes[i].kind == KernelNode::Reduce || made[i]) continue;
      for (int a : node_inputs(k.nodes[i])) need(a);
    }
    for (int i : kept)
      if (needed[static_cast<size_t>(i)]) made[static_cast<size_t>(i)] = true;
    out.needed.push_back(std::move(needed));
  }
  return out;
}

std::optional<PlacedTerms> placed_terms(const Kernel& k) {
  if (k.kind != Kernel::Column) return std::nullopt;
  for (const KernelStore& st : k.stores)
    if (st.axes & axis_bit(kAxisR)) return std::nullopt;
  auto node = [&](int i) -> const KernelNode& { return k.nodes[static_cast<size_t>(i)]; };
  PlacedTerms t;
  for (size_t i = 0; i < k.nodes.size(); ++i)
    if (k.nodes[i].kind == KernelNode::Reduce) {
      if (t.reduce >= 0) return std::nullopt;
      t.reduce = static_cast<int>(i);
    }
  if (t.reduce < 0 || !(node(t.reduce).order == ReduceOrder{})) return std::nullopt;
  const KernelNode& reduce = node(t.reduce);
  const KernelNode& term = node(reduce.args[0]);
  if (term.kind != KernelNode::Scalar || term.fn != Fn::Select) return std::nullopt;
  t.value = term.args[1];
  t.none = term.args[2];
  const KernelNode& none = node(t.none);
  if (none.kind != KernelNode::Literal) return std::nullopt;
  // 0 adds nothing to a sum that starts from it, and -1 is below every position.
  bool zero = is_float(none.type) ? none.literal.f == 0 : none.literal.i == 0;
  bool position = node(t.value).kind == KernelNode::Index && none.literal.i == -1;
  if (!(reduce.fn == Fn::Add && zero) && !(reduce.fn == Fn::Max && position)) return std::nullopt;
  const KernelNode& same = node(term.args[0]);
  if (same.kind != KernelNode::Scalar || same.fn != Fn::Eq) return std::nullopt;
  // The place's own number, as an integer of the index's type.
  auto is_place = [&](int i, KernelAxis axis) {
    while (node(i).kind == KernelNode::Scalar && node(i).fn == Fn::Cast && is_integer(node(i).type))
      i = node(i).args[0];
    return node(i).kind == KernelNode::Index &&
           node(i).index == IndexExpr::axis(axis, k.extent[axis]);
  };
  for (KernelAxis axis : {kAxisP, kAxisQ})
    for (size_t side : {size_t{0}, size_t{1}})
      if (k.extent[axis] > 1 && t.index < 0 && is_place(same.args[side], axis)) {
        t.axis = axis;
        t.index = same.args[1 - side];
      }
  if (t.index < 0 || !is_integer(node(t.index).type)) return std::nullopt;
  AxisSet allowed = axis_bit(kAxisR);
  if (t.axis == kAxisQ) allowed = static_cast<AxisSet>(allowed | axis_bit(kAxisP));
  if (node(t.index).domain & ~allowed) return std::nullopt;
  bool in_result = std::any_of(k.stores.begin(), k.stores.end(), [&](const KernelStore& s) {
    return k.buffers[static_cast<size_t>(s.buffer)].type.dtype == reduce.type;
  });
  if (!in_result && scatter_room(k, t, kScatterChunk) > kScatterRoom) return std::nullopt;
  return t;
}

int64_t scatter_room(const Kernel& k, const PlacedTerms& t, int64_t chunk) {
  return k.extent[t.axis] * (t.axis == kAxisQ ? 1 : chunk);
}

Schedule make_schedule(const Kernel& k, const Target& target, bool in_place) {
  Schedule s;
  s.cuda = target.is_cuda();
  int64_t p = k.extent[kAxisP], q = k.extent[kAxisQ];
  if (k.kind == Kernel::Prefix) {
    PrefixOrder order;
    for (const KernelNode& n : k.nodes)
      if (n.kind == KernelNode::Prefix) order = n.prefix;
    s.lanes = order.lanes;
    s.vector = static_cast<int>(order.vector);
    s.iterations = divide_up(q, s.lanes * s.vector);
    if (s.cuda)
      s.rows_per_block = static_cast<int>(std::max<int64_t>(
          std::min(target.block() / s.lanes, divide_up(p, target.multiprocessors)), 1));
    s.block = static_cast<int>(s.lanes * s.rows_per_block);
    s.grid = divide_up(p, s.rows_per_block);
    return s;
  }
  if (k.kind == Kernel::Row) {
    ReduceOrder order;
    for (const KernelNode& n : k.nodes)
      if (n.kind == KernelNode::Reduce) order = n.order;
    s.lanes = order.lanes;
    s.vector = static_cast<int>(order.vector);
    if (!s.cuda) {
      s.grid = p;
      s.chunk = s.lanes * s.vector;
      s.kept = choose_kept(k, q, kept_values(target), false);
      return s;
    }
    // A row longer than a warp has its block to itself; of short ones as many as fill the block,
    // the last block's spare lanes repeating the last row.
    s.rows_per_block = s.lanes > target.warp ? 1 : static_cast<int>(target.block() / s.lanes);
    while (s.rows_per_block * s.lanes > 2 * target.warp && p % s.rows_per_block != 0 && p < 4096)
      s.rows_per_block /= 2;
    s.block = static_cast<int>(s.lanes * s.rows_per_block);
    s.grid = divide_up(p, s.rows_per_block);
    s.iterations = divide_up(q, s.lanes * s.vector);
    int64_t elements = s.iterations * s.vector;
    if (elements <= kUnrolledElements) {
      s.kept = choose_kept(k, elements, kept_values(target), true);
      s.unrolled = !s.kept.empty();
    }
    return s;
  }
  if (s.cuda) {
    int v = widest_vector(k, target);
    // Vector accesses must pay: some access runs along q.
    auto usable = [&](int width) {
      if (q % width != 0) return false;
      bool any = false;
      for (const KernelNode& n : k.nodes) any = any || reads_vectors(n, width);
      for (const KernelStore& st : k.stores) any = any || is_vector_access(st.at, width);
      return any;
    };
    while (v > 1 && !usable(v)) v /= 2;
    // A small kernel is better spread over more threads, and so is one that takes its time in each.
    int64_t fewest = target.multiprocessors * target.block() * (k.kind == Kernel::Column ? 2 : 1);
    while (v > 1 && p * q / v < fewest) v /= 2;
    s.vector = v;
    s.block = static_cast<int>(target.block());
    if (k.kind == Kernel::Column) {
      s.batch = terms_at_once(k, v);
      // Columns are few: smaller blocks share them out among the multiprocessors more evenly.
      while (s.block > 2 * target.warp &&
             p * (q / v) < kBlocksEach * target.multiprocessors * s.block)
        s.block /= 2;
    }
    s.grid = divide_up(p * (q / v), s.block);
    if (k.kind == Kernel::Pointwise && v > 1) {
      s.strips = strips_at_once(k, target, v, s.grid, s.block);
      s.grid /= s.strips;
    }
    if (s.batch > 1)
      s.blocks = static_cast<int>(
          std::max<int64_t>(std::min(divide_up(s.grid, target.multiprocessors),
                                     target.threads_per_multiprocessor * 3 / 8 / s.block),
                            1));
    return s;
  }
  // Totals that grow in a result would overwrite an operand there.
  if (std::optional<PlacedTerms> terms = placed_terms(k); terms && !in_place) {
    // Who walks all terms has a strip of q, or a row of places, to itself.
    s.by_place = true;
    s.chunk = terms->axis == kAxisQ ? q : std::min<int64_t>(std::max<int64_t>(q, 1), kScatterChunk);
    s.grid = terms->axis == kAxisQ ? p : divide_up(q, s.chunk);
    return s;
  }
  int64_t most = k.kind == Kernel::Column ? kHostColumnChunk : kHostChunk;
  s.chunk = q <= most ? std::max<int64_t>(q, 1) : largest_divisor(q, most);
  if (s.chunk < most / 8 && q > most) s.chunk = most;
  s.grid = p * divide_up(q, s.chunk);
  return s;
}

std::string print(const Schedule& s, const Kernel& k) {
  std::string out = s.cuda ? "cuda { " : "host { ";
  if (k.kind == Kernel::Row || k.kind == Kernel::Prefix) {
    if (s.cuda) {
      out +=
          fmt::format("p: grid {}, rows {}; q: lane {}, vector {}, {} {}", s.grid, s.rows_per_block,
                      s.lanes, s.vector, s.unrolled ? "unroll" : "serial", s.iterations);
    } else if (k.kind == Kernel::Prefix) {
      out += "p: cores; q: serial";
    } else {
      out += fmt::format("p: cores; q: simd {}", s.chunk);
    }
    for (int n : s.kept) out += fmt::format("; %{}: {}", n, s.cuda ? "registers" : "row");
  } else {
    std::string r = k.kind == Kernel::Column ? "; r: serial" : "";
    if (s.batch > 1) r += fmt::format(", {} at once", s.batch);
    if (s.strips > 1) r += fmt::format("; {} strips", s.strips);
    if (s.cuda)
      out += fmt::format("p, q: grid {}, lane {}; q: vector {}{}", s.grid, s.block, s.vector, r);
    else
      out += s.by_place ? fmt::format("cores {}; q: simd {}; r: serial, each to its place", s.grid,
                                      s.chunk)
                        : fmt::format("p: cores; q: cores {}, simd {}{}", s.grid, s.chunk, r);
  }
  return out + " }";
}

}  // namespace sinter
