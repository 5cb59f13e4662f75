#include <sinter/tests/frontends/train_support.h>

using namespace sinter;
namespace fs = std::filesystem;
using test::counting_text, test::Folder, test::kTinyGpt, test::on_reference;

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
    train::TrainConfig config = kTinyGpt;
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

TEST_CASE("train: gradients of f16 are those of f32, whatever the loss was scaled by") {
  data::ByteText text = counting_text();
  auto norm = [&](const char* dtype, int64_t parts) {
    train::TrainConfig config = kTinyGpt;
    config.batch = 4;
    config.dtype = dtype;
    config.accumulate = parts;
    train::GptTrainer trainer(config, on_reference());
    trainer.init();
    return trainer.step(text.batch(4, 1, 0), 0, 0.01).grad_norm;
  };
  double right = norm("f32", 1);
  for (int64_t parts : {1, 2}) CHECK(norm("f16", parts) == doctest::Approx(right).epsilon(0.01));
}

TEST_CASE("train: a run that is told to stop saves what it has") {
  Folder folder;
  train::GptTrainer trainer(kTinyGpt, on_reference());
  trainer.init();
  volatile std::sig_atomic_t stop = 1;
  auto result = train::run_training(trainer, counting_text(),
                                    {.rate = {.steps = 30}, .out = folder.path, .stop = &stop});
  CHECK(result.stopped);
  CHECK(result.steps == 1);
  CHECK(result.checkpoint == folder.path / "step-1");
  CHECK(train::read_train_state(result.checkpoint).step == 1);
}

TEST_CASE("train: each optimizer learns, and goes on from what it saved") {
  data::ByteText text = counting_text();
  for (std::string_view name : train::optimizer_names()) {
    CAPTURE(name);
    Folder folder;
    train::TrainConfig config = kTinyGpt;
    config.optimizer = name;
    train::GptTrainer trainer(config, on_reference());
    trainer.init();
    const double lr = name == "sgd"         ? 1
                      : name == "momentum"  ? 0.1
                      : name == "lion"      ? 0.003
                      : name == "adafactor" ? 0.2
                                            : 0.02;
    double first = 0, last = 0;
    for (int64_t i = 0; i < 15; ++i) {
      last = trainer.step(text.batch(2, 1, static_cast<uint32_t>(i)), i, lr).loss;
      if (i == 0) first = last;
    }
    CHECK(last < first - 0.05);
    train::TrainState state;
    state.config = config;
    state.step = 15;
    std::string saved = train::save_checkpoint(folder.path, trainer, state);
    state = train::read_train_state(saved);
    CHECK(state.config.optimizer == name);
    CHECK(state.updates == 15);
    train::GptTrainer other(state.config, on_reference());
    train::load_checkpoint(saved, state, other, true);
    auto batch = text.batch(2, 1, 15);
    CHECK(other.step(batch, 15, lr).loss == trainer.step(batch, 15, lr).loss);
  }
  train::TrainConfig config = kTinyGpt;
  config.optimizer = "newton";
  CHECK(
      test::contains(test::message_of([&] { config.check(); }), "there is no optimizer 'newton'"));
}

TEST_CASE("train: weights from a file, by name") {
  Folder folder;
  train::GptTrainer one(kTinyGpt, on_reference()), other(kTinyGpt, on_reference());
  one.init();
  train::TrainState state;
  state.config = kTinyGpt;
  fs::path saved = train::save_checkpoint(folder.path, one, state);
  train::load_weights(saved / "model.safetensors", other);
  for (const std::string& name : one.weight_names())
    CHECK(other.state(name).same_bits(one.state(name)));
  std::string error =
      test::message_of([&] { train::load_weights(saved / "optimizer.safetensors", other); });
  CHECK_MESSAGE(test::contains(error, "has no tensor 'wte.weight'"), error);
}
