#include <sinter/frontends/checkpoint/checksum.h>
#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/frontends/train/checkpoint.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";

void flush_to_disk(const std::string& path) {
  int descriptor = open(path.c_str(), O_RDONLY);
  if (descriptor < 0 || fsync(descriptor) != 0) {
    std::string why = std::strerror(errno);
    if (descriptor >= 0) close(descriptor);
    throw Error(fmt::format("cannot write '{}': {}", path, why));
  }
  close(descriptor);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
  flush_to_disk(path);
}

std::string checksum_of(const Tensor& t) {
  return checksum(t.data(), static_cast<size_t>(t.bytes()));
}

void write_tensors(const fs::path& folder, const char* file, const GptTrainer& trainer,
                   const std::vector<std::string>& names, TrainState& state) {
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) {
    tensors.emplace_back(name, trainer.state(name));
    state.checksums[file][name] = checksum_of(tensors.back().second);
  }
  write_safetensors(folder / file, tensors);
}

using Checksums = std::map<std::string, std::string>;

// The file's tensors, checked against the names and types that the trainer has, and the checksums
// if there are any to check.
void read_tensors(const std::string& path, const GptTrainer& trainer,
                  const std::vector<std::string>& names, const Checksums* sums,
                  std::vector<NamedTensor>& tensors) {
  SafetensorsFile file(path);
  for (const std::string& name : names) {
    const auto* entry = file.find(name);
    if (entry == nullptr) throw Error(fmt::format("'{}' has no tensor '{}'", path, name));
    require_type(fmt::format("'{}': tensor '{}'", path, name), trainer.state(name).type(),
                 entry->type);
    Tensor value = file.read(*entry);
    bool known = sums != nullptr && sums->contains(name);
    if (sums != nullptr && (!known || sums->at(name) != checksum_of(value)))
      throw Error(fmt::format(
          "'{}': tensor '{}' is not the one that was saved: its checksum is {}, "
          "that in {} {}",
          path, name, checksum_of(value), kState, known ? sums->at(name) : "is missing"));
    tensors.emplace_back(name, std::move(value));
  }
  if (file.entries().size() != names.size())
    for (const auto& entry : file.entries())
      if (std::find(names.begin(), names.end(), entry.name) == names.end())
        throw Error(
            fmt::format("'{}' has a tensor '{}' that the model does not", path, entry.name));
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = -1;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

// N of a folder called step-N.
std::optional<int64_t> step_of(const fs::path& folder) {
  std::string name = folder.filename();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return whole_number(std::string_view(name).substr(kPrefix.size()));
}

// The process that writes, or wrote, the folder .step-N.PID.
std::optional<int64_t> writer_of(const fs::path& folder) {
  std::string name = folder.filename();
  if (!name.starts_with(fmt::format(".{}", kPrefix))) return std::nullopt;
  return whole_number(std::string_view(name).substr(name.rfind('.') + 1));
}

// Puts `scratch` in the place of `target`; what was there is in `scratch` then, or gone.
void publish(const fs::path& scratch, const fs::path& target) {
  if (!fs::exists(target)) return fs::rename(scratch, target);
  if (renameat2(AT_FDCWD, scratch.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  // A file system that cannot exchange: a moment without either is as good as it gets.
  fs::remove_all(target);
  fs::rename(scratch, target);
}

// When the run began that wrote it. One that cannot be read counts as the last, and is refused
// where it is read.
int64_t run_of(const fs::path& folder) {
  try {
    return read_train_state(folder).started;
  } catch (const Error&) {
    return std::numeric_limits<int64_t>::max();
  }
}

}  // namespace

std::string save_checkpoint(const std::string& dir, const GptTrainer& trainer, TrainState state) {
  fs::path target = fs::path(dir) / fmt::format("{}{}", kPrefix, state.step);
  fs::path scratch = fs::path(dir) / fmt::format(".{}{}.{}", kPrefix, state.step, getpid());
  try {
    remove_leftovers(dir);
    fs::create_directories(scratch);
    state.checksums.clear();
    state.loss_scale = trainer.loss_scale();
    state.skipped = trainer.skipped();
    state.updates = trainer.updates().value_or(state.step - state.skipped);
    write_tensors(scratch, kModel, trainer, trainer.weight_names(), state);
    write_tensors(scratch, kOptimizer, trainer, trainer.optimizer_names(), state);
    write_text(scratch / kState, to_json(state));
    flush_to_disk(scratch);
    publish(scratch, target);
    flush_to_disk(dir);
    fs::remove_all(scratch);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(scratch, ignored);
    throw Error(fmt::format("cannot save '{}': {}", target.string(), e.what()));
  }
  return target;
}

void remove_leftovers(const std::string& dir) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    auto writer = writer_of(entry.path());
    if (!writer) continue;
    bool own = *writer == getpid();
    if (own || (kill(static_cast<pid_t>(*writer), 0) != 0 && errno == ESRCH))
      fs::remove_all(entry.path(), ignored);
  }
}

std::string latest_checkpoint(const std::string& dir) {
  std::error_code error;
  fs::path best;
  std::pair<int64_t, int64_t> best_key{-1, -1};
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    auto step = step_of(entry.path());
    if (!step) continue;
    std::pair<int64_t, int64_t> key{run_of(entry.path()), *step};
    if (key > best_key) best = entry, best_key = key;
  }
  if (best.empty()) throw Error(fmt::format("'{}' has no checkpoint step-N", dir));
  return best;
}

TrainState read_train_state(const std::string& folder) {
  for (const char* name : {kModel, kOptimizer, kState})
    if (!fs::is_regular_file(fs::path(folder) / name))
      throw Error(fmt::format("checkpoint '{}' is incomplete: no {}", folder, name));
  std::string path = fs::path(folder) / kState;
  try {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return parse_train_state(text.str());
  } catch (const Error& e) {
    throw Error(fmt::format("'{}' is malformed: {}", path, e.diagnostic().message));
  }
}

void load_checkpoint(const std::string& folder, const TrainState& state, GptTrainer& trainer,
                     bool optimizer) {
  std::vector<NamedTensor> tensors;
  const Checksums none;
  auto read = [&](const char* file, const std::vector<std::string>& names) {
    auto known = state.checksums.find(file);
    read_tensors(fs::path(folder) / file, trainer, names,
                 known != state.checksums.end() ? &known->second : &none, tensors);
  };
  read(kModel, trainer.weight_names());
  if (optimizer) read(kOptimizer, trainer.optimizer_names());
  for (const auto& [name, value] : tensors) trainer.set_state(name, value);
}

void load_weights(const std::string& path, GptTrainer& trainer) {
  std::vector<NamedTensor> tensors;
  read_tensors(path, trainer, trainer.weight_names(), nullptr, tensors);
  for (const auto& [name, value] : tensors) trainer.set_state(name, value);
}

}  // namespace sinter::train
