#pragma once
// Minimum cuts of directed networks (Dinic's algorithm), without recursion.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace sinter::detail {

class FlowNetwork {
 public:
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

  int add_node();
  // Refused by a check when negative. The number of the edge.
  int add_edge(int from, int to, int64_t capacity);

  // The largest flow, which is the capacity of the smallest cut; once.
  int64_t run(int source, int sink);
  // After run: whether the edge is in the smallest cut that lies nearest to the sink.
  bool is_cut(int edge) const;

 private:
  struct Edge {
    int from, to;
    int64_t left;  // capacity not used yet; the opposite edge follows or precedes
  };
  bool find_levels(int source, int sink);
  int64_t augment(int source, int sink);

  std::vector<Edge> edges_;
  std::vector<std::vector<int>> out_;  // by node
  std::vector<int> level_;
  std::vector<size_t> next_;
  std::vector<bool> reaches_sink_;
};

}  // namespace sinter::detail
