#include <doctest/doctest.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/device_cases.h>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("tuning: a record of another library or card is left aside") {
  const TuningRecord made{"sm_90a cublaslt 130100", {{"bf16[8x8 , 8x8] -> bf16", "00"}}};
  CHECK(detail::usable_record(made, "sm_90a cublaslt 130100") == made);
  for (const char* here : {"sm_90a cublaslt 130200", "sm_80 cublaslt 130100"}) {
    TuningRecord fresh = detail::usable_record(made, here);
    CHECK(fresh.empty());
    CHECK(fresh.made_with == here);
  }
}

TEST_CASE("tuning: where nothing is timed the record stays empty") {
  CompileOptions options = options_for(DeviceKind::Interpreter);
  options.tune = true;
  options.tuning = {"sm_90a cublaslt 130100", {{"bf16[8x8 , 8x8] -> bf16", "00"}}};
  CHECK(compile(*parse(block_text()), options)->tuning().empty());
  options.device = DeviceKind::Reference;
  CHECK(compile(*parse(block_text()), options)->tuning().empty());
}
