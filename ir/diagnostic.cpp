#include <sinter/ir/diagnostic.h>

#include <mutex>
#include <unordered_map>

namespace sinter {

SourceLocation SourceLocation::here(const char* file, int line) {
  // One shared string per file; __builtin_FILE() yields few distinct texts.
  static std::mutex mutex;
  static std::unordered_map<std::string, std::shared_ptr<const std::string>> files;
  std::lock_guard lock(mutex);
  auto& entry = files[file];
  if (!entry) entry = std::make_shared<const std::string>(file);
  return {entry, line, 0};
}

std::string SourceLocation::str() const {
  if (!known()) return "<unknown>";
  if (column > 0) return fmt::format("{}:{}:{}", *file, line, column);
  return fmt::format("{}:{}", *file, line);
}

std::string Diagnostic::str() const {
  if (!location.known()) return fmt::format("error: {}", message);
  return fmt::format("{}: error: {}", location.str(), message);
}

namespace detail {
void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(
      fmt::format("internal error at {}:{}: {} ({})", file, line, message, condition));
}
}  // namespace detail

}  // namespace sinter
