// Saving and going on: what is read back is what was written, whole, whatever happens to the
// writer; and a run that stopped ends in the same bits as one that did not.

#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/frontends/train/report.h>
#include <sinter/tests/frontends/train_support.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

using namespace sinter;
using namespace sinter::test;
namespace fs = std::filesystem;

namespace {

train::TrainState state_at(int64_t step, const train::TrainConfig& config = kTinyGpt) {
  train::TrainState state;
  state.config = config;
  state.step = step;
  return state;
}

int entries(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string text_of(const fs::path& file) {
  std::ifstream from(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(from), {}};
}

// Every state of both, bit for bit.
void check_same_states(const train::GptTrainer& a, const train::GptTrainer& b) {
  for (const auto& names : {a.weight_names(), a.optimizer_names()})
    for (const std::string& name : names)
      CHECK_MESSAGE(a.state(name).same_bits(b.state(name)), name);
}

// Gives every tensor the value `tag`, so that a mixture of two saves shows.
void tag_states(train::GptTrainer& trainer, int64_t tag) {
  for (const auto& names : {trainer.weight_names(), trainer.optimizer_names()})
    for (const std::string& name : names)
      trainer.set_state(name, Tensor::full(trainer.state(name).type(), static_cast<double>(tag)));
}

void check_tagged(const train::GptTrainer& trainer, int64_t tag) {
  for (const auto& names : {trainer.weight_names(), trainer.optimizer_names()})
    for (const std::string& name : names) {
      Tensor t = trainer.state(name);
      bool all = true;
      for (int64_t i = 0; i < t.size(); ++i) all = all && t.at(i) == static_cast<double>(tag);
      CHECK_MESSAGE(all, name);
    }
}

}  // namespace

TEST_CASE("checkpoint: brings back weights and optimizer, and replaces one of its step") {
  Folder folder;
  train::GptTrainer trainer(kTinyGpt, on_reference());
  trainer.init();
  data::ByteText text = counting_text();
  trainer.step(text.batch(2, 1, 0), 0, 0.01);
  train::save_checkpoint(folder.path, trainer, state_at(1));
  trainer.step(text.batch(2, 1, 1), 1, 0.01);
  train::TrainState given = state_at(1);
  given.data = "some/path";
  given.rate = {.peak = 0.25, .schedule = train::Schedule::Wsd, .steps = 77, .warmup = 3};
  given.tuning = {"sm_90a cublaslt 130100", {{"bf16[8x8 , 8x8] -> f32", "00ff"}, {"b", "01"}}};
  std::string saved = train::save_checkpoint(folder.path, trainer, given);
  CHECK(train::latest_checkpoint(folder.path) == saved);
  CHECK(entries(folder.path) == 1);  // no scratch is left

  train::TrainState state = train::read_train_state(saved);
  CHECK(state.config.model.width == 8);
  CHECK(state.config.model.dropout == 0.1);
  CHECK(state.data == "some/path");
  CHECK(state.rate.peak == 0.25);
  CHECK(state.rate.schedule == train::Schedule::Wsd);
  CHECK(state.rate.steps == 77);
  CHECK(state.rate.warmup == 3);
  CHECK(state.loss_scale == 1);  // the trainer's: f32 has none
  CHECK(state.tuning == given.tuning);
  CHECK(state.updates == 2);
  train::GptTrainer other(state.config, on_reference());
  train::load_checkpoint(saved, state, other, true);
  // The third step of both runs is the same, moments and dropout included.
  auto batch = text.batch(2, 1, 2);
  CHECK(other.step(batch, 2, 0.01).loss == trainer.step(batch, 2, 0.01).loss);
  check_same_states(other, trainer);
}

TEST_CASE("checkpoint: what does not fit is refused") {
  Folder folder;
  CHECK(contains(message_of([&] { train::latest_checkpoint(folder.path); }), "has no checkpoint"));
  train::GptTrainer trainer(kTinyGpt, on_reference());
  std::string saved = train::save_checkpoint(folder.path, trainer, state_at(7));
  train::TrainState state = train::read_train_state(saved);
  train::TrainConfig wide = kTinyGpt;
  wide.model.width = 16;
  train::GptTrainer other(wide, on_reference());
  std::string error = message_of([&] { train::load_checkpoint(saved, state, other, false); });
  CHECK_MESSAGE(contains(error, "expects f32[16,16], given f32[16,8]"), error);
  CHECK(train::differences(kTinyGpt, wide).at(0) == "width: it has 8, 16 is asked for");
  train::TrainConfig deep = kTinyGpt;
  deep.model.layers = 2;
  train::GptTrainer deeper(deep, on_reference());
  CHECK(contains(message_of([&] { train::load_checkpoint(saved, state, deeper, false); }),
                 "has no tensor 'blocks.1.ln1.weight'"));
  train::TrainConfig freer = kTinyGpt;  // none of this keeps a run from going on
  freer.model.dropout = 0;
  freer.weight_decay = 0;
  CHECK(train::differences(kTinyGpt, freer).empty());

  std::string text = text_of(fs::path(saved) / "state.json");
  text.replace(text.find("\"seed\": 1"), 9, "\"seed\": 2");
  std::ofstream(fs::path(saved) / "state.json") << text;
  error = message_of([&] { train::read_train_state(saved); });
  CHECK_MESSAGE(contains(error, "its checksum is not that of its content"), error);
  std::ofstream(fs::path(saved) / "state.json") << "{\"format\": 1}";
  CHECK(contains(message_of([&] { train::read_train_state(saved); }), "state.json' is malformed"));
  fs::remove(fs::path(saved) / "model.safetensors");
  CHECK(contains(message_of([&] { train::read_train_state(saved); }),
                 "is incomplete: no model.safetensors"));
}

TEST_CASE("checkpoint: a changed byte in a tensor is found, and nothing is set") {
  Folder folder;
  train::GptTrainer trainer(kTinyGpt, on_reference());
  trainer.init();
  std::string saved = train::save_checkpoint(folder.path, trainer, state_at(1));
  train::TrainState state = train::read_train_state(saved);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    std::string whole = text_of(fs::path(saved) / file), broken = whole;
    broken.back() = static_cast<char>(broken.back() ^ 1);
    std::ofstream(fs::path(saved) / file, std::ios::binary) << broken;
    train::GptTrainer other(kTinyGpt, on_reference());
    std::string error = message_of([&] { train::load_checkpoint(saved, state, other, true); });
    CHECK_MESSAGE(contains(error, "is not the one that was saved"), error);
    check_tagged(other, 0);
    std::ofstream(fs::path(saved) / file, std::ios::binary) << whole;
  }
}

TEST_CASE("checkpoint: the run begun last counts, not the highest step of an earlier one") {
  Folder folder;
  train::GptTrainer trainer(kTinyGpt, on_reference());
  train::TrainState early = state_at(9), late = state_at(3);
  early.started = 100;
  late.started = 200;
  train::save_checkpoint(folder.path, trainer, late);
  train::save_checkpoint(folder.path, trainer, early);
  CHECK(train::latest_checkpoint(folder.path) == folder.path / "step-3");
}

TEST_CASE("CK-01: five steps, a new trainer and five more are ten steps in bits") {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    CAPTURE(dtype);
    train::TrainConfig config = kTinyGpt;
    config.dtype = dtype;
    config.batch = 4;
    config.accumulate = 2;
    config.clip = 1;
    train::LearningRate rate{.peak = 0.02, .steps = 10, .warmup = 3};
    data::ByteText text = counting_text();
    Folder whole, parts;
    train::GptTrainer straight(config, on_reference());
    straight.init();
    train::run_training(straight, text, {.rate = rate, .out = whole.path, .eval_every = 5});

    {
      train::GptTrainer first(config, on_reference());
      first.init();
      auto result = train::run_training(
          first, text, {.rate = rate, .out = parts.path, .eval_every = 5, .stop_after = 5});
      CHECK(result.stopped);
      CHECK(result.checkpoint == parts.path / "step-5");
    }
    std::string from = train::latest_checkpoint(parts.path);
    train::TrainState state = train::read_train_state(from);
    train::GptTrainer second(state.config, on_reference());
    train::load_checkpoint(from, state, second, true);
    auto result = train::run_training(
        second, text, {.rate = state.rate, .out = parts.path, .eval_every = 5, .resumed = state});
    CHECK(result.steps == 10);

    check_same_states(straight, second);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      CHECK(text_of(whole.path / "step-10" / file) == text_of(parts.path / "step-10" / file));
    // The metrics say the same too, but for the time that steps took.
    auto told = [](const fs::path& folder) {
      std::ifstream file(folder / "metrics.jsonl");
      std::string line, all;
      while (std::getline(file, line)) all += line.substr(0, line.find(",\"tokens_per_s")) + "\n";
      return all;
    };
    CHECK(told(whole.path) == told(parts.path));
  }
}

TEST_CASE("train: a batch in parts is the batch, dropout included") {
  data::ByteText text = counting_text();
  auto losses = [&](int64_t parts) {
    train::TrainConfig config = kTinyGpt;
    config.batch = 4;
    config.accumulate = parts;
    config.model.dropout = 0.3;
    train::GptTrainer trainer(config, on_reference());
    trainer.init();
    std::vector<double> all;
    for (int64_t i = 0; i < 3; ++i) all.push_back(trainer.step(text.batch(4, 1, i), i, 0.01).loss);
    return all;
  };
  std::vector<double> one = losses(1);
  for (int64_t parts : {2, 4})
    for (size_t i = 0; i < 3; ++i) CHECK(losses(parts)[i] == doctest::Approx(one[i]).epsilon(2e-6));
}

TEST_CASE("checkpoint: going on drops the lines of steps that are done again") {
  Folder folder;
  std::ofstream(folder.path / "metrics.jsonl") << R"({"step":1,"loss":2})"
                                               << "\n"
                                               << R"({"step":2,"loss":2})"
                                               << "\n"
                                               << R"({"step":2,"val_loss":2})"
                                               << "\n"
                                               << R"({"step":3,"loss":2})"
                                               << "\n"
                                               << R"({"step":3,"lo)";
  train::Metrics(folder.path, 2).write({{"step", int64_t{3}}});
  CHECK(text_of(folder.path / "metrics.jsonl") ==
        "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":2}\n{\"step\":3}\n");
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("CK-02: a writer killed at any moment leaves whole checkpoints") {
  Folder folder;
  train::GptTrainer trainer(kTinyGpt, on_reference());
  std::mt19937 random(20);
  auto start = std::chrono::steady_clock::now();
  train::save_checkpoint(folder.path, trainer, state_at(0));
  auto one = std::chrono::steady_clock::now() - start;
  fs::remove_all(folder.path / "step-0");
  const char* kills = std::getenv("SINTER_TEST_KILLS");  // 100 in the long run
  const int rounds = kills != nullptr ? std::atoi(kills) : 25;
  int found = 0;
  for (int round = 0; round < rounds; ++round) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // Each step is saved twice, so that the kill meets replacing as well as adding.
      for (int64_t i = 2 * round; i < 2 * round + 1000; ++i) {
        tag_states(trainer, i);
        train::TrainState state = state_at(i / 2);
        state.rate.warmup = i;
        try {
          train::save_checkpoint(folder.path, trainer, state);
        } catch (const Error&) {
          _exit(1);
        }
      }
      _exit(0);
    }
    // Sometimes not before there is one whole checkpoint, however slow the machine is now.
    auto whole = [&] {
      for (const auto& entry : fs::directory_iterator(folder.path))
        if (!entry.path().filename().string().starts_with(".")) return true;
      return false;
    };
    for (int waits = 0; round % 5 == 0 && waits < 60000 && !whole(); ++waits)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(one * (random() % 1000) / 250);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    for (const auto& entry : fs::directory_iterator(folder.path)) {
      if (entry.path().filename().string().starts_with(".")) continue;
      train::TrainState state = train::read_train_state(entry.path());
      train::GptTrainer reader(state.config, on_reference());
      train::load_checkpoint(entry.path(), state, reader, true);
      check_tagged(reader, state.rate.warmup);
      ++found;
      fs::remove_all(entry.path());
    }
  }
  CHECK(found > 0);
  train::remove_leftovers(folder.path);
  CHECK(entries(folder.path) == 0);
}

TEST_CASE("CK-02: a disk that is full during a save keeps the checkpoint before") {
  Folder folder;
  train::GptTrainer trainer(kTinyGpt, on_reference());
  tag_states(trainer, 1);
  train::save_checkpoint(folder.path, trainer, state_at(1));
  tag_states(trainer, 2);
  // A file that may not grow past a limit fails as one on a full disk does.
  void (*before)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{}, old{};
  getrlimit(RLIMIT_FSIZE, &old);
  for (rlim_t bytes : {0, 1000, 4000, 9000}) {
    limit = {bytes, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int64_t step : {1, 2}) {
      std::string error =
          message_of([&] { train::save_checkpoint(folder.path, trainer, state_at(step)); });
      CHECK_MESSAGE(contains(error, "cannot save '"), error);
    }
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(entries(folder.path) == 1);
    train::TrainState state = train::read_train_state(folder.path / "step-1");
    train::GptTrainer reader(state.config, on_reference());
    train::load_checkpoint(folder.path / "step-1", state, reader, true);
    check_tagged(reader, 1);
  }
  std::signal(SIGXFSZ, before);
}
