// SH-01: values of more than 2^31 elements, written and read back by kernels.

#include <sinter/ir/text.h>
#include <sinter/runtime/executable.h>
#include <sinter/runtime/memory.h>
#include <sinter/tests/gpu/support.h>

using namespace sinter;

TEST_CASE("CUDA, SH-01: 2^31 + 8 elements in memory") {
  SINTER_NEEDS_GPU();
  auto module = parse_module(R"(
state x: bf16[2147483656]
graph @fill() -> bf16[2147483656] {
  %i = iota {axis = 0} : i64[2147483656]
  %m = full {value = 251} : i64[2147483656]
  %r = remainder %i, %m : i64[2147483656]
  %v = cast %r : bf16[2147483656]
  return x = %v
}
graph @step(%x: bf16[2147483656]) -> (bf16[2147483656], bf16[8], f32[]) {
  %one = full {value = 1.0} : bf16[2147483656]
  %y = add %x, %one : bf16[2147483656]
  %last = slice %x {start = [2147483648], limit = [2147483656]} : bf16[8]
  %wide = cast %last : f32[8]
  %total = sum %wide : f32[]
  return x = %y, %last, %total
}
)",
                             "large.sir");
  CompileOptions options;
  options.device = DeviceKind::Cuda;
  std::shared_ptr<const Executable> executable;
  try {
    executable = compile(*module, options);
  } catch (const OutOfMemory&) {
    SINTER_SKIP("the card has no room for 9 GB");
  }
  auto session = make_session(executable);
  session->run("fill", {});
  Bindings first = session->run("step", {});
  CHECK(first.at("last").to_doubles() ==
        std::vector<double>{187, 188, 189, 190, 191, 192, 193, 194});
  // What the first step has written.
  Bindings second = session->run("step", {});
  CHECK(second.at("last").to_doubles() ==
        std::vector<double>{188, 189, 190, 191, 192, 193, 194, 195});
  CHECK(second.at("total").to_doubles()[0] == 1532);
}
