#include <sinter/passes/detail/min_cut.h>

#include <sinter/ir/diagnostic.h>

#include <algorithm>

namespace sinter::detail {

int FlowNetwork::add_node() {
  out_.emplace_back();
  return static_cast<int>(out_.size()) - 1;
}

int FlowNetwork::add_edge(int from, int to, int64_t capacity) {
  SINTER_CHECK(capacity >= 0, "an edge cannot take {}", capacity);
  auto number = static_cast<int>(edges_.size());
  edges_.push_back({from, to, capacity});
  edges_.push_back({to, from, 0});
  out_[static_cast<size_t>(from)].push_back(number);
  out_[static_cast<size_t>(to)].push_back(number + 1);
  return number;
}

bool FlowNetwork::find_levels(int source, int sink) {
  level_.assign(out_.size(), -1);
  level_[static_cast<size_t>(source)] = 0;
  std::vector<int> queue{source};
  for (size_t i = 0; i < queue.size(); ++i)
    for (int e : out_[static_cast<size_t>(queue[i])]) {
      const Edge& edge = edges_[static_cast<size_t>(e)];
      int& level = level_[static_cast<size_t>(edge.to)];
      if (edge.left == 0 || level >= 0) continue;
      level = level_[static_cast<size_t>(queue[i])] + 1;
      queue.push_back(edge.to);
    }
  return level_[static_cast<size_t>(sink)] >= 0;
}

// All that passes along shortest paths.
int64_t FlowNetwork::augment(int source, int sink) {
  next_.assign(out_.size(), 0);
  int64_t total = 0;
  std::vector<int> path;
  int at = source;
  while (true) {
    if (at == sink) {
      int64_t amount = kInfinite;
      for (int e : path) amount = std::min(amount, edges_[static_cast<size_t>(e)].left);
      total += amount;
      size_t first = path.size();
      for (size_t i = path.size(); i-- > 0;) {
        Edge& edge = edges_[static_cast<size_t>(path[i])];
        edge.left -= amount;
        edges_[static_cast<size_t>(path[i] ^ 1)].left += amount;
        if (edge.left == 0) first = i;
      }
      // Back to where the path is used up.
      at = edges_[static_cast<size_t>(path[first])].from;
      path.resize(first);
      continue;
    }
    auto node = static_cast<size_t>(at);
    size_t& i = next_[node];
    auto leads_on = [&](int e) {
      const Edge& edge = edges_[static_cast<size_t>(e)];
      return edge.left > 0 && level_[static_cast<size_t>(edge.to)] == level_[node] + 1;
    };
    while (i < out_[node].size() && !leads_on(out_[node][i])) ++i;
    if (i < out_[node].size()) {
      path.push_back(out_[node][i]);
      at = edges_[static_cast<size_t>(path.back())].to;
      continue;
    }
    if (at == source) return total;
    level_[node] = -1;  // a dead end
    at = edges_[static_cast<size_t>(path.back())].from;
    path.pop_back();
  }
}

int64_t FlowNetwork::run(int source, int sink) {
  int64_t total = 0;
  while (find_levels(source, sink)) total += augment(source, sink);
  reaches_sink_.assign(out_.size(), false);
  reaches_sink_[static_cast<size_t>(sink)] = true;
  std::vector<int> queue{sink};
  for (size_t i = 0; i < queue.size(); ++i)
    for (int e : out_[static_cast<size_t>(queue[i])]) {
      // The opposite of an edge that leads on from here: the one that leads here.
      const Edge& edge = edges_[static_cast<size_t>(e ^ 1)];
      if (edge.left == 0 || reaches_sink_[static_cast<size_t>(edge.from)]) continue;
      reaches_sink_[static_cast<size_t>(edge.from)] = true;
      queue.push_back(edge.from);
    }
  return total;
}

bool FlowNetwork::is_cut(int edge) const {
  const Edge& e = edges_[static_cast<size_t>(edge)];
  return !reaches_sink_[static_cast<size_t>(e.from)] && reaches_sink_[static_cast<size_t>(e.to)];
}

}  // namespace sinter::detail
