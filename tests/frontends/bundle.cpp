// Launches put together change no bit of a training step: sums, norm, updates and their states.

#include <sinter/frontends/train/trainer.h>
#include <sinter/tests/support.h>

using namespace sinter;

namespace {

struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> states;
  size_t launches = 0;
};

Trained train_six_layers(const std::vector<std::string>& disabled) {
  train::TrainConfig config;
  config.model = {.layers = 6, .heads = 2, .width = 16, .vocab = 32};
  config.model.context = 8;
  config.batch = 2;
  config.clip = 0.5;
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  options.target = "sm_90a";
  options.disabled = disabled;
  train::GptTrainer trainer(config, options);
  trainer.init();
  data::Batch batch{Tensor({DType::I32, {2, 8}}), Tensor({DType::I32, {2, 8}})};
  for (int64_t i = 0; i < 16; ++i) {
    batch.ids.as<int32_t>()[i] = static_cast<int32_t>(i * 7 % 32);
    batch.targets.as<int32_t>()[i] = static_cast<int32_t>(i * 11 % 32);
  }
  Trained out;
  for (int64_t step = 0; step < 2; ++step) {
    train::GptTrainer::StepResult result = trainer.step(batch, step, 1e-2);
    out.losses.push_back(result.loss);
    out.losses.push_back(result.grad_norm);
  }
  std::vector<std::string> names = trainer.weight_names();
  for (const std::string& name : trainer.optimizer_names()) names.push_back(name);
  for (const std::string& name : names) out.states.emplace(name, trainer.state(name));
  for (const auto& value : trainer.executable().plans().at("step").values)
    out.launches += value.value.op() != nullptr && value.value.index() == 0;
  return out;
}

}  // namespace

TEST_CASE("a training step in bundles of launches gives the same bits in fewer launches") {
  Trained together = train_six_layers({}), apart = train_six_layers({"bundle"});
  CHECK(together.losses == apart.losses);
  CHECK(together.losses[0] > 0);
  REQUIRE(together.states.size() == apart.states.size());
  for (const auto& entry : together.states) {
    CAPTURE(entry.first);
    CHECK(entry.second.same_bits(apart.states.at(entry.first)));
  }
  CHECK(together.launches + 100 < apart.launches);
}
