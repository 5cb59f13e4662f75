// Timed choices: made once, kept in the record, and carried out by whoever is given it.

#include <sinter/tests/device_cases.h>
#include <sinter/tests/gpu/support.h>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("CUDA: products are tuned once, and the record repeats the bits") {
  SINTER_NEEDS_GPU();
  const char* text =
      R"(graph @g(%x: bf16[1024,512], %w: bf16[512,2048]) -> (f32[1024,2048], bf16[1024,2048]) {
  %y = matmul %x, %w {result = "f32"} : f32[1024,2048]
  %z = matmul %x, %w : bf16[1024,2048]
  %a = exp %y : f32[1024,2048]
  return out = %a, %z
})";
  CompileOptions options = options_for(DeviceKind::Cuda);
  CHECK(compile(*parse(text), options)->tuning().empty());
  options.tune = true;
  auto tuned = compile(*parse(text), options);
  const TuningRecord record = tuned->tuning();
  CHECK(record.choices.size() == 2);
  auto inputs = [] {
    return Bindings{{"x", fill({DType::BF16, {1024, 512}}, 1)},
                    {"w", fill({DType::BF16, {512, 2048}}, 2)}};
  };
  Bindings first = make_session(tuned)->run("g", inputs());
  // Given the record, nothing is timed.
  options.tuning = record;
  CHECK(compile(*parse(text), options)->tuning() == record);
  options.tune = false;
  auto again = compile(*parse(text), options);
  CHECK(again->tuning() == record);
  Bindings second = make_session(again)->run("g", inputs());
  for (const auto& entry : first) CHECK(entry.second.same_bits(second.at(entry.first)));
  options.tuning.made_with = "another";
  CHECK(compile(*parse(text), options)->tuning().empty());
}
