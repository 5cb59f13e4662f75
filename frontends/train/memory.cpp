#include <sinter/frontends/train/memory.h>
#include <sinter/runtime/attention.h>
#include <sinter/runtime/memory.h>

namespace sinter::train {

int64_t planned_bytes(const TrainConfig& config, const std::string& target) {
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  options.target = target;
  choose_attention(options, *parse_attention(config.attention));
  return planned_memory(build_gpt(config)->module(), options).total();
}

std::optional<Fit> find_fit(const TrainConfig& config, const std::string& target, int64_t limit) {
  auto attempt = [&](const TrainConfig& c) -> std::optional<Fit> {
    int64_t bytes = planned_bytes(c, target);
    if (bytes > limit) return std::nullopt;
    return Fit{c, bytes};
  };
  TrainConfig c = config;
  if (auto fit = attempt(c)) return fit;
  if (c.recompute == "none") {
    c.recompute = "block";
    if (auto fit = attempt(c)) return fit;
  }
  while (c.rows() % 2 == 0) {
    c.accumulate *= 2;
    if (auto fit = attempt(c)) return fit;
  }
  // One part of a batch that does not split further: fewer sequences.
  while (c.rows() > 1) {
    int64_t rows = c.rows() / 2;
    c.batch = rows * c.accumulate;
    if (auto fit = attempt(c)) return fit;
  }
  return std::nullopt;
}

std::string flags_of(const TrainConfig& fit) {
  return fmt::format("--batch {} --accumulate {} --recompute {}", fit.batch, fit.accumulate,
                     fit.recompute);
}

}  // namespace sinter::train
