// Executables and sessions on the host's devices.

#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/detail/shared_library.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/device_cases.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

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

TEST_CASE("fuse, cse, recompute, layout, bundle and plan-memory change no bit") {
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

TEST_CASE("the plan says what reductions were split for") {
  CompileOptions options = options_for(DeviceKind::Interpreter);
  options.target = "sm_90a";
  CHECK(compile(*parse(block_text()), options)->plan_text().find("split for 132 multiproc") !=
        std::string::npos);
  options.target = "host";
  std::string text = compile(*parse(block_text()), options)->plan_text();
  CHECK(text.find(fmt::format("split for {} threads", Target::named("host")->multiprocessors)) !=
        std::string::npos);
}

TEST_CASE("what the environment names, options name too") {
  std::string folder = std::filesystem::temp_directory_path() /
                       fmt::format("sinter-options-{}", static_cast<int>(::getpid()));
  auto module = parse(block_text());
  for (DeviceKind device : host_devices(false)) {
    if (device != DeviceKind::Cpu) continue;
    CompileOptions options = options_for(device);
    options.cache_dir = folder;
    auto first = compile(*module, options);
    CHECK(first->stats().compiled == first->stats().kernels);
    CHECK_FALSE(std::filesystem::is_empty(folder));
    CHECK(compile(*module, options)->stats().compiled == 0);
  }
  std::filesystem::remove_all(folder);

  CompileOptions options = options_for(DeviceKind::Cpu);
  options.host_compiler = "/nowhere/else/c++";
  std::string message;
  try {
    compile(*module, options);
  } catch (const DeviceError& error) {
    message = error.what();
  }
  CHECK(message.find("/nowhere/else/c++") != std::string::npos);
}

TEST_CASE("the CUDA libraries are looked for where the options say") {
  std::string folder = std::filesystem::temp_directory_path() /
                       fmt::format("sinter-toolkit-{}", static_cast<int>(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/libnvrtc.so.12") << "";
  std::vector<std::string> places =
      detail::toolkit_library_candidates("libnvrtc", {13, 12}, folder);
  CHECK(places.front() == folder + "/libnvrtc.so.12");
  std::filesystem::remove_all(folder);

  // Loaded libraries stay: asking for others then is refused, not ignored.
  if (!cuda::nvrtc_available()) SINTER_SKIP("no NVRTC");
  CompileOptions options = options_for(DeviceKind::Interpreter);
  options.nvrtc = folder;
  std::string message;
  try {
    compile(*parse(block_text()), options);
  } catch (const DeviceError& error) {
    message = error.what();
  }
  CHECK(message.find(folder) != std::string::npos);
  CHECK(message.find("loaded it already") != std::string::npos);
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
