#include <sinter/tests/frontends/train_support.h>

using namespace sinter;
using test::counting_text, test::Folder, test::kTinyGpt;

namespace {

CompileOptions interpreted(bool copies) {
  CompileOptions options;
  options.device = DeviceKind::Interpreter;
  if (!copies) options.disabled = {"weight-copies"};
  return options;
}

void check_same_states(const train::GptTrainer& a, const train::GptTrainer& b) {
  REQUIRE(a.optimizer_names() == b.optimizer_names());
  for (const auto& names : {a.weight_names(), a.optimizer_names()})
    for (const std::string& name : names)
      CHECK_MESSAGE(a.state(name).same_bits(b.state(name)), name);
}

}  // namespace

TEST_CASE("train: kept copies of weights change no bit, and no checkpoint knows of them") {
  data::ByteText text = counting_text();
  for (int64_t parts : {1, 2}) {
    CAPTURE(parts);
    train::TrainConfig config = kTinyGpt;
    config.dtype = "bf16";
    config.accumulate = parts;
    train::GptTrainer kept(config, interpreted(true)), cast(config, interpreted(false));
    kept.init();
    cast.init();
    auto step = [&](int64_t i) {
      double losses[2];
      for (auto* trainer : {&kept, &cast})
        losses[trainer == &cast] = trainer->step(text.batch(2, 1, i), i, 0.02).loss;
      CHECK(losses[0] == losses[1]);
    };
    for (int64_t i = 0; i < 2; ++i) step(i);
    check_same_states(kept, cast);
    CHECK(kept.validate(text) == cast.validate(text));

    // Saved by either, loaded by the other.
    Folder folder;
    for (bool from_kept : {true, false}) {
      train::GptTrainer &from = from_kept ? kept : cast, &to = from_kept ? cast : kept;
      train::TrainState state{.config = config, .step = 2};
      std::string saved = train::save_checkpoint(folder.path, from, state);
      to.init();
      train::load_checkpoint(saved, train::read_train_state(saved), to, true);
      check_same_states(kept, cast);
      if (!from_kept) train::load_weights(saved + "/model.safetensors", to);
      step(from_kept ? 2 : 3);
      check_same_states(kept, cast);
    }
  }
}
