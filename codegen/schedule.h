#pragma once
// How a kernel runs: a pure function of the kernel and the target.
//
// A *strip* is what one CUDA thread or one host iteration handles of q: `vector` elements in
// registers on CUDA, `chunk` elements in a SIMD loop on the host. Pointwise and column kernels run
// one strip per thread; row kernels run each row on `lanes` threads (CUDA) or in one host
// iteration.

#include <sinter/codegen/kernel.h>

namespace sinter {

struct Schedule {
  bool cuda = false;
  int block = 1;          // threads
  int64_t grid = 1;       // blocks, or host iterations
  int vector = 1;         // CUDA: elements along q per strip or vector access
  int64_t chunk = 1;      // host: elements along q per strip
  int strips = 1;         // CUDA, pointwise kernels: strips of a thread, a block of threads apart
  bool by_place = false;  // host: each term goes to its place; see PlacedTerms
  // CUDA, column kernels: terms that a thread loads before it adds them up, and, where there are
  // several, the blocks of a multiprocessor that share the registers for them.
  int64_t batch = 1;
  int blocks = 0;
  // Row kernels.
  int64_t lanes = 1;  // threads per row (CUDA), accumulators along q (host: lanes * vector)
  int rows_per_block = 1;
  int64_t iterations = 1;  // strips per lane and row
  bool unrolled = false;   // the strips of a lane are unrolled, so that kept nodes sit in registers
  std::vector<int> kept;   // nodes computed in one phase and kept for the later ones
};

// Whether kept elements of a type share a register by twos on CUDA.
bool is_packed(DType type);

// `in_place`: its results may lie on its operands.
Schedule make_schedule(const Kernel& kernel, const Target& target, bool in_place = false);

// A column kernel whose terms count at one place each, the one that an index names, and are `none`
// everywhere else: a scatter, or the gradient of a lookup.
struct PlacedTerms {
  int reduce = -1;
  KernelAxis axis = kAxisP;   // along which terms have one place
  int index = -1;             // the node that names it
  int value = -1, none = -1;  // the term there, and elsewhere: a literal that adds nothing
};
// nullopt for other kernels, and where the host has no room for the totals.
std::optional<PlacedTerms> placed_terms(const Kernel& kernel);
// Totals that an iteration of the host keeps at once, for strips of `chunk`.
int64_t scatter_room(const Kernel& kernel, const PlacedTerms& terms, int64_t chunk);
// `cuda { p: grid; q: lane 256, vector 4; %3: registers }`.
std::string print(const Schedule& schedule, const Kernel& kernel);

// The level of a node: how many reductions, one after another, come before it. A row or column
// kernel runs one phase per level.
std::vector<int> node_levels(const Kernel& kernel);
// The nodes that a node reads: arguments and gathered indices.
std::vector<int> node_inputs(const KernelNode& node);

// Whether `e` runs along q with step 1 from a multiple of `width`, so that `width` elements can be
// accessed at once.
bool is_vector_access(const IndexExpr& e, int width);
// Whether a guard holds for a run along q if it does at both ends.
bool is_straight(const Guard& guard);
// Whether a Load can be made so. Its guard, if it has one, holds for a whole vector if it does at
// both ends.
bool reads_vectors(const KernelNode& load, int width);

// The nodes of each phase: which ones phase k computes inside its loop over q (or r), given `kept`.
// Phase K, the last one, serves the stores; those over r are phase 0's. Kept loads are phase 0's.
struct Phases {
  int last = 0;  // K: the number of reduction levels; at least 1 where terms are stored
  std::vector<std::vector<int>> reductions;  // by phase: the Reduce nodes it finishes
  std::vector<std::vector<bool>> needed;     // by phase: nodes below its targets
};
Phases make_phases(const Kernel& kernel, const std::vector<int>& kept);

}  // namespace sinter
