#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/frontends/train/checkpoint.h>

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sinter::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kPrefix = "step-";

// Each field of a config once, for writing and for reading.
template <typename Config, typename Visit>
void visit_model(Config& c, Visit&& visit) {
  visit("layers", c.layers);
  visit("heads", c.heads);
  visit("kv_heads", c.kv_heads);
  visit("width", c.width);
  visit("head_dim", c.head_dim);
  visit("hidden", c.hidden);
  visit("vocab", c.vocab);
  visit("context", c.context);
  visit("dropout", c.dropout);
  visit("rope_base", c.rope_base);
  visit("norm_eps", c.norm_eps);
  visit("tied", c.tied);
  visit("qk_norm", c.qk_norm);
}

Json to_json(const TrainState& state) {
  nn::GptConfig resolved = state.config.model.resolved();
  Json model;
  model["style"] = resolved.style == nn::GptStyle::Llama ? "llama" : "gpt2";
  visit_model(resolved, [&](const char* name, const auto& v) { model[name] = v; });
  Json json;
  json["format"] = 1;
  json["step"] = state.step;
  json["seed"] = state.config.seed;
  json["batch"] = state.config.batch;
  json["weight_decay"] = state.config.weight_decay;
  json["data"] = state.data;
  json["model"] = model;
  return json;
}

TrainState from_json(const Json& json) {
  if (json.at("format") != 1) throw Error("its format is not 1");
  TrainState state;
  json.at("step").get_to(state.step);
  json.at("seed").get_to(state.config.seed);
  json.at("batch").get_to(state.config.batch);
  json.at("weight_decay").get_to(state.config.weight_decay);
  json.at("data").get_to(state.data);
  const Json& model = json.at("model");
  std::string style = model.at("style");
  if (style != "gpt2" && style != "llama") throw Error(fmt::format("unknown style '{}'", style));
  state.config.model.style = style == "llama" ? nn::GptStyle::Llama : nn::GptStyle::Gpt2;
  visit_model(state.config.model, [&](const char* name, auto& v) { model.at(name).get_to(v); });
  return state;
}

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
  if (!file) throw Error(fmt::format("cannot write '{}'", path));
  flush_to_disk(path);
}

std::vector<NamedTensor> tensors_of(const GptTrainer& trainer,
                                    const std::vector<std::string>& names) {
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) tensors.emplace_back(name, trainer.state(name));
  return tensors;
}

// N of a folder called step-N, or -1.
int64_t step_of(const fs::path& folder) {
  std::string name = folder.filename();
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end ? step : -1;
}

// The file's tensors, checked against the names and types that the trainer has.
std::vector<NamedTensor> read_all(const std::string& path, const GptTrainer& trainer,
                                  const std::vector<std::string>& names) {
  SafetensorsFile file(path);
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) {
    const auto* entry = file.find(name);
    if (entry == nullptr) throw Error(fmt::format("'{}' has no tensor '{}'", path, name));
    require_type(fmt::format("'{}': tensor '{}'", path, name), trainer.state(name).type(),
                 entry->type);
    tensors.emplace_back(name, file.read(*entry));
  }
  if (file.entries().size() != names.size())
    for (const auto& entry : file.entries())
      if (std::find(names.begin(), names.end(), entry.name) == names.end())
        throw Error(
            fmt::format("'{}' has a tensor '{}' that the model does not", path, entry.name));
  return tensors;
}

}  // namespace

std::string save_checkpoint(const std::string& dir, const GptTrainer& trainer,
                            const TrainState& state) {
  fs::path target = fs::path(dir) / fmt::format("{}{}", kPrefix, state.step);
  fs::path scratch = fs::path(dir) / fmt::format(".{}{}.{}", kPrefix, state.step, getpid());
  fs::path old = scratch.string() + ".old";
  try {
    fs::remove_all(scratch);
    fs::create_directories(scratch);
    write_safetensors(scratch / "model.safetensors", tensors_of(trainer, trainer.weight_names()));
    write_safetensors(scratch / "optimizer.safetensors",
                      tensors_of(trainer, trainer.optimizer_names()));
    write_text(scratch / "state.json", to_json(state).dump(2) + "\n");
    flush_to_disk(scratch);
    // A folder cannot be renamed over one that has files.
    if (fs::exists(target)) fs::rename(target, old);
    fs::rename(scratch, target);
    flush_to_disk(dir);
    fs::remove_all(old);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(scratch, ignored);
    if (!fs::exists(target, ignored) && fs::exists(old, ignored)) fs::rename(old, target, ignored);
    throw Error(fmt::format("cannot save '{}': {}", target.string(), e.what()));
  }
  return target;
}

std::string latest_checkpoint(const std::string& dir) {
  std::error_code error;
  fs::path best;
  int64_t best_step = -1;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (int64_t step = step_of(entry.path()); step > best_step) best = entry, best_step = step;
  if (best_step < 0) throw Error(fmt::format("'{}' has no checkpoint step-N", dir));
  return best;
}

TrainState read_train_state(const std::string& folder) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"})
    if (!fs::is_regular_file(fs::path(folder) / name))
      throw Error(fmt::format("checkpoint '{}' is incomplete: no {}", folder, name));
  std::string path = fs::path(folder) / "state.json";
  try {
    std::ifstream file(path);
    TrainState state = from_json(Json::parse(file));
    state.config.model.check();
    return state;
  } catch (const std::exception& e) {
    throw Error(fmt::format("'{}' is malformed: {}", path, e.what()));
  }
}

void load_checkpoint(const std::string& folder, GptTrainer& trainer, bool optimizer) {
  auto tensors = read_all(fs::path(folder) / "model.safetensors", trainer, trainer.weight_names());
  if (optimizer)
    for (auto& t :
         read_all(fs::path(folder) / "optimizer.safetensors", trainer, trainer.optimizer_names()))
      tensors.push_back(std::move(t));
  for (const auto& [name, value] : tensors) trainer.set_state(name, value);
}

}  // namespace sinter::train
