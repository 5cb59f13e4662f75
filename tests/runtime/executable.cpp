// Executables and sessions on the host's devices.

#include <sinter/runtime/executable.h>
#include <sinter/tests/device_cases.h>

#include <algorithm>
#include <cstdlib>

using namespace sinter;
using namespace sinter::test;

namespace {

// The devices of this machine's host that work.
std::vector<DeviceKind> host_devices(bool with_reference = true) {
  std::vector<DeviceKind> kinds;
  for (const DeviceEntry& device : list_devices()) {
    bool reference = device.kind == DeviceKind::Reference;
    if (device.kind == DeviceKind::Cuda || (reference && !with_reference)) continue;
    if (device.unavailable.empty()) kinds.push_back(device.kind);
  }
  return kinds;
}

}  // namespace

TEST_CASE("host devices agree with the reference") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    agrees_with_reference(options_for(device));
  }
}

TEST_CASE("CUDA schedules, interpreted, agree with the reference") {
  for (std::string target : {"sm_80", "sm_90a"}) {
    CAPTURE(target);
    CompileOptions options = options_for(DeviceKind::Interpreter);
    options.target = target;
    agrees_with_reference(options);
  }
}

TEST_CASE("SH-08: values live as long as something needs them") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    keeps_values_alive(options_for(device));
  }
}

TEST_CASE("entry graphs share the state") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    shares_state(options_for(device));
  }
}

TEST_CASE("RT-04: bindings are refused with both sides") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    refuses_bindings(options_for(device));
  }
}

TEST_CASE("MP-02: schedules are values of the run") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    follows_the_schedule(options_for(device));
  }
}

TEST_CASE("a bad index leaves the state as it was") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    keeps_state_on_faults(options_for(device));
  }
}

TEST_CASE("a bad index in one graph holds back the others") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    holds_back_all_graphs(options_for(device));
  }
}

TEST_CASE("DR-03: masks follow seed and step") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    draws_by_step(options_for(device));
  }
}

TEST_CASE("tensors without elements") {
  for (DeviceKind device : host_devices()) {
    CAPTURE(to_string(device));
    runs_empty_graphs(options_for(device));
  }
}

TEST_CASE("fuse, cse, recompute, layout and plan-memory change no bit") {
  for (DeviceKind device : host_devices(false)) {
    CAPTURE(to_string(device));
    keeps_bits_without(device);
  }
}

TEST_CASE("the plan names launches, ops, the user's values and lines") {
  auto executable = compile(*parse(block_text()), options_for(DeviceKind::Interpreter));
  std::string text = executable->plan_text();
  for (std::string part : {"graph @step", "matmul 40x24x24 f32", "trial.sir:9:", "arena"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(executable->plans().contains("step"));
  CHECK(executable->stats().kernels > 0);
  CHECK(text == compile(*parse(block_text()), options_for(DeviceKind::Interpreter))->plan_text());
}

TEST_CASE("a dump folder that cannot be written fails no compile") {
  auto module = parse(block_text());
  for (DeviceKind device : host_devices(false)) {
    CAPTURE(to_string(device));
    CompileOptions options = options_for(device);
    options.dump_dir = data_path("support.h/below");  // below a file
    CHECK(compile(*module, options)->stats().kernels > 0);
  }
}

TEST_CASE("the second compile takes every kernel from the cache") {
  auto module = parse(block_text());
  for (DeviceKind device : host_devices(false)) {
    if (device != DeviceKind::Cpu) continue;
    compile(*module, options_for(device));
    auto again = compile(*module, options_for(device));
    CHECK(again->stats().compiled == 0);
    CHECK(again->stats().cached == again->stats().kernels);
  }
}

TEST_CASE("targets that do not fit a device are refused") {
  auto module = parse(block_text());
  CompileOptions options = options_for(DeviceKind::Interpreter);
  options.target = "sm_1";
  CHECK(error_of([&] { compile(*module, options); }) == "error: there is no target 'sm_1'");
  options.device = DeviceKind::Cpu;
  options.target = "sm_90a";
  CHECK(error_of([&] { compile(*module, options); }) ==
        "error: device cpu runs code for target host, not sm_90a");
}

TEST_CASE("a missing host compiler is said in one message") {
  const char* before = std::getenv("SINTER_CXX");
  std::string saved = before != nullptr ? before : "";
  setenv("SINTER_CXX", "/nowhere/c++", 1);
  std::string message;
  try {
    compile(*parse(block_text()), options_for(DeviceKind::Cpu));
  } catch (const DeviceError& error) {
    message = error.what();
  }
  if (before != nullptr)
    setenv("SINTER_CXX", saved.c_str(), 1);
  else
    unsetenv("SINTER_CXX");
  CHECK(message.find("/nowhere/c++") != std::string::npos);
}
