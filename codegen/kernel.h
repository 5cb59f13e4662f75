#pragma once
// What a kernel computes, free of any target.
//
// A Kernel has up to three axes: `p` and `q`, over which results are stored (q runs along memory),
// and `r`, over which it reduces. Four classes of kernels share that form:
//   pointwise   no reduction;
//   row         reductions over q (softmax, norms): nodes vary over {p,q}, results of reductions
//               over {p}, and both may be stored;
//   column      reductions over r, results over {p,q} (bias gradients, embedding gradients), and
//               over {p,q,r} where they read no reduction (the gradient beside its column sums);
//   prefix      one running fold along q, stored over {p,q} (cumsum).
// Nodes are SSA in topological order; `domain` is the set of axes over which a node varies. Two
// nodes that compute the same are one. Buffers are dense row-major; indices are linear elements.

#include <sinter/ir/body.h>
#include <sinter/ir/graph.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sinter {

// Axis ids as they occur in a kernel's IndexExprs.
enum KernelAxis : int { kAxisP = 0, kAxisQ = 1, kAxisR = 2 };
using AxisSet = uint8_t;  // bit i: axis i
constexpr AxisSet axis_bit(KernelAxis a) {
  return static_cast<AxisSet>(1U << a);
}

struct KernelBuffer {
  std::string name;  // canonical: in0, in1, …, out0, …
  TensorType type;
  bool output = false;
};

struct KernelNode {
  enum Kind : uint8_t { Literal, Index, Guard, Load, Scalar, Reduce, Prefix, Random, Check };
  Kind kind = Literal;
  DType type = DType::F32;
  AxisSet domain = 0;
  std::vector<int> args;  // earlier nodes. Random: seed0, seed1, step, offset
  Cell literal{};         // Literal; Load: the value where the guard is false
  IndexExpr index;      // Index: the value; Load: linear element; Random: element; Check: position
  sinter::Guard guard;  // Guard: the condition; Load: where it may read
  int buffer = -1;      // Load
  Fn fn = Fn::Literal;  // Scalar (Cast included); Reduce, Prefix: the combining function
  KernelAxis axis = kAxisQ;  // Reduce: over which axis
  ReduceOrder order;         // Reduce
  PrefixOrder prefix;        // Prefix: along q
  RandomKind random = RandomKind::Uniform;
  uint32_t site = 0;              // Random
  int64_t low = 0, high = 0;      // Check: the valid range is low..high-1
  std::optional<int64_t> ignore;  // Check
  int fault = -1;                 // Check: index into Kernel::faults
};

struct KernelStore {
  int node = -1;
  int buffer = -1;
  IndexExpr at;      // linear element; injective over the node's store axes
  AxisSet axes = 0;  // the axes over which it stores
};

// A Check of the kernel, for messages: who complains about what.
struct KernelFault {
  std::string what;  // "cross_entropy: target"
  int64_t low = 0, high = 0;
  SourceLocation loc;
  std::string place = "position";  // what messages call the index's place
  std::string op;                  // the op that checks
};

struct Kernel {
  enum Class : uint8_t { Pointwise, Row, Column, Prefix };
  Class kind = Pointwise;
  std::string stem;  // "add_rms_norm": the ops, for the symbol
  int64_t extent[3] = {1, 1, 1};
  std::vector<KernelBuffer> buffers;
  std::vector<KernelNode> nodes;
  std::vector<KernelStore> stores;
  std::vector<KernelFault> faults;
};

// A gathered index (IndexAtom::Gathered) names the node that holds the integer.

// As in design §6; node numbers are %0, %1, …
std::string print(const Kernel& kernel);

// The kernel of a sub-graph made by `fuse` (or of one op, wrapped in such a graph). Buffers: the
// graph's inputs in order, then its outputs. Throws InternalError for a graph that is no kernel.
Kernel build_kernel(const Graph& body, const SourceLocation& loc);

}  // namespace sinter
