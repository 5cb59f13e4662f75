#pragma once
// CUDA graphs: a list of work that is built once and launched many times.
//
// sinter knows its graph, so it adds kernels, copies and fills as nodes; only library calls
// (cuBLASLt) are captured from a stream, and become child graphs. By default a node depends on the
// one added before it, which gives a straight line in order of execution; `after` states other
// dependencies. Addresses and arguments are frozen when a node is added: what changes between
// launches lives in device memory or in pinned memory that a copy node reads.

#include <sinter/runtime/cuda/driver.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;

namespace sinter::cuda {

class Graph {
 public:
  using Node = CUgraphNode_st*;
  // The nodes that a new node waits for.
  using Nodes = std::vector<Node>;

  explicit Graph(Device& device);

  // Each overload without `after` appends to the line.
  Node add_kernel(const Kernel& kernel, const LaunchShape& shape, KernelArguments& arguments);
  Node add_kernel(const Kernel& kernel, const LaunchShape& shape, KernelArguments& arguments,
                  const Nodes& after);
  // Copies; 0 bytes gives a node that does nothing.
  Node add_copy_to_device(DevicePtr destination, const void* pinned, std::size_t bytes);
  Node add_copy_to_host(void* pinned, DevicePtr source, std::size_t bytes);
  Node add_copy_on_device(DevicePtr destination, DevicePtr source, std::size_t bytes);
  Node add_copy_on_device(DevicePtr destination, DevicePtr source, std::size_t bytes,
                          const Nodes& after);
  // `count` elements of `element` bytes (1, 2 or 4) set to the low bytes of `value`.
  Node add_fill(DevicePtr destination, uint32_t value, int element, std::size_t count);
  Node add_fill(DevicePtr destination, uint32_t value, int element, std::size_t count,
                const Nodes& after);
  // The child is copied and may be destroyed. A child without nodes is allowed.
  Node add_child(const Graph& child);
  Node add_child(const Graph& child, const Nodes& after);

  // The last node added; null at first.
  Node last() const { return last_; }
  std::size_t size() const { return size_; }
  Device& device() const { return *device_; }
  CUgraph_st* handle() const { return handle_.get(); }

  // The work that `enqueue()` puts on `stream`, recorded instead of run. Choices and allocations
  // must have been made before: a library call that allocates or loads code fails in capture.
  template <typename Enqueue>
  static Graph capture(const Stream& stream, Enqueue&& enqueue) {
    begin_capture(stream);
    try {
      enqueue();
    } catch (...) {
      abandon_capture(stream);
      throw;
    }
    return end_capture(stream);
  }

  struct Deleter {
    void operator()(CUgraph_st* graph) const noexcept;
  };

 private:
  Graph(Device& device, CUgraph_st* handle);
  static void begin_capture(const Stream& stream);
  static Graph end_capture(const Stream& stream);
  static void abandon_capture(const Stream& stream) noexcept;
  Nodes line() const;
  Node added(Node node);
  Node add_copy(const void* parameters, std::size_t bytes, const Nodes& after);

  Device* device_;
  std::unique_ptr<CUgraph_st, Deleter> handle_;
  Node last_ = nullptr;
  std::size_t size_ = 0;
};

// A graph made ready to run. Launches of one executable graph do not overlap each other.
class ExecutableGraph {
 public:
  explicit ExecutableGraph(const Graph& graph);
  // Moves the graph to the device ahead of its first launch.
  void upload(const Stream& stream) const;
  void launch(const Stream& stream) const;

  struct Deleter {
    void operator()(CUgraphExec_st* graph) const noexcept;
  };

 private:
  Device* device_;
  std::unique_ptr<CUgraphExec_st, Deleter> handle_;
};

}  // namespace sinter::cuda
