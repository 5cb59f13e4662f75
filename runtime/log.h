#pragma once
// Messages of the library: the spdlog logger named "sinter".
//
// An application that registers a logger of that name before the first message receives them in its
// own sinks. Otherwise one that writes to standard error is made, at the level that SINTER_LOG
// names (trace, debug, info, warn, error, off; default warn). Nothing goes to standard output.

#include <string_view>

namespace sinter {

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);

}  // namespace sinter
