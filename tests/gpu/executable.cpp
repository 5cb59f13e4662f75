// Executables and sessions on CUDA: the same bodies as on the host.

#include <sinter/tests/device_cases.h>
#include <sinter/tests/gpu/support.h>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("CUDA agrees with the reference") {
  SINTER_NEEDS_GPU();
  agrees_with_reference(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA, SH-08: values live as long as something needs them") {
  SINTER_NEEDS_GPU();
  keeps_values_alive(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA: entry graphs share the state") {
  SINTER_NEEDS_GPU();
  shares_state(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA, RT-04: bindings are refused with both sides") {
  SINTER_NEEDS_GPU();
  refuses_bindings(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA, MP-02: schedules are values of the run") {
  SINTER_NEEDS_GPU();
  follows_the_schedule(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA: a bad index leaves the state as it was") {
  SINTER_NEEDS_GPU();
  keeps_state_on_faults(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA: a bad index in one graph holds back the others") {
  SINTER_NEEDS_GPU();
  holds_back_all_graphs(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA, DR-03: masks follow seed and step") {
  SINTER_NEEDS_GPU();
  draws_by_step(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA: the second compile takes every kernel from the cache") {
  SINTER_NEEDS_GPU();
  auto module = parse(block_text());
  compile(*module, options_for(DeviceKind::Cuda));
  auto again = compile(*module, options_for(DeviceKind::Cuda));
  CHECK(again->stats().compiled == 0);
  CHECK(again->stats().cached == again->stats().kernels);
}

TEST_CASE("CUDA: tensors without elements") {
  SINTER_NEEDS_GPU();
  runs_empty_graphs(options_for(DeviceKind::Cuda));
}

TEST_CASE("CUDA: fuse, cse, recompute, layout and plan-memory change no bit") {
  SINTER_NEEDS_GPU();
  keeps_bits_without(DeviceKind::Cuda);
}

TEST_CASE("CUDA: under a cap of 99 KiB of shared memory, as smaller cards have") {
  SINTER_NEEDS_GPU();
  CompileOptions options = options_for(DeviceKind::Cuda);
  options.shared_memory = 99 << 10;
  agrees_with_reference(options);
  auto compiled = compile(*parse(block_text()), options);
  CHECK(compiled->module().target.shared_memory == 99 << 10);
}

TEST_CASE("without a GPU a request for one says what to do") {
  if (cuda::device_count() > 0) SINTER_SKIP("there is a CUDA device");
  auto module = parse(block_text());
  std::string message = device_error([&] { compile(*module, options_for(DeviceKind::Cuda)); });
  CHECK(message.find("driver") != std::string::npos);
}
