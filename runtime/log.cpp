#include <sinter/runtime/log.h>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>

namespace sinter {
namespace {

std::shared_ptr<spdlog::logger> logger() {
  // Looked up each time, so that an application may replace the logger while it runs.
  if (auto existing = spdlog::get("sinter")) return existing;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (auto existing = spdlog::get("sinter")) return existing;
  auto created = spdlog::stderr_logger_mt("sinter");
  created->set_pattern("%n: %l: %v");
  const char* level = std::getenv("SINTER_LOG");
  created->set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::warn);
  return created;
}

}  // namespace

void log_debug(std::string_view message) {
  logger()->debug("{}", message);
}
void log_info(std::string_view message) {
  logger()->info("{}", message);
}
void log_warning(std::string_view message) {
  logger()->warn("{}", message);
}

}  // namespace sinter
