// RT-01: a plan that does not fit is refused when it is compiled, with what would help to see why.

#include <sinter/runtime/memory.h>
#include <sinter/tests/device_cases.h>

using namespace sinter;
using namespace sinter::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("RT-01: a plan beyond the device is refused, and a smaller graph goes on") {
  const char* huge = R"(graph @g(%x: f32[1048576,1]) -> f32[1048576] {
  %wide = broadcast %x : f32[1048576,1048576]
  %hot = exp %wide : f32[1048576,1048576]
  %turned = permute %hot {axes = [1, 0]} : f32[1048576,1048576]
  %s = sum %hot {axes = [1]} : f32[1048576]
  %t = sum %turned {axes = [1]} : f32[1048576]
  %m = max %turned {axes = [0]} : f32[1048576]
  %y = add %s, %t : f32[1048576]
  %z = add %y, %m : f32[1048576]
  return %z
})";
  // With one kernel an op, every value has a place.
  for (DeviceKind device : {DeviceKind::Interpreter, DeviceKind::Cpu}) {
    CompileOptions options = options_for(device, {"fuse"});
    options.memory_info = MemoryInfo{80'000'000'000, 85'000'000'000};
    std::string error = error_of([&] { compile(*parse(huge), options); });
    CHECK_MESSAGE(has(error, "out of memory: the plan takes "), error);
    CHECK_MESSAGE(has(error, "the device has 80000000000 bytes free of 85000000000"), error);
    CHECK_MESSAGE(has(error, "4398046511104 bytes: %hot f32[1048576,1048576] at trial.sir:3"),
                  error);
    if (device == DeviceKind::Interpreter) {
      options.memory_info = {};
      CHECK(has(error_of([&] { compile(*parse(huge), options); }), "out of memory"));
    }
  }
  auto session =
      session_for("graph @g(%x: f32[3]) -> f32[3] {\n  %y = exp %x : f32[3]\n  return %y\n}",
                  options_for(DeviceKind::Interpreter));
  CHECK(session->run("g", {{"x", Tensor(TensorType{DType::F32, {3}})}}).at("y").at(0) == 1);
}

TEST_CASE("memory: a limit refuses a plan above it and takes one that is equal") {
  auto module = parse(R"(module {target = "host"}
state w: f32[1000]
graph @step(%w: f32[1000], %x: f32[1000]) -> f32[1000] {
  %n = add %w, %x : f32[1000]
  return w = %n
})");
  CompileOptions options = options_for(DeviceKind::Interpreter);
  MemoryNeed need = planned_memory(*module, options);
  CHECK(need.state == 4096);  // once: it is updated in place
  CHECK(need.bindings == 4000);
  options.memory = need.total();
  compile(*module, options);
  options.memory = need.total() - 1;
  std::string error = error_of([&] { compile(*module, options); });
  CHECK_MESSAGE(has(error, fmt::format("the limit asked for is {} bytes", options.memory)), error);
  CHECK_MESSAGE(has(error, "4000 bytes: %w f32[1000]"), error);
}

TEST_CASE("RT-01: a model a tenth over the card") {
  auto module = parse(block_text());
  CompileOptions options = options_for(DeviceKind::Interpreter);
  options.target = "sm_90a";
  const int64_t need = planned_memory(*module, options).total();
  options.memory_info = MemoryInfo{need * 10 / 11, need * 10 / 11};
  std::string error = error_of([&] { compile(*module, options); });
  CHECK_MESSAGE(has(error, fmt::format("out of memory: the plan takes {} bytes", need)), error);
  CHECK_MESSAGE(has(error, "The largest values:"), error);
  options.memory_info = MemoryInfo{need, need};
  compile(*module, options);
}

TEST_CASE("memory: what fusion made is named after the values that it came from") {
  auto module = parse(R"(graph @g(%x: f32[64,32], %w: f32[32,64]) -> f32[64,1] {
  %0 = matmul %x, %w : f32[64,64]
  %1 = exp %0 : f32[64,64]
  %2 = matmul %1, %1 : f32[64,64]
  %3 = sum %2 {axes = [1], keep = true} : f32[64,1]
  return out = %3
})");
  CompileOptions options = options_for(DeviceKind::Interpreter);
  options.memory_info = MemoryInfo{1, 1};
  std::string error = error_of([&] { compile(*module, options); });
  CHECK_MESSAGE(has(error, "16384 bytes: (matmul of %x, %w) f32[64,64] at trial.sir:2:8"), error);
  CHECK_MESSAGE(has(error, "16384 bytes: (exp of %x, %w) f32[64,64] at trial.sir:3:8"), error);
}

TEST_CASE("memory: the five largest values, by name and line, each once") {
  auto module = parse(R"(graph @step(%x: f32[64,32], %w: f32[32,64]) -> f32[] {
  %hidden = matmul %x, %w : f32[64,64] loc("model.cpp":3)
  %wide = matmul %hidden, %w {transpose_b = true} : f32[64,32] loc("model.cpp":4)
  %long = matmul %wide, %wide {transpose_a = true} : f32[32,32] loc("model.cpp":5)
  %small = slice %long {start = [0,0], limit = [32,16]} : f32[32,16] loc("model.cpp":6)
  %half = matmul %long, %small : f32[32,16] loc("model.cpp":7)
  %e = exp %half : f32[32,16] loc("model.cpp":8)
  %tiny = matmul %e, %e {transpose_a = true} : f32[16,16] loc("model.cpp":9)
  %loss = sum %tiny : f32[] loc("model.cpp":10)
  return %loss
}
graph @eval(%x: f32[64,32], %w: f32[32,64]) -> f32[] {
  %hidden = matmul %x, %w : f32[64,64] loc("model.cpp":3)
  %wide = matmul %hidden, %w {transpose_b = true} : f32[64,32] loc("model.cpp":4)
  %loss = sum %wide : f32[] loc("model.cpp":10)
  return %loss
})");
  CompileOptions options = options_for(DeviceKind::Interpreter);
  options.memory_info = MemoryInfo{1, 1};
  std::vector<std::string> largest = planned_memory(*module, options).largest;
  std::vector<std::string> right = {"16384 bytes: %hidden f32[64,64] at model.cpp:3",
                                    "8192 bytes: %x f32[64,32]", "8192 bytes: %w f32[32,64]",
                                    "8192 bytes: %wide f32[64,32] at model.cpp:4",
                                    "4096 bytes: %long f32[32,32] at model.cpp:5"};
  CHECK(largest == right);
  std::string error = error_of([&] { compile(*module, options); });
  for (const std::string& line : right) CHECK_MESSAGE(has(error, "\n  " + line), error);
}
