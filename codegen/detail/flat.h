#pragma once
// A LoopProgram as a flat list of operations for the interpreter, checked for form on the way:
// every variable, array and loop is defined once and read only where it is in scope, ids are in
// range, widths and types fit.

#include <sinter/codegen/loops.h>

#include <vector>

namespace sinter::detail {

// An index expression with its loops resolved.
struct FlatIndex {
  enum Kind : uint8_t { Loop, Lane, Variable, Div, Mod };
  struct Term {
    int64_t coefficient;
    Kind kind;
    int id;           // Loop: which one; Variable: which one; Div, Mod: into FlatProgram::indices
    int64_t divisor;  // Div, Mod
  };
  int64_t constant = 0;
  std::vector<Term> terms;
  bool uniform = true;  // the same in all lanes
};

struct FlatGuard {
  struct Term {
    int index;
    int64_t low, high;
  };
  std::vector<Term> terms;
  bool never = false;
};

struct FlatOp {
  enum Kind : uint8_t {
    For,
    If,
    Literal,
    Cast,
    Select,
    F64,
    F32,
    Integer,
    Index,
    Guard,
    Load,
    LoadVector,
    Store,
    StoreVector,
    Alloc,
    ArrayLoad,
    ArrayStore,
    LaneReduce,
    Barrier,
    Random,
    Check,
  };
  Kind kind = Barrier;
  DType type = DType::F32;  // of the result; Store: of the buffer
  DType from = DType::F32;  // of the operands
  int var = -1;             // written; stores: read
  int arg[4] = {-1, -1, -1, -1};
  int index = -1;  // into FlatProgram::indices
  int guard = -1;  // into FlatProgram::guards; -1: always
  int buffer = -1;
  int array = -1;
  int width = 1;
  int64_t extent = 0;    // For; Alloc: size
  size_t end = 0;        // For, If: one past the body, which follows
  size_t otherwise = 0;  // If: where the statements for the other lanes begin
  int loop = -1;         // For
  bool lanes = false;    // For: over the lanes of the block
  Cell literal{};        // Literal; Load: the value where the guard is false
  const Intrinsic* row = nullptr;
  const Stmt* stmt = nullptr;  // for messages and rare fields
};

struct FlatProgram {
  std::vector<FlatOp> ops;
  std::vector<FlatIndex> indices;
  std::vector<FlatGuard> guards;
  struct ArrayInfo {
    DType type = DType::F32;
    int64_t size = 0;
    Space space = Space::Registers;
  };
  std::vector<ArrayInfo> arrays;
  int loops = 0;      // one more than the highest loop id
  int max_depth = 0;  // of nested Ifs
  int lanes = 1;
};

// Throws InternalError, naming the statement, for a program of wrong form. The result points into
// `program`.
FlatProgram flatten(const LoopProgram& program);

}  // namespace sinter::detail
