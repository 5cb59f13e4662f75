// Random graphs on CUDA against the f64 reference; SINTER_FUZZ_COUNT and SINTER_FUZZ_SEED ask for
// more or others. Failing ones are cut down and written to the folder `fuzz`.

#include <sinter/runtime/cuda/driver.h>
#include <sinter/tests/fuzz/lib/session.h>
#include <sinter/tests/support.h>

#include <cstdlib>

namespace sinter::test {

TEST_CASE("random graphs on CUDA are near the f64 reference") {
  if (cuda::device_count() == 0) SINTER_SKIP("no CUDA device");
  FuzzOptions options;
  options.device = DeviceKind::Cuda;
  options.count = 100;
  if (const char* count = std::getenv("SINTER_FUZZ_COUNT")) options.count = std::atoll(count);
  if (const char* seed = std::getenv("SINTER_FUZZ_SEED"))
    options.first_seed = static_cast<uint64_t>(std::atoll(seed));
  FuzzResult result = run_fuzz(options);
  for (const std::string& failure : result.failures) FAIL_CHECK(failure);
  CHECK(result.graphs == options.count);
  CHECK(result.ill * 20 <= result.graphs);
  MESSAGE(result.summary());
}

}  // namespace sinter::test
