#include <sinter/tests/frontends/train_support.h>

using namespace sinter;
using test::counting_text, test::Folder, test::on_reference;

namespace {

const train::TrainConfig& kConfig = test::kTinyGpt;

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

TEST_CASE("train: gradients of f16 are those of f32, whatever the loss was scaled by") {
  data::ByteText text = counting_text();
  auto norm = [&](const char* dtype, int64_t parts) {
    train::TrainConfig config = kConfig;
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
