#pragma once
// A failing graph made small: outputs dropped, ops replaced by inputs or by what they read, extents
// cut, as long as it still fails.

#include <sinter/tests/fuzz/lib/compare.h>

#include <filesystem>

namespace sinter::test {

// Whether a graph still fails as the first one did; what it throws counts as no.
using Fails = std::function<bool(const Specimen&)>;

// Greedy, and at most `trials` calls of `fails`.
Specimen shrink(const Specimen& specimen, const Fails& fails, int trials = 600);

// Shrinks by comparing `settings`, of which those that still fail are kept, writes the graph to
// `folder` and gives the message: seed, failure, file, and the sinter-run commands that show it.
std::string report_settings(const Specimen& specimen, const Failure& failure,
                            std::span<const Setting> settings, const std::filesystem::path& folder);
// The same for a device against the reference.
std::string report_device(const Specimen& specimen, const Failure& failure, DeviceKind device,
                          const std::filesystem::path& folder, const std::string& arch = "");

}  // namespace sinter::test
