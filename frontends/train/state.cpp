#include <sinter/frontends/checkpoint/checksum.h>
#include <sinter/frontends/train/state.h>

#include <nlohmann/json.hpp>

namespace sinter::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 4;

// Each field of a config once, for writing, for reading and for comparing.
template <typename Config, typename Visit>
void visit_shape(Config& c, Visit&& visit) {
  visit("layers", c.layers);
  visit("heads", c.heads);
  visit("kv_heads", c.kv_heads);
  visit("width", c.width);
  visit("head_dim", c.head_dim);
  visit("hidden", c.hidden);
  visit("vocab", c.vocab);
  visit("context", c.context);
  visit("rope_base", c.rope_base);
  visit("norm_eps", c.norm_eps);
  visit("tied", c.tied);
  visit("qk_norm", c.qk_norm);
}

template <typename State, typename Visit>
void visit_state(State& s, Visit&& visit) {
  visit("step", s.step);
  visit("updates", s.updates);
  visit("skipped", s.skipped);
  visit("seed", s.config.seed);
  visit("batch", s.config.batch);
  visit("accumulate", s.config.accumulate);
  visit("clip", s.config.clip);
  visit("optimizer", s.config.optimizer);
  visit("weight_decay", s.config.weight_decay);
  visit("dropout", s.config.model.dropout);
  visit("recompute", s.config.recompute);
  visit("dtype", s.config.dtype);
  visit("attention", s.config.attention);
  visit("loss_scale", s.loss_scale);
  visit("started", s.started);
  visit("tensors", s.checksums);
}

template <typename Rate, typename Visit>
void visit_rate(Rate& r, Visit&& visit) {
  visit("lr", r.peak);
  visit("steps", r.steps);
  visit("warmup", r.warmup);
  visit("decay_steps", r.decay_steps);
}

std::string_view style_name(nn::GptStyle style) {
  return style == nn::GptStyle::Llama ? "llama" : "gpt2";
}

}  // namespace

std::string to_json(const TrainState& state) {
  auto write_to = [](Json& json) {
    return [&json](const char* name, const auto& v) { json[name] = v; };
  };
  Json json;
  json["format"] = kFormat;
  visit_state(state, write_to(json));
  // Batch i is drawn from (seed, i): the next one is `step`, after so many sequences.
  json["data"] = {{"path", state.data},
                  {"checksum", state.data_checksum},
                  {"position", state.step * state.config.batch}};
  json["schedule"]["name"] = to_string(state.rate.schedule);
  visit_rate(state.rate, write_to(json["schedule"]));
  json["tuning"] = Json::object();
  if (!state.tuning.empty())
    json["tuning"] = {{"made_with", state.tuning.made_with}, {"choices", state.tuning.choices}};
  nn::GptConfig resolved = state.config.model.resolved();
  json["model"]["style"] = style_name(resolved.style);
  visit_shape(resolved, write_to(json["model"]));
  std::string text = json.dump();
  json["checksum"] = checksum(text.data(), text.size());
  return json.dump(2) + "\n";
}

TrainState parse_train_state(const std::string& text) {
  try {
    Json json = Json::parse(text);
    if (json.at("format") != kFormat)
      throw Error(
          fmt::format("its format is {}, this version reads {}", json["format"].dump(), kFormat));
    std::string expected = json.at("checksum");
    json.erase("checksum");
    std::string rest = json.dump();
    if (checksum(rest.data(), rest.size()) != expected)
      throw Error("its checksum is not that of its content");
    auto read_from = [](const Json& from) {
      return [&from](const char* name, auto& v) { from.at(name).get_to(v); };
    };
    TrainState state;
    visit_state(state, read_from(json));
    json.at("data").at("path").get_to(state.data);
    json.at("data").at("checksum").get_to(state.data_checksum);
    const Json& schedule = json.at("schedule");
    std::string name = schedule.at("name");
    auto known = parse_schedule(name);
    if (!known) throw Error(fmt::format("unknown schedule '{}'", name));
    state.rate.schedule = *known;
    visit_rate(state.rate, read_from(schedule));
    if (const Json& tuning = json.at("tuning"); !tuning.empty()) {
      tuning.at("made_with").get_to(state.tuning.made_with);
      tuning.at("choices").get_to(state.tuning.choices);
    }
    const Json& model = json.at("model");
    std::string style = model.at("style");
    if (style != "gpt2" && style != "llama") throw Error(fmt::format("unknown style '{}'", style));
    state.config.model.style = style == "llama" ? nn::GptStyle::Llama : nn::GptStyle::Gpt2;
    visit_shape(state.config.model, read_from(model));
    state.config.model.check();
    return state;
  } catch (const nlohmann::json::exception& e) {
    throw Error(e.what());
  }
}

std::vector<std::string> differences(const TrainConfig& saved, const TrainConfig& asked) {
  std::vector<std::string> found;
  auto compare = [&](const char* name, const auto& a, const auto& b) {
    if (a != b) found.push_back(fmt::format("{}: it has {}, {} is asked for", name, a, b));
  };
  nn::GptConfig have = saved.model.resolved(), want = asked.model.resolved();
  compare("style", style_name(have.style), style_name(want.style));
  visit_shape(have, [&](const char* name, const auto& a) {
    visit_shape(want, [&](const char* other, const auto& b) {
      if constexpr (std::is_same_v<decltype(a), decltype(b)>)
        if (std::string_view(name) == other) compare(name, a, b);
    });
  });
  compare("seed", saved.seed, asked.seed);
  compare("batch", saved.batch, asked.batch);
  compare("dtype", saved.dtype, asked.dtype);
  compare("optimizer", saved.optimizer, asked.optimizer);
  return found;
}

}  // namespace sinter::train
