#include <sinter/runtime/attention.h>

namespace sinter {

namespace {

constexpr std::string_view kPass = "fuse-attention";

}  // namespace

std::optional<AttentionChoice> parse_attention(std::string_view name) {
  if (name == "auto") return AttentionChoice::Auto;
  if (name == "composed") return AttentionChoice::Composed;
  if (name == "flash") return AttentionChoice::Flash;
  return std::nullopt;
}

void choose_attention(CompileOptions& options, AttentionChoice choice) {
  if (choice == AttentionChoice::Auto) return;
  if (choice == AttentionChoice::Composed) {
    options.disabled.emplace_back(kPass);
    if (options.pipeline.empty()) options.pipeline = default_pipeline();
    for (PipelineStep& step : options.pipeline)
      if (step.pass->name == "native") step.options["skip"] = "attention,attention_backward";
    return;
  }
  if (options.device == DeviceKind::Reference || options.device == DeviceKind::Reference64)
    throw Error(
        fmt::format("flash attention: the device {} runs no kernels", to_string(options.device)));
  if (options.pipeline.empty()) options.pipeline = default_pipeline();
  for (PipelineStep& step : options.pipeline) {
    if (step.pass->name == kPass) step.options["require"] = "native";
    if (step.pass->name == "native") step.options["require"] = "attention,attention_backward";
  }
}

}  // namespace sinter
