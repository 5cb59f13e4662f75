#ifdef SINTER_HAVE_CUDA

#include <sinter/runtime/cuda/graph.h>

#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/cuda/detail/driver_api.h>

#include <limits>

namespace sinter::cuda {

using detail::check;
using detail::driver;
using detail::fail;

namespace {

CUDA_MEMCPY3D linear_copy(std::size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  // Pitches stay 0: they mean nothing for one row, and their limit is below large copies.
  return copy;
}

}  // namespace

void Graph::Deleter::operator()(CUgraph_st* graph) const noexcept {
  detail::driver_state().cuGraphDestroy(graph);
}

Graph::Graph(Device& device) : device_(&device) {
  device.make_current();
  CUgraph graph = nullptr;
  check(driver().cuGraphCreate(&graph, 0), "cuGraphCreate");
  handle_.reset(graph);
}

Graph::Graph(Device& device, CUgraph_st* handle) : device_(&device), handle_(handle) {}

Graph::Nodes Graph::line() const {
  return last_ != nullptr ? Nodes{last_} : Nodes{};
}

Graph::Node Graph::added(Node node) {
  last_ = node;
  ++size_;
  return node;
}

Graph::Node Graph::add_kernel(const Kernel& kernel, const LaunchShape& shape,
                              KernelArguments& arguments) {
  return add_kernel(kernel, shape, arguments, line());
}

Graph::Node Graph::add_kernel(const Kernel& kernel, const LaunchShape& shape,
                              KernelArguments& arguments, const Nodes& after) {
  SINTER_CHECK(shape.blocks > 0 && shape.blocks <= std::numeric_limits<int>::max(),
               "kernel '{}' added with {} blocks", kernel.name(), shape.blocks);
  device_->make_current();
  CUDA_KERNEL_NODE_PARAMS parameters{};
  parameters.func = kernel.handle();
  parameters.gridDimX = static_cast<unsigned>(shape.blocks);
  parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = static_cast<unsigned>(shape.threads);
  parameters.blockDimY = parameters.blockDimZ = 1;
  parameters.sharedMemBytes = static_cast<unsigned>(shape.shared_bytes);
  parameters.kernelParams = arguments.pointers();
  Node node = nullptr;
  const CUresult result =
      driver().cuGraphAddKernelNode(&node, handle(), after.data(), after.size(), &parameters);
  if (result != CUDA_SUCCESS) {
    fail("cuGraphAddKernelNode", result,
         fmt::format("kernel '{}', {} blocks of {} threads, {} bytes of dynamic shared memory",
                     kernel.name(), shape.blocks, shape.threads, shape.shared_bytes));
  }
  return added(node);
}

Graph::Node Graph::add_copy(const void* parameters, std::size_t bytes, const Nodes& after) {
  device_->make_current();
  Node node = nullptr;
  if (bytes == 0) {
    check(driver().cuGraphAddEmptyNode(&node, handle(), after.data(), after.size()),
          "cuGraphAddEmptyNode");
    return added(node);
  }
  const CUresult result = driver().cuGraphAddMemcpyNode(
      &node, handle(), after.data(), after.size(), static_cast<const CUDA_MEMCPY3D*>(parameters),
      device_->context());
  if (result != CUDA_SUCCESS) {
    fail("cuGraphAddMemcpyNode", result, fmt::format("{} bytes", bytes));
  }
  return added(node);
}

Graph::Node Graph::add_copy_to_device(DevicePtr destination, const void* pinned,
                                      std::size_t bytes) {
  CUDA_MEMCPY3D copy = linear_copy(bytes);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = pinned;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = destination;
  return add_copy(&copy, bytes, line());
}

Graph::Node Graph::add_copy_to_host(void* pinned, DevicePtr source, std::size_t bytes) {
  CUDA_MEMCPY3D copy = linear_copy(bytes);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = pinned;
  return add_copy(&copy, bytes, line());
}

Graph::Node Graph::add_copy_on_device(DevicePtr destination, DevicePtr source, std::size_t bytes) {
  return add_copy_on_device(destination, source, bytes, line());
}

Graph::Node Graph::add_copy_on_device(DevicePtr destination, DevicePtr source, std::size_t bytes,
                                      const Nodes& after) {
  CUDA_MEMCPY3D copy = linear_copy(bytes);
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source;
  copy.dstDevice = destination;
  return add_copy(&copy, bytes, after);
}

Graph::Node Graph::add_fill(DevicePtr destination, uint32_t value, int element, std::size_t count) {
  return add_fill(destination, value, element, count, line());
}

Graph::Node Graph::add_fill(DevicePtr destination, uint32_t value, int element, std::size_t count,
                            const Nodes& after) {
  if (count == 0) return add_copy(nullptr, 0, after);
  device_->make_current();
  CUDA_MEMSET_NODE_PARAMS parameters{};
  parameters.dst = destination;
  parameters.value = value;
  parameters.elementSize = static_cast<unsigned>(element);
  parameters.width = count;
  parameters.height = 1;
  Node node = nullptr;
  const CUresult result = driver().cuGraphAddMemsetNode(&node, handle(), after.data(), after.size(),
                                                        &parameters, device_->context());
  if (result != CUDA_SUCCESS) {
    fail("cuGraphAddMemsetNode", result, fmt::format("{} elements of {} bytes", count, element));
  }
  return added(node);
}

Graph::Node Graph::add_child(const Graph& child) {
  return add_child(child, line());
}

Graph::Node Graph::add_child(const Graph& child, const Nodes& after) {
  device_->make_current();
  Node node = nullptr;
  check(driver().cuGraphAddChildGraphNode(&node, handle(), after.data(), after.size(),
                                          child.handle()),
        "cuGraphAddChildGraphNode");
  return added(node);
}

void Graph::begin_capture(const Stream& stream) {
  stream.device().make_current();
  // Thread-local: other threads may go on allocating while this one captures.
  check(driver().cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "cuStreamBeginCapture");
}

Graph Graph::end_capture(const Stream& stream) {
  CUgraph graph = nullptr;
  check(driver().cuStreamEndCapture(stream.handle(), &graph), "cuStreamEndCapture");
  return Graph(stream.device(), graph);
}

void Graph::abandon_capture(const Stream& stream) noexcept {
  const detail::DriverApi& api = detail::driver_state();
  CUgraph graph = nullptr;
  if (api.cuStreamEndCapture(stream.handle(), &graph) == CUDA_SUCCESS && graph != nullptr) {
    api.cuGraphDestroy(graph);
  }
}

void ExecutableGraph::Deleter::operator()(CUgraphExec_st* graph) const noexcept {
  detail::driver_state().cuGraphExecDestroy(graph);
}

ExecutableGraph::ExecutableGraph(const Graph& graph) : device_(&graph.device()) {
  device_->make_current();
  CUgraphExec executable = nullptr;
  const CUresult result = driver().cuGraphInstantiate(&executable, graph.handle(), 0);
  if (result != CUDA_SUCCESS) {
    fail("cuGraphInstantiate", result, fmt::format("{} nodes", graph.size()));
  }
  handle_.reset(executable);
}

void ExecutableGraph::upload(const Stream& stream) const {
  device_->make_current();
  check(driver().cuGraphUpload(handle_.get(), stream.handle()), "cuGraphUpload");
}

void ExecutableGraph::launch(const Stream& stream) const {
  device_->make_current();
  check(driver().cuGraphLaunch(handle_.get(), stream.handle()), "cuGraphLaunch");
}

}  // namespace sinter::cuda

#endif  // SINTER_HAVE_CUDA
