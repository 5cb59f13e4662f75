#include <sinter/frontends/train/run.h>
#include <sinter/tests/support.h>

#include <filesystem>
#include <fstream>

using namespace sinter;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() {
    std::string pattern = fs::temp_directory_path() / "sinter-train-XXXXXX";
    path = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

const train::TrainConfig kConfig{
    .model = {.layers = 1, .heads = 2, .width = 8, .vocab = 16, .context = 8, .dropout = 0.1},
    .batch = 2};

std::string message_of(auto&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

CompileOptions on_reference() {
  CompileOptions options;
  options.device = DeviceKind::Reference;
  return options;
}

data::ByteText counting_text() {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>(i % 16);
  return {text, kConfig.model.context, kConfig.model.vocab};
}

}  // namespace

TEST_CASE("train: learning rates of the schedules") {
  train::LearningRate rate{
      .peak = 1, .schedule = train::Schedule::Cosine, .steps = 110, .warmup = 10};
  CHECK(rate.at(0) == doctest::Approx(0.1));
  CHECK(rate.at(9) == doctest::Approx(1));
  CHECK(rate.at(10) == doctest::Approx(1));
  CHECK(rate.at(60) == doctest::Approx(0.55));
  CHECK(rate.at(110) == doctest::Approx(0.1));
  CHECK(rate.at(500) == doctest::Approx(0.1));
  rate.schedule = train::Schedule::Linear;
  CHECK(rate.at(35) == doctest::Approx(0.775));
  rate.decay_steps = 50;
  CHECK(rate.at(35) == doctest::Approx(0.55));
  rate.schedule = train::Schedule::Constant;
  CHECK(rate.at(109) == doctest::Approx(1));
  rate.schedule = train::Schedule::Wsd;
  CHECK(rate.at(60) == doctest::Approx(1));
  CHECK(rate.at(85) == doctest::Approx(0.55));
  CHECK(!train::parse_schedule("step"));
}

TEST_CASE("train: the loss falls, and the same seed gives the same bits") {
  data::ByteText text = counting_text();
  auto run = [&](uint64_t seed) {
    train::TrainConfig config = kConfig;
    config.seed = seed;
    train::GptTrainer trainer(config, on_reference());
    trainer.init();
    double before = trainer.validate(text);
    auto result = train::run_training(
        trainer, text,
        {.rate = {.peak = 0.02, .schedule = train::Schedule::Constant, .steps = 30}});
    CHECK(result.steps == 30);
    CHECK(result.val_loss < before - 0.5);
    CHECK(trainer.sample("\x01\x02", 5, 0, 1).size() == 5);
    return trainer.state("wte.weight");
  };
  Tensor first = run(1);
  CHECK(first.same_bits(run(1)));
  CHECK(!first.same_bits(run(2)));
}

TEST_CASE("train: a run that is told to stop saves what it has") {
  Folder folder;
  train::GptTrainer trainer(kConfig, on_reference());
  trainer.init();
  volatile std::sig_atomic_t stop = 1;
  auto result = train::run_training(trainer, counting_text(),
                                    {.rate = {.steps = 30}, .out = folder.path, .stop = &stop});
  CHECK(result.stopped);
  CHECK(result.steps == 1);
  CHECK(result.checkpoint == folder.path / "step-1");
  CHECK(train::read_train_state(result.checkpoint).step == 1);
}

TEST_CASE("train: a checkpoint brings back weights and optimizer, and replaces one of its step") {
  Folder folder;
  train::GptTrainer trainer(kConfig, on_reference());
  trainer.init();
  data::ByteText text = counting_text();
  trainer.step(text.batch(2, 1, 0), 0, 0.01);
  train::save_checkpoint(folder.path, trainer, {kConfig, 1, "some/path"});
  trainer.step(text.batch(2, 1, 1), 1, 0.01);
  std::string saved = train::save_checkpoint(folder.path, trainer, {kConfig, 1, "some/path"});
  CHECK(train::latest_checkpoint(folder.path) == saved);
  int entries = 0;
  for ([[maybe_unused]] const auto& e : fs::directory_iterator(folder.path)) ++entries;
  CHECK(entries == 1);  // no scratch is left

  train::TrainState state = train::read_train_state(saved);
  CHECK(state.config.model.width == 8);
  CHECK(state.config.model.dropout == 0.1);
  CHECK(state.data == "some/path");
  train::GptTrainer other(state.config, on_reference());
  train::load_checkpoint(saved, other, true);
  // The third step of both runs is the same, moments and dropout included.
  auto batch = text.batch(2, 1, 2);
  CHECK(other.step(batch, 2, 0.01).loss == trainer.step(batch, 2, 0.01).loss);
  for (const std::string& name : trainer.optimizer_names())
    CHECK_MESSAGE(other.state(name).same_bits(trainer.state(name)), name);
}

TEST_CASE("train: checkpoints that do not fit are refused") {
  Folder folder;
  CHECK(contains(message_of([&] { train::latest_checkpoint(folder.path); }), "has no checkpoint"));
  train::GptTrainer trainer(kConfig, on_reference());
  std::string saved = train::save_checkpoint(folder.path, trainer, {kConfig, 7, ""});
  train::TrainConfig wide = kConfig;
  wide.model.width = 16;
  train::GptTrainer other(wide, on_reference());
  std::string error = message_of([&] { train::load_checkpoint(saved, other, false); });
  CHECK_MESSAGE(contains(error, "expects f32[16,16], given f32[16,8]"), error);
  train::TrainConfig deep = kConfig;
  deep.model.layers = 2;
  train::GptTrainer deeper(deep, on_reference());
  CHECK(contains(message_of([&] { train::load_checkpoint(saved, deeper, false); }),
                 "has no tensor 'blocks.1.ln1.weight'"));
  CHECK(contains(message_of([&] {
                   train::GptTrainer half(kConfig, on_reference());
                   fs::remove(fs::path(saved) / "model.safetensors");
                   train::read_train_state(saved);
                 }),
                 "is incomplete: no model.safetensors"));
  std::ofstream(fs::path(saved) / "model.safetensors") << "x";
  std::ofstream(fs::path(saved) / "state.json") << "{\"format\": 1}";
  CHECK(contains(message_of([&] { train::read_train_state(saved); }), "state.json' is malformed"));
}
