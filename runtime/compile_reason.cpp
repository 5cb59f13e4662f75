#include <sinter/runtime/compile_reason.h>

#include <fmt/format.h>
#include <sinter/runtime/disk_cache.h>

#include <algorithm>

namespace sinter {
namespace {

// A name and a value on alternating lines.
std::string text_of(const CompileSettings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    std::string line = value;
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += fmt::format("{}\n{}\n", name, line);
  }
  return text;
}

CompileSettings settings_of(std::string_view text) {
  CompileSettings settings;
  auto line = [&] {
    size_t end = std::min(text.find('\n'), text.size());
    std::string out(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return out;
  };
  while (!text.empty()) {
    std::string name = line();
    settings.emplace_back(std::move(name), line());
  }
  return settings;
}

std::string difference(const CompileSettings& now, const CompileSettings& before) {
  std::string out;
  for (const auto& setting : now) {
    auto old = std::find_if(before.begin(), before.end(),
                            [&](const auto& b) { return b.first == setting.first; });
    if (old == before.end() || old->second == setting.second) continue;
    out += fmt::format("{}{} {} instead of {}", out.empty() ? "" : ", ", setting.first,
                       setting.second.empty() ? "none" : setting.second,
                       old->second.empty() ? "none" : old->second);
  }
  return out;
}

}  // namespace

std::string compile_reason(DiskCache& cache, std::string_view kind, std::string_view source,
                           const CompileSettings& settings, const std::string& fault) {
  const CacheKey key = cache_key({"compiled with", kind, source});
  const std::string text = text_of(settings);
  const DiskCache::Value known = cache.peek(key);
  if (known == nullptr || *known != text) cache.store(key, text);
  if (!fault.empty()) return fmt::format("its cache entry is {}", fault);
  if (known == nullptr) return "new source";
  // The notes' own form, in which values are one line each.
  std::string changed = difference(settings_of(text), settings_of(*known));
  return changed.empty() ? "its cache entry is gone" : changed;
}

}  // namespace sinter
