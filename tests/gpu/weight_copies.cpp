#include <sinter/tests/gpu/support.h>
#include <sinter/tests/weight_copy_cases.h>

using namespace sinter;

TEST_CASE("weight copies on cuda: the bits of casting in each run") {
  SINTER_NEEDS_GPU();
  test::keeps_weight_copies(test::options_for(DeviceKind::Cuda));
}
