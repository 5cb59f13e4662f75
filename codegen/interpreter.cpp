// Runs scheduled loops on host memory, lane by lane, and looks for what would go wrong on a GPU.
//
// The lanes of a block go in lockstep: each statement is done for all active lanes before the next,
// an If narrows the set of active lanes. Lockstep hides races, so they are looked for: between two
// barriers no lane may read or write what another lane wrote in shared memory, nor write what
// another lane read; nor may two lanes meet on one element of global memory that is written.

#include <sinter/codegen/detail/flat.h>
#include <sinter/codegen/detail/text.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/numeric.h>
#include <sinter/ir/philox.h>

#include <cstring>
#include <numeric>

namespace sinter {
namespace {

using detail::FlatGuard;
using detail::FlatIndex;
using detail::FlatOp;
using detail::FlatProgram;

int64_t floor_quotient(int64_t a, int64_t k) {
  const int64_t q = a / k;
  return a % k < 0 ? q - 1 : q;
}

Cell load_cell(DType type, const void* data, int64_t i) {
  Cell v{};
  switch (type) {
    case DType::F64:
      v.f = static_cast<const double*>(data)[i];
      break;
    case DType::F32:
      v.f = static_cast<double>(static_cast<const float*>(data)[i]);
      break;
    case DType::BF16:
    case DType::F16:
      v.f = load_as_double(type, data, i);
      break;
    default:
      v.i = load_as_int64(type, data, i);
      break;
  }
  return v;
}

void store_cell(DType type, void* data, int64_t i, Cell v) {
  switch (type) {
    case DType::F64:
      static_cast<double*>(data)[i] = v.f;
      break;
    case DType::F32:
      static_cast<float*>(data)[i] = static_cast<float>(v.f);
      break;
    case DType::BF16:
    case DType::F16:
      store_from_double(type, data, i, v.f);
      break;
    default:
      store_from_int64(type, data, i, v.i);
      break;
  }
}

Cell apply(const Intrinsic& row, DType type, bool gives_bool, Cell a, Cell b, Cell c) {
  Cell out{};
  if (type == DType::F32) {
    const float v =
        row.f32(static_cast<float>(a.f), static_cast<float>(b.f), static_cast<float>(c.f));
    if (gives_bool)
      out.i = v != 0.0F;
    else
      out.f = static_cast<double>(v);
  } else if (type == DType::F64) {
    const double v = row.f64(a.f, b.f, c.f);
    if (gives_bool)
      out.i = v != 0.0;
    else
      out.f = v;
  } else {
    out.i = row.integer(a.i, b.i, c.i);
    out = canonical(gives_bool ? DType::Bool : type, out);
  }
  return out;
}

// Who touched one element of global memory: block * lanes + lane + 1, 0 for nobody.
constexpr uint64_t kMany = ~uint64_t{0};

struct Storage {
  char* data = nullptr;
  DType type = DType::F32;
  int64_t size = 0;
  int tracked = -1;  // the output whose bytes these are; -1: read-only memory
};

struct Tracker {
  std::vector<uint64_t> writer;
  std::vector<uint64_t> reader;  // empty where nothing reads the output
};

struct RegisterElement {
  Cell value;
  uint32_t generation;
};

struct SharedElement {
  Cell value;
  uint32_t generation;
  uint32_t write_epoch, read_epoch;
  int writer, reader;  // lanes; reader -1: several
};

struct ArrayStorage {
  std::vector<RegisterElement> registers;  // [lane][element]
  std::vector<uint32_t> lane_generation;
  std::vector<SharedElement> shared;
  uint32_t generation = 0;
};

// The active lanes.
struct Mask {
  const int* lanes;
  int count;
};

class Interpreter {
 public:
  Interpreter(const LoopProgram& program, std::span<void* const> buffers,
              std::span<FaultSlot> faults, std::span<const uint32_t> sites)
      : p_(program),
        flat_(detail::flatten(program)),
        faults_(faults),
        sites_(sites),
        lanes_(flat_.lanes) {
    SINTER_CHECK(buffers.size() == program.buffers.size(), "{}: {} buffers, got {}", program.symbol,
                 program.buffers.size(), buffers.size());
    SINTER_CHECK(faults.size() >= program.faults.size(), "{}: {} fault slots, got {}",
                 program.symbol, program.faults.size(), faults.size());
    SINTER_CHECK(sites.size() == program.sites.size(), "{}: {} sites, got {}", program.symbol,
                 program.sites.size(), sites.size());
    SINTER_CHECK(!flat_.ops.empty() && flat_.ops[0].kind == FlatOp::For && !flat_.ops[0].lanes &&
                     flat_.ops[0].end == flat_.ops.size(),
                 "{}: a program is one loop over blocks", program.symbol);
    bind(buffers);
    const auto lanes = static_cast<size_t>(lanes_);
    vars_.resize(program.var_types.size() * lanes);
    loops_.resize(static_cast<size_t>(flat_.loops));
    scratch_.resize(lanes);
    masks_.resize((static_cast<size_t>(flat_.max_depth) + 1) * lanes);
    std::iota(masks_.begin(), masks_.begin() + lanes_, 0);
    arrays_.resize(flat_.arrays.size());
    for (size_t a = 0; a < arrays_.size(); ++a) {
      const FlatProgram::ArrayInfo& info = flat_.arrays[a];
      const auto size = static_cast<size_t>(info.size);
      if (info.space == Space::Shared) {
        arrays_[a].shared.resize(size);
      } else {
        arrays_[a].registers.resize(size * lanes);
        arrays_[a].lane_generation.resize(lanes);
      }
    }
  }

  void run() {
    const FlatOp& outer = flat_.ops[0];
    for (block_ = 0; block_ < outer.extent; ++block_) {
      loops_[static_cast<size_t>(outer.loop)] = block_;
      ++epoch_;
      run(1, outer.end, {masks_.data(), lanes_}, 0);
    }
  }

 private:
  template <typename... Args>
  [[noreturn, gnu::noinline]] void fail(const FlatOp& op, int lane,
                                        fmt::format_string<Args...> format, Args&&... args) const {
    throw InternalError(fmt::format("interpreter: {}: `{}`: block {}, lane {}: {}", p_.symbol,
                                    detail::statement_text(p_, *op.stmt), block_, lane,
                                    fmt::format(format, std::forward<Args>(args)...)));
  }

  // Finds which buffers share storage: an output may take over an input's, as a whole.
  void bind(std::span<void* const> buffers) {
    storage_.resize(buffers.size());
    trackers_.resize(buffers.size());
    const auto bytes = [&](size_t i) { return p_.buffers[i].type.bytes(); };
    for (size_t i = 0; i < buffers.size(); ++i) {
      const TensorType& type = p_.buffers[i].type;
      storage_[i] = {static_cast<char*>(buffers[i]), type.dtype, type.elements(), -1};
      SINTER_CHECK(buffers[i] != nullptr || type.bytes() == 0, "{}: no memory for {}", p_.symbol,
                   p_.buffers[i].name);
      if (!p_.buffers[i].output) continue;
      storage_[i].tracked = static_cast<int>(i);
      trackers_[i].writer.resize(static_cast<size_t>(type.elements()));
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      for (size_t o = 0; o < buffers.size(); ++o) {
        if (i == o || !p_.buffers[o].output) continue;
        const char *a = storage_[i].data, *b = storage_[o].data;
        if (a >= b + bytes(o) || b >= a + bytes(i)) continue;
        SINTER_CHECK(!p_.buffers[i].output, "{}: outputs {} and {} overlap", p_.symbol,
                     p_.buffers[i].name, p_.buffers[o].name);
        SINTER_CHECK(a == b && bytes(i) == bytes(o) &&
                         size_of(storage_[i].type) == size_of(storage_[o].type),
                     "{}: {} overlaps {} without being the same storage", p_.symbol,
                     p_.buffers[i].name, p_.buffers[o].name);
        storage_[i].tracked = static_cast<int>(o);
        trackers_[o].reader.resize(trackers_[o].writer.size());
      }
    }
  }

  Cell* var(int v) { return vars_.data() + static_cast<size_t>(v) * static_cast<size_t>(lanes_); }
  const Cell* var(int v) const {
    return vars_.data() + static_cast<size_t>(v) * static_cast<size_t>(lanes_);
  }

  int64_t index(int i, int lane) const {
    const FlatIndex& e = flat_.indices[static_cast<size_t>(i)];
    int64_t value = e.constant;
    for (const FlatIndex::Term& t : e.terms) {
      int64_t atom = 0;
      switch (t.kind) {
        case FlatIndex::Loop:
          atom = loops_[static_cast<size_t>(t.id)];
          break;
        case FlatIndex::Lane:
          atom = lane;
          break;
        case FlatIndex::Variable:
          atom = var(t.id)[lane].i;
          break;
        case FlatIndex::Div:
          atom = floor_quotient(index(t.id, lane), t.divisor);
          break;
        case FlatIndex::Mod: {
          const int64_t inner = index(t.id, lane);
          atom = inner - floor_quotient(inner, t.divisor) * t.divisor;
          break;
        }
      }
      value += t.coefficient * atom;
    }
    return value;
  }

  bool holds(int g, int lane) const {
    if (g < 0) return true;
    const FlatGuard& guard = flat_.guards[static_cast<size_t>(g)];
    if (guard.never) return false;
    for (const FlatGuard::Term& t : guard.terms) {
      const int64_t value = index(t.index, lane);
      if (value < t.low || value >= t.high) return false;
    }
    return true;
  }

  uint64_t self(int lane) const {
    return static_cast<uint64_t>(block_) * static_cast<uint64_t>(lanes_) +
           static_cast<uint64_t>(lane) + 1;
  }
  std::string who(uint64_t id) const {
    if (id == kMany) return "several lanes";
    const uint64_t lanes = static_cast<uint64_t>(lanes_);
    return fmt::format("block {}, lane {}", (id - 1) / lanes, (id - 1) % lanes);
  }

  void check_bounds(const FlatOp& op, const Storage& s, int64_t at, int lane) const {
    const int64_t last = at + op.width - 1;
    if (at < 0 || last >= s.size) [[unlikely]]
      fail(op, lane, "index {} is outside 0..{} of {}", at < 0 ? at : last, s.size,
           p_.buffers[static_cast<size_t>(op.buffer)].name);
    if (at % op.width != 0) [[unlikely]]
      fail(op, lane, "index {} is not aligned to the width {}", at, op.width);
  }

  Cell read_global(const FlatOp& op, const Storage& s, int64_t at, int lane) {
    if (s.tracked >= 0) {
      Tracker& t = trackers_[static_cast<size_t>(s.tracked)];
      const uint64_t writer = t.writer[static_cast<size_t>(at)];
      if (writer != 0 && writer != self(lane)) [[unlikely]]
        fail(op, lane, "reads element {}, which {} overwrites", at, who(writer));
      if (!t.reader.empty()) {
        uint64_t& reader = t.reader[static_cast<size_t>(at)];
        reader = reader == 0 || reader == self(lane) ? self(lane) : kMany;
      }
    }
    return load_cell(s.type, s.data, at);
  }

  void write_global(const FlatOp& op, const Storage& s, int64_t at, int lane, Cell value) {
    Tracker& t = trackers_[static_cast<size_t>(s.tracked)];
    uint64_t& writer = t.writer[static_cast<size_t>(at)];
    if (writer != 0 && writer != self(lane)) [[unlikely]]
      fail(op, lane, "writes element {}, which {} writes too", at, who(writer));
    if (!t.reader.empty()) {
      const uint64_t reader = t.reader[static_cast<size_t>(at)];
      if (reader != 0 && reader != self(lane)) [[unlikely]]
        fail(op, lane, "writes element {}, which {} reads", at, who(reader));
    }
    writer = self(lane);
    store_cell(s.type, s.data, at, value);
  }

  Cell read_array(const FlatOp& op, int64_t at, int lane) {
    const FlatProgram::ArrayInfo& info = flat_.arrays[static_cast<size_t>(op.array)];
    ArrayStorage& a = arrays_[static_cast<size_t>(op.array)];
    if (at < 0 || at >= info.size) [[unlikely]]
      fail(op, lane, "index {} is outside 0..{} of a{}", at, info.size, op.array);
    if (info.space == Space::Registers) {
      const RegisterElement& e = a.registers[static_cast<size_t>(lane * info.size + at)];
      if (e.generation != a.lane_generation[static_cast<size_t>(lane)]) [[unlikely]]
        fail(op, lane, "reads a{}[{}], which was never written", op.array, at);
      return e.value;
    }
    SharedElement& e = a.shared[static_cast<size_t>(at)];
    if (e.generation != a.generation) [[unlikely]]
      fail(op, lane, "reads a{}[{}], which was never written", op.array, at);
    if (e.write_epoch == epoch_ && e.writer != lane) [[unlikely]]
      fail(op, lane, "reads a{}[{}], which lane {} wrote without a barrier between", op.array, at,
           e.writer);
    e.reader = e.read_epoch == epoch_ && e.reader != lane ? -1 : lane;
    e.read_epoch = epoch_;
    return e.value;
  }

  void write_array(const FlatOp& op, int64_t at, int lane, Cell value) {
    const FlatProgram::ArrayInfo& info = flat_.arrays[static_cast<size_t>(op.array)];
    ArrayStorage& a = arrays_[static_cast<size_t>(op.array)];
    if (at < 0 || at >= info.size) [[unlikely]]
      fail(op, lane, "index {} is outside 0..{} of a{}", at, info.size, op.array);
    if (info.space == Space::Registers) {
      a.registers[static_cast<size_t>(lane * info.size + at)] = {
          value, a.lane_generation[static_cast<size_t>(lane)]};
      return;
    }
    SharedElement& e = a.shared[static_cast<size_t>(at)];
    if (e.write_epoch == epoch_ && e.writer != lane) [[unlikely]]
      fail(op, lane, "writes a{}[{}], which lane {} wrote without a barrier between", op.array, at,
           e.writer);
    if (e.read_epoch == epoch_ && e.reader != lane) [[unlikely]]
      fail(op, lane, "writes a{}[{}], which {} read without a barrier between", op.array, at,
           e.reader < 0 ? "several lanes" : fmt::format("lane {}", e.reader));
    e.value = value;
    e.generation = a.generation;
    e.write_epoch = epoch_;
    e.writer = lane;
  }

  void need_all_lanes(const FlatOp& op, Mask m) const {
    if (m.count == lanes_) return;
    fail(op, m.count ? m.lanes[0] : 0, "only {} of {} lanes arrive here", m.count, lanes_);
  }

  void run(size_t begin, size_t end, Mask m, int depth) {
    for (size_t at = begin; at < end; ++at) {
      const FlatOp& op = flat_.ops[at];
      if (op.kind == FlatOp::For) {
        if (op.lanes) {
          run(at + 1, op.end, m, depth);
        } else {
          for (int64_t i = 0; i < op.extent; ++i) {
            loops_[static_cast<size_t>(op.loop)] = i;
            run(at + 1, op.end, m, depth);
          }
        }
        at = op.end - 1;
      } else if (op.kind == FlatOp::If) {
        int* inner = masks_.data() + (depth + 1) * lanes_;
        const auto run_where = [&](bool condition, size_t first, size_t last) {
          if (first == last) return;
          int count = 0;
          for (int k = 0; k < m.count; ++k)
            if (holds(op.guard, m.lanes[k]) == condition) inner[count++] = m.lanes[k];
          if (count) run(first, last, {inner, count}, depth + 1);
        };
        run_where(true, at + 1, op.otherwise);
        run_where(false, op.otherwise, op.end);
        at = op.end - 1;
      } else {
        statement(op, m);
      }
    }
  }

  void statement(const FlatOp& op, Mask m) {
    const auto each = [&](auto&& body) {
      for (int k = 0; k < m.count; ++k) body(m.lanes[k]);
    };
    Cell* out = op.var >= 0 ? var(op.var) : nullptr;
    const Cell* in[3] = {};
    for (size_t i = 0; i < 3; ++i)
      if (op.arg[i] >= 0) in[i] = var(op.arg[i]);
    switch (op.kind) {
      case FlatOp::For:
      case FlatOp::If:
        break;  // done by run()
      case FlatOp::Literal:
        each([&](int l) { out[l] = op.literal; });
        break;
      case FlatOp::Cast:
        each([&](int l) { out[l] = convert(in[0][l], op.from, op.type); });
        break;
      case FlatOp::Select:
        each([&](int l) { out[l] = in[0][l].i ? in[1][l] : in[2][l]; });
        break;
      case FlatOp::F64:
      case FlatOp::F32:
      case FlatOp::Integer: {
        const Cell none{};
        each([&](int l) {
          out[l] = apply(*op.row, op.from, op.row->gives_bool, in[0][l], in[1] ? in[1][l] : none,
                         in[2] ? in[2][l] : none);
        });
        break;
      }
      case FlatOp::Index:
        each([&](int l) {
          Cell v{};
          v.i = index(op.index, l);
          out[l] = convert(v, DType::I64, op.type);
        });
        break;
      case FlatOp::Guard:
        each([&](int l) { out[l].i = holds(op.guard, l); });
        break;
      case FlatOp::Load: {
        const Storage& s = storage_[static_cast<size_t>(op.buffer)];
        each([&](int l) {
          if (!holds(op.guard, l)) {
            out[l] = op.literal;
            return;
          }
          const int64_t i = index(op.index, l);
          check_bounds(op, s, i, l);
          out[l] = read_global(op, s, i, l);
        });
        break;
      }
      case FlatOp::LoadVector: {
        const Storage& s = storage_[static_cast<size_t>(op.buffer)];
        each([&](int l) {
          const int64_t i = index(op.index, l);
          check_bounds(op, s, i, l);
          for (int w = 0; w < op.width; ++w) write_array(op, w, l, read_global(op, s, i + w, l));
        });
        break;
      }
      case FlatOp::Store: {
        const Storage& s = storage_[static_cast<size_t>(op.buffer)];
        each([&](int l) {
          const int64_t i = index(op.index, l);
          check_bounds(op, s, i, l);
          write_global(op, s, i, l, out[l]);
        });
        break;
      }
      case FlatOp::StoreVector: {
        const Storage& s = storage_[static_cast<size_t>(op.buffer)];
        each([&](int l) {
          const int64_t i = index(op.index, l);
          check_bounds(op, s, i, l);
          for (int w = 0; w < op.width; ++w)
            write_global(op, s, i + w, l, convert(read_array(op, w, l), op.from, op.type));
        });
        break;
      }
      case FlatOp::Alloc: {
        ArrayStorage& a = arrays_[static_cast<size_t>(op.array)];
        if (flat_.arrays[static_cast<size_t>(op.array)].space == Space::Shared) {
          need_all_lanes(op, m);
          ++a.generation;
        } else {
          each([&](int l) { ++a.lane_generation[static_cast<size_t>(l)]; });
        }
        break;
      }
      case FlatOp::ArrayLoad:
        each([&](int l) { out[l] = read_array(op, index(op.index, l), l); });
        break;
      case FlatOp::ArrayStore:
        each([&](int l) { write_array(op, index(op.index, l), l, out[l]); });
        break;
      case FlatOp::LaneReduce:
        need_all_lanes(op, m);
        lane_reduce(op, in[0], out);
        break;
      case FlatOp::Barrier:
        need_all_lanes(op, m);
        ++epoch_;
        break;
      case FlatOp::Random:
        each([&](int l) { out[l] = random(op, l); });
        break;
      case FlatOp::Check:
        each([&](int l) { out[l] = check(op, in[0][l], l); });
        break;
    }
  }

  // The left operand comes from the lower lane, since max and min of zeros tell their sides apart.
  void lane_reduce(const FlatOp& op, const Cell* in, Cell* out) {
    std::copy_n(in, lanes_, out);
    for (int offset = 1; offset < op.width; offset *= 2) {
      std::copy_n(out, lanes_, scratch_.data());
      for (int l = 0; l < lanes_; ++l) {
        const Cell low = scratch_[static_cast<size_t>(l & ~offset)];
        const Cell high = scratch_[static_cast<size_t>(l | offset)];
        out[l] = apply(*op.row, op.from, false, low, high, Cell{});
      }
    }
  }

  Cell random(const FlatOp& op, int lane) const {
    const auto& s = std::get<Random>(op.stmt->what);
    const auto arg = [&](int i) { return var(op.arg[i])[lane].i; };
    RandomStream stream;
    stream.seed = {static_cast<uint32_t>(arg(0)), static_cast<uint32_t>(arg(1))};
    stream.step = static_cast<uint32_t>(arg(2));
    stream.site = sites_[static_cast<size_t>(s.site)];
    stream.offset = arg(3);
    const int64_t element = index(op.index, lane);
    Cell out{};
    switch (s.kind) {
      case RandomKind::Half: {
        const uint64_t e = stream.element(element);
        out.i = dropout_half(stream.words(e / kDropoutLanes), static_cast<int>(e % kDropoutLanes));
        break;
      }
      case RandomKind::Uniform:
        out.f = static_cast<double>(random_uniform(stream, element));
        break;
      case RandomKind::Normal:
        out.f = static_cast<double>(random_normal<float>(stream, element));
        break;
    }
    return out;
  }

  Cell check(const FlatOp& op, Cell value, int lane) {
    const auto& s = std::get<Check>(op.stmt->what);
    if ((value.i >= s.low && value.i < s.high) || (s.ignore && value.i == *s.ignore)) return value;
    const int64_t position = index(op.index, lane);
    FaultSlot& slot = faults_[static_cast<size_t>(s.fault)];
    if (position < slot.position) slot = {position, value.i};
    value.i = s.low;
    return value;
  }

  const LoopProgram& p_;
  FlatProgram flat_;
  std::span<FaultSlot> faults_;
  std::span<const uint32_t> sites_;
  int lanes_;
  int64_t block_ = 0;
  uint32_t epoch_ = 0;
  std::vector<Cell> vars_;  // [variable][lane]
  std::vector<int64_t> loops_;
  std::vector<Cell> scratch_;
  std::vector<int> masks_;  // [depth][lane]; depth 0 is all lanes
  std::vector<ArrayStorage> arrays_;
  std::vector<Storage> storage_;
  std::vector<Tracker> trackers_;
};

}  // namespace

void interpret(const LoopProgram& program, std::span<void* const> buffers,
               std::span<FaultSlot> faults, std::span<const uint32_t> sites) {
  Interpreter(program, buffers, faults, sites).run();
}

}  // namespace sinter
