#pragma once
// The memory plan of one graph: where each value lives.
//
// An executor that has run the ops finds output k in the storage of its value; where that is not
// Output with index k (a value that is two outputs, an input or a view that is an output), it
// copies.
//
// A state's next value takes over its storage. Where the op that makes it is the last to read the
// old value, and each element depends on the same element of it alone, it writes there (State);
// otherwise the next value is copied, at the first moment at which nobody reads the old one. Either
// happens only after the last op that may find an index out of range: an executor that knows of
// one by then leaves all states as they are.

#include <sinter/ir/graph.h>

#include <string>
#include <vector>

namespace sinter {

struct PlannedValue {
  enum Where : uint8_t {
    Arena,   // offset into the arena
    Input,   // bound by the caller or held as state; `index` is the graph input
    Output,  // written to the storage of graph output `index`
    State,   // written over the old value of the state that output `index` is the next value of
    Alias,   // `offset` bytes into the storage of value `index` of the plan, itself no alias
  };
  Value value;
  Where where = Arena;
  int64_t offset = 0;  // bytes; 256-aligned in the arena
  int64_t bytes = 0;
  int64_t first = 0, last = 0;  // the ops between which it lives, inclusive, counted from 0
  int index = -1;
};

// How an output becomes the value of the state of its name.
struct StateUpdate {
  size_t output = 0;
  bool in_place = false;
  // Otherwise: copied after this op; one past the last op: after the other outputs were copied too.
  int64_t after = 0;
  // Where the arena holds a copy meanwhile, made before any copy of that last moment; -1: nowhere.
  // The next value is then the old one of a state.
  int64_t staged = -1;
  std::string reason;  // why it is copied
};

// Bytes of the arena that an op's kernel template works in, while the op runs.
struct PlannedScratch {
  const Op* op = nullptr;
  int64_t offset = 0;  // 256-aligned
  int64_t bytes = 0;
  int64_t at = 0;  // the op, counted from 0
};

struct MemoryPlan {
  std::string graph;
  int64_t arena_bytes = 0;   // the peak
  int64_t state_bytes = 0;   // inputs that are states
  int64_t input_bytes = 0;   // other inputs
  int64_t output_bytes = 0;  // outputs that are no states
  std::vector<PlannedValue> values;
  std::vector<StateUpdate> updates;  // in order of `after`; states that keep their value have none
  std::vector<PlannedScratch> scratch;
  // Null for a value of another graph.
  const PlannedValue* find(Value v) const;
  // Null for an op that needs none.
  const PlannedScratch* find_scratch(const Op& op) const;

  // Throws InternalError when two values that live at once overlap.
  void check() const;
  // A table with sizes, offsets, lifetimes, user names and lines, and the peak.
  std::string str() const;

 private:
  void check_states() const;
  friend class Planner;
  ValueMap<size_t> lookup_;  // of a finished plan
};

// With `share` false, every value has bytes of its own.
MemoryPlan plan_memory(const Graph& graph, bool share = true);

}  // namespace sinter
