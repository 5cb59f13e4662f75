#include <sinter/tests/support.h>
