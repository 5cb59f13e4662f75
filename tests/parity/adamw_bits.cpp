// AdamW gives the same bits on every device of this machine.

#include <sinter/tests/cases/devices.h>
#include <sinter/tests/parity/adamw_bits.h>
#include <sinter/tests/support.h>

using namespace sinter;
using namespace sinter::test;

TEST_CASE("parity: AdamW gives the same bits on every device") {
  for (DeviceKind device : devices_here()) {
    if (device == DeviceKind::Interpreter) continue;
    CAPTURE(to_string(device));
    check_adamw_bits(DeviceKind::Interpreter, device);
  }
}
