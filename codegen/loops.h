#pragma once
// A scheduled kernel as loops: what the printers and the interpreter see.
//
// A program is one statement tree. CUDA programs have the form
//   For Grid { Alloc Shared…; For Lane { … } }
// where Lane runs the threads of a block; host programs have For Cores outermost, split over
// threads by the runtime. Scalars are SSA: each variable is written by one statement and read below
// it in the same or an inner block. Mutable storage is arrays (`Alloc`): registers (one per lane)
// or shared. Loop variables and gathered integers occur in IndexExprs as IndexAtom::Axis with the
// loop's id and IndexAtom::Gathered with the variable's id.

#include <sinter/codegen/kernel.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace sinter {

enum class Level : uint8_t {
  Grid,    // blocks of a CUDA launch
  Lane,    // threads of a block
  Vector,  // unrolled; a constant small extent
  Serial,
  Cores,  // host threads
  Simd,   // a host loop without carried dependences, for the host compiler to vectorise
};
std::string_view to_string(Level level);

enum class Space : uint8_t { Registers, Shared };

struct Stmt;
using Block = std::vector<Stmt>;
using Var = int;    // scalar variable
using Array = int;  // local or shared array

struct For {
  int loop = -1;  // id in IndexExprs
  int64_t extent = 0;
  Level level = Level::Serial;
  Block body;
};
struct If {
  Guard guard;
  Block body;
  Block otherwise;  // may be empty
};
// var = fn(args): every intrinsic, cast included.
struct Let {
  Var var = -1;
  Fn fn = Fn::Literal;
  std::vector<Var> args;
  Cell literal{};  // Fn::Literal
};
struct LetIndex {
  Var var = -1;
  IndexExpr value;
};
struct LetGuard {
  Var var = -1;
  Guard guard;
};
// One element of a global buffer, or `otherwise` where the guard is false.
struct Load {
  Var var = -1;
  int buffer = -1;
  IndexExpr at;
  Guard guard;
  Cell otherwise{};
};
// `width` consecutive elements, aligned to the width, into elements 0..width-1 of an array.
struct LoadVector {
  Array array = -1;
  int buffer = -1;
  IndexExpr at;
  int width = 1;
};
struct Store {
  int buffer = -1;
  IndexExpr at;
  Var var = -1;
};
// An array of f32 is rounded to what a buffer of 16-bit floats holds.
struct StoreVector {
  int buffer = -1;
  IndexExpr at;
  Array array = -1;
  int width = 1;
};
struct Alloc {
  Array array = -1;
  DType type = DType::F32;
  int64_t size = 0;
  Space space = Space::Registers;
  // CUDA registers, 16-bit floats: two elements a register. The first of a pair is written first.
  bool packed = false;
};
struct ArrayLoad {
  Var var = -1;
  Array array = -1;
  IndexExpr at;
};
struct ArrayStore {
  Array array = -1;
  IndexExpr at;
  Var var = -1;
};
// Folds `value` over groups of `width` consecutive lanes (a power of two up to 32) pairwise: lane
// 0+1, 2+3, …, then pairs of pairs; every lane of the group gets the result. All lanes take part.
struct LaneReduce {
  Var var = -1;
  Fn combine = Fn::Add;
  Var value = -1;
  int width = 32;
};
// All lanes of the block; never inside an If or a loop whose trip count varies by lane.
struct Barrier {};
// Seed and step are the same wherever the statement is run.
struct Random {
  Var var = -1;
  RandomKind kind = RandomKind::Uniform;
  int site = 0;           // index into LoopProgram::sites
  std::vector<Var> args;  // seed0, seed1 (u32), step (u32), offset (i64)
  IndexExpr element;
};
// var = value if in range or equal to `ignore`, else `low` and a record in the fault slot.
struct Check {
  Var var = -1;
  Var value = -1;
  int fault = -1;
  int64_t low = 0, high = 0;
  std::optional<int64_t> ignore;
  IndexExpr position;
};

struct Stmt {
  std::variant<For, If, Let, LetIndex, LetGuard, Load, LoadVector, Store, StoreVector, Alloc,
               ArrayLoad, ArrayStore, LaneReduce, Barrier, Random, Check>
      what;
};

// A fault record: two 64-bit words per fault, `position` (INT64_MAX while there is none; the lowest
// failing position wins) and the value found there.
struct FaultSlot {
  int64_t position;
  int64_t value;
};

struct LoopProgram {
  std::string symbol;  // canonical, without user names: stem_HASH
  Target target;
  std::vector<KernelBuffer> buffers;  // arguments in this order, then the fault record if any
  std::vector<KernelFault> faults;
  // Which random numbers are drawn is said at launch: kernels that differ in their sites alone are
  // one. These are the sites of the kernel that the program was made from.
  std::vector<uint32_t> sites;
  std::vector<DType> var_types;  // by Var
  int num_arrays = 0;
  int64_t grid = 1;  // extent of the outermost For
  int block = 1;     // lanes (CUDA)
  // CUDA: blocks that a multiprocessor is to hold at once. They may have its registers to
  // themselves; a compiler that is told nothing makes room for as many as there could be. 0:
  // nothing is said.
  int blocks = 0;
  int64_t shared_bytes = 0;
  // CUDA: one more argument, the last, is the address of an integer; unless that is 0 a launch does
  // nothing. For kernels that write state, which a fault must leave as it was.
  bool gated = false;
  Block body;  // the outermost For
};

// A program that asks for more shared memory than this gets all of it at launch (dynamic); up to
// this much is static, and a launch passes none.
inline constexpr int64_t kStaticSharedBytes = 48 << 10;

std::string print(const LoopProgram& program);

// Schedules a kernel for a target and lowers it to loops; sets the symbol. A gated one writes
// state, and its results may lie on its operands.
LoopProgram lower(const Kernel& kernel, const Target& target, bool gated = false);

// CUDA C for NVRTC, self-contained: prelude and one `extern "C" __global__` of the program's symbol
// taking (buffers…, fault record pointer if any, sites as 32-bit integers…, the gate if any).
std::string print_cuda(const LoopProgram& program);
// C++ without includes: prelude and `extern "C" void SYMBOL(void** buffers, FaultSlot* faults,
// const uint32* sites, int64 begin, int64 end)`, which runs iterations begin..end-1 of the
// outermost loop.
std::string print_host(const LoopProgram& program);
// As print_host for several programs, with the prelude once.
std::string print_host(std::span<const LoopProgram* const> programs);
// As print_cuda for several programs, with the prelude once.
std::string print_cuda(std::span<const LoopProgram* const> programs);

// Runs a program lane by lane on host memory. Checks bounds, alignment of vector accesses, reads of
// array elements never written, races between lanes on shared memory, lanes that part at a barrier
// or lane reduction, and two lanes or blocks that write one global element; throws InternalError
// with kernel, statement, lane and values. `faults` has one slot per fault; without `sites`, the
// program's own count.
void interpret(const LoopProgram& program, std::span<void* const> buffers,
               std::span<FaultSlot> faults, std::span<const uint32_t> sites);
inline void interpret(const LoopProgram& program, std::span<void* const> buffers,
                      std::span<FaultSlot> faults) {
  interpret(program, buffers, faults, program.sites);
}

}  // namespace sinter
