// AdamW gives the same bits on the GPU as on the host.

#include <sinter/tests/cases/devices.h>
#include <sinter/tests/gpu/support.h>
#include <sinter/tests/parity/adamw_bits.h>

#include <algorithm>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("adamw on cuda: the same bits as on the host") {
  SINTER_NEEDS_GPU();
  const std::vector<DeviceKind> kinds = devices_here();
  const bool host = std::find(kinds.begin(), kinds.end(), DeviceKind::Cpu) != kinds.end();
  check_adamw_bits(host ? DeviceKind::Cpu : DeviceKind::Interpreter, DeviceKind::Cuda);
}
