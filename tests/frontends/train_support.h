#pragma once
// A small GPT and what it trains on, for the tests of training.

#include <sinter/frontends/train/run.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>

#include <unistd.h>

#include <filesystem>

namespace sinter::test {

using Folder = TemporaryFolder;

inline const train::TrainConfig kTinyGpt{
    .model = {.layers = 1, .heads = 2, .width = 8, .vocab = 16, .context = 8, .dropout = 0.1},
    .batch = 2};

inline data::ByteText counting_text() {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>(i % 16);
  return {text, kTinyGpt.model.context, kTinyGpt.model.vocab};
}

inline CompileOptions on_reference() {
  CompileOptions options;
  options.device = DeviceKind::Reference;
  return options;
}

inline std::string message_of(auto&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace sinter::test
