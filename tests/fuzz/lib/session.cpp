#include <sinter/tests/fuzz/lib/session.h>
#include <sinter/tests/fuzz/lib/shrink.h>

#include <chrono>

namespace sinter::test {

std::string FuzzResult::summary() const {
  return fmt::format(
      "{} graphs of {:.1f} ops, {:.1f} settings each, {} ill-conditioned ({:.1f}%), {} failures, "
      "{:.1f} s",
      graphs, static_cast<double>(ops) / static_cast<double>(std::max<int64_t>(1, graphs)),
      static_cast<double>(settings) / static_cast<double>(std::max<int64_t>(1, graphs)), ill,
      100.0 * static_cast<double>(ill) / static_cast<double>(std::max<int64_t>(1, graphs)),
      failures.size(), seconds);
}

bool parse_device(std::string_view name, DeviceKind& device) {
  for (DeviceKind kind : {DeviceKind::Interpreter, DeviceKind::Cpu, DeviceKind::Cuda})
    if (to_string(kind) == name) return device = kind, true;
  return false;
}

FuzzResult run_fuzz(const FuzzOptions& options) {
  auto start = std::chrono::steady_clock::now();
  FuzzResult result;
  auto fail = [&](const std::string& message) {
    result.failures.push_back(message);
    if (options.progress) options.progress(message + "\n");
  };
  auto enough = [&] {
    return static_cast<int64_t>(result.failures.size()) >= options.most_failures;
  };
  auto settings = all_settings();
  bool interpreted = options.device == DeviceKind::Interpreter && options.arch.empty();
  std::vector<Specimen> batch;
  auto compare_batch = [&] {
    auto comparisons = compare_on(options.device, batch, options.arch);
    for (size_t i = 0; i < batch.size(); ++i) {
      result.ill += comparisons[i].ill;
      ++result.settings;
      if (comparisons[i].failure)
        fail(report_device(batch[i], *comparisons[i].failure, options.device, options.folder,
                           options.arch));
    }
    batch.clear();
  };
  for (int64_t i = 0; i < options.count && !enough(); ++i) {
    uint64_t seed = options.first_seed + static_cast<uint64_t>(i);
    Specimen specimen;
    try {
      specimen = generate(seed, options.generator);
    } catch (const std::exception& e) {
      fail(fmt::format("seed {}: {}", seed, e.what()));
      continue;
    }
    ++result.graphs;
    result.ops += static_cast<int64_t>(specimen.graph().size());
    if (!interpreted) {
      batch.push_back(std::move(specimen));
      if (static_cast<int64_t>(batch.size()) >= options.batch) compare_batch();
      continue;
    }
    Comparison comparison = compare_settings(specimen, settings);
    result.ill += comparison.ill;
    result.settings += comparison.ran;
    if (comparison.failure)
      fail(report_settings(specimen, *comparison.failure, settings, options.folder));
  }
  if (!batch.empty()) compare_batch();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace sinter::test
