#pragma once
// The memory plan of one graph: where each value lives.

#include <sinter/ir/graph.h>

#include <string>
#include <vector>

namespace sinter {

struct PlannedValue {
  enum Where : uint8_t {
    Arena,   // offset into the arena
    Input,   // bound by the caller or held as state; `index` is the graph input
    Output,  // written to the storage of graph output `index`
    Alias,   // the same storage as value `index` of the plan (a reshape)
  };
  Value value;
  Where where = Arena;
  int64_t offset = 0;  // bytes, 256-aligned
  int64_t bytes = 0;
  int64_t first = 0, last = 0;  // positions of the ops between which it lives, inclusive
  int index = -1;
};

struct MemoryPlan {
  std::string graph;
  int64_t arena_bytes = 0;   // the peak
  int64_t state_bytes = 0;   // inputs that are states
  int64_t input_bytes = 0;   // other inputs
  int64_t output_bytes = 0;  // outputs that are no states
  std::vector<PlannedValue> values;
  // Per op that needs it, scratch inside the arena: by op position.
  const PlannedValue* find(Value v) const;

  // Throws InternalError when two values that live at once overlap.
  void check() const;
  // A table with sizes, offsets, lifetimes, user names and lines, and the peak.
  std::string str() const;
};

}  // namespace sinter
