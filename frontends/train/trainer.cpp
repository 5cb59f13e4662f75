#include <sinter/frontends/train/trainer.h>

#include <fmt/ranges.h>
#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/philox.h>
#include <sinter/passes/accumulate.h>
#include <sinter/passes/optimizer.h>
#include <sinter/runtime/attention.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

namespace sinter::train {
namespace {

// The end of every schedule, as a share of the peak.
constexpr double kFinalShare = 0.1;
// Apart from the sites of a module, which are numbered from 0.
constexpr uint32_t kSampleSite = 0xFFFFFFFEu;

Value flat_targets(const Scope& g, const TrainConfig& c) {
  TensorType type = i32({c.rows(), c.model.context});
  return reshape(g.input("targets", type), {type.elements()});
}

// An index drawn from softmax(logits / temperature); the largest logit at temperature 0.
int64_t draw(const float* logits, int64_t count, double temperature, double uniform) {
  const float* best = std::max_element(logits, logits + count);
  if (temperature <= 0) return best - logits;
  std::vector<double> weights(static_cast<size_t>(count));
  double total = 0;
  for (int64_t i = 0; i < count; ++i)
    total += weights[static_cast<size_t>(i)] =
        std::exp((static_cast<double>(logits[i]) - static_cast<double>(*best)) / temperature);
  double left = uniform * total;
  for (int64_t i = 0; i < count; ++i)
    if ((left -= weights[static_cast<size_t>(i)]) < 0) return i;
  return best - logits;
}

std::optional<int64_t> budget_of(const std::string& recompute) {
  int64_t bytes = 0;
  const char* end = recompute.data() + recompute.size();
  auto [stop, error] = std::from_chars(recompute.data(), end, bytes);
  if (error != std::errc() || stop != end || bytes < 0) return std::nullopt;
  return bytes;
}

// With the settings that large models are trained with; the rate is a value of each step.
Optimizer make_optimizer(const std::string& name, double decay) {
  AdamW adamw{.beta2 = 0.95, .weight_decay = decay};
  if (name == "adam") return Adam{.beta2 = 0.95, .weight_decay = decay};
  if (name == "sgd") return Sgd{.weight_decay = decay};
  if (name == "momentum") return Sgd{.momentum = 0.9, .weight_decay = decay};
  if (name == "lion") return Lion{.weight_decay = decay};
  if (name == "adafactor") return Adafactor{.weight_decay = decay};
  if (name == "muon") {
    // Matrices within the blocks; the rest, embeddings and head included, by AdamW.
    Muon muon{.weight_decay = decay, .adjust = "match_rms_adamw", .others = adamw};
    muon.takes = [](std::string_view parameter, const TensorType& type) {
      return type.rank() == 2 && parameter.starts_with("blocks.");
    };
    return muon;
  }
  return adamw;
}

nn::GptConfig with_segments(const TrainConfig& c) {
  nn::GptConfig model = c.model;
  if (c.recompute == "block") model.recompute_group = 1;
  if (c.recompute == "sqrt") model.recompute_group = recompute_group(model.layers);
  return model;
}

CompileOptions with_attention(CompileOptions options, const std::string& choice) {
  choose_attention(options, *parse_attention(choice));
  return options;
}

// Rows `part * rows` and on.
Tensor part_of(const Tensor& whole, int64_t part, int64_t rows) {
  TensorType type{whole.dtype(), {rows, whole.shape()[1]}};
  const auto* bytes = static_cast<const unsigned char*>(whole.data());
  return Tensor::from_bytes(type, bytes + part * type.bytes());
}

}  // namespace

std::span<const std::string_view> optimizer_names() {
  static constexpr std::string_view kNames[] = {"adamw", "adam",      "sgd", "momentum",
                                                "lion",  "adafactor", "muon"};
  return kNames;
}

std::optional<Schedule> parse_schedule(std::string_view name) {
  for (Schedule s : {Schedule::Constant, Schedule::Cosine, Schedule::Linear, Schedule::Wsd})
    if (name == to_string(s)) return s;
  return std::nullopt;
}

std::string_view to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::Constant:
      return "constant";
    case Schedule::Cosine:
      return "cosine";
    case Schedule::Linear:
      return "linear";
    case Schedule::Wsd:
      return "wsd";
  }
  return "";
}

double LearningRate::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  int64_t begin = warmup, length = decay_steps > 0 ? decay_steps : steps - warmup;
  if (schedule == Schedule::Wsd) {
    if (decay_steps == 0) length = steps / 5;
    begin = std::max(warmup, steps - length);
  }
  double done = std::clamp(
      static_cast<double>(step - begin) / static_cast<double>(std::max<int64_t>(length, 1)), 0.0,
      1.0);
  switch (schedule) {
    case Schedule::Constant:
      return peak;
    case Schedule::Cosine:
      done = 0.5 - 0.5 * std::cos(std::numbers::pi * done);
      break;
    case Schedule::Linear:
    case Schedule::Wsd:
      break;
  }
  return peak * (1 - (1 - kFinalShare) * done);
}

void TrainConfig::check() const {
  model.check();
  if (batch <= 0) throw Error(fmt::format("batch must be positive, not {}", batch));
  if (accumulate <= 0 || batch % accumulate != 0)
    throw Error(fmt::format("a batch of {} sequences cannot be taken in {} equal parts", batch,
                            accumulate));
  if (dtype != "f32" && dtype != "tf32" && dtype != "bf16" && dtype != "f16")
    throw Error(fmt::format("dtype must be f32, tf32, bf16 or f16, not '{}'", dtype));
  if (!parse_attention(attention))
    throw Error(fmt::format("attention must be auto, composed or flash, not '{}'", attention));
  std::span<const std::string_view> known = optimizer_names();
  if (std::find(known.begin(), known.end(), optimizer) == known.end())
    throw Error(
        fmt::format("there is no optimizer '{}'; there are {}", optimizer, fmt::join(known, ", ")));
  if (!(clip >= 0)) throw Error(fmt::format("clip must not be {}", clip));
  if (recompute != "none" && recompute != "block" && recompute != "sqrt" && !budget_of(recompute))
    throw Error(fmt::format("recompute must be none, block, sqrt or a number of bytes, not '{}'",
                            recompute));
}

std::unique_ptr<Model> build_gpt(const TrainConfig& c) {
  c.check();
  auto model = std::make_unique<Model>();
  TensorType tokens = i32({c.rows(), c.model.context});
  Optimizer optimizer = make_optimizer(c.optimizer, c.weight_decay);
  MinimizeOptions options{.clip = c.clip, .grad_norm = "grad_norm", .skipped = "skipped_steps"};

  bool scales = c.dtype == "f16";

  if (c.accumulate == 1) {
    Scope step = model->graph("step", Mode::Training);
    autocast(step, c.dtype);
    Value logits = nn::gpt(step, step.input("ids", tokens), with_segments(c));
    if (auto bytes = budget_of(c.recompute)) recompute_within(step, *bytes);
    Value loss = cross_entropy(logits, flat_targets(step, c)).loss.named("loss");
    step.output("loss", loss);
    if (scales) loss = loss * (options.loss_scale = loss_scale(step));
    minimize(loss, step.parameters(), optimizer, options);
  } else {
    Scope part = model->graph("accumulate", Mode::TrainingPart);
    autocast(part, c.dtype);
    Value logits = nn::gpt(part, part.input("ids", tokens), with_segments(c));
    if (auto bytes = budget_of(c.recompute)) recompute_within(part, *bytes);
    CrossEntropy sums = cross_entropy(logits, flat_targets(part, c), -100, "sum");
    Value scaled = scales ? sums.loss * loss_scale(part) : sums.loss;
    accumulate(scaled, part.parameters(), {{"loss", sums.loss}, {"count", sums.count}});
    Scope update = model->graph("update");
    Value count = cast(maximum(accumulated(update, "count", i32({})), 1), DType::F32);
    update.output("loss", accumulated(update, "loss", f32({})) / count);
    options.divisor = count;
    if (scales) options.loss_scale = loss_scale(update);
    minimize_accumulated(update, part, optimizer, options);
  }

  Scope eval = model->graph("eval");
  autocast(eval, c.dtype);
  Value logits = nn::gpt(eval, eval.input("ids", tokens), c.model);
  CrossEntropy judged = cross_entropy(logits, flat_targets(eval, c), -100, "sum");
  eval.output("loss_sum", judged.loss);
  eval.output("count", judged.count);

  Scope sample = model->graph("sample");
  autocast(sample, c.dtype);
  Value ids = sample.input("ids", i32({1, c.model.context}));
  sample.output("logits", nn::gpt(sample, ids, c.model, sample.input("position", i32({1}))));
  return model;
}

GptTrainer::GptTrainer(const TrainConfig& config, const CompileOptions& options)
    : config_(config),
      model_(build_gpt(config)),
      program_(*model_, with_attention(options, config.attention)) {}

GptTrainer::StepResult GptTrainer::step(const data::Batch& batch, int64_t step, double lr) {
  Bindings rate{{"lr", Tensor::scalar(static_cast<float>(lr))}};
  Bindings random{{"seed", seed_tensor(config_.seed)},
                  {"step", Tensor::scalar(static_cast<uint32_t>(step))}};
  Bindings out;
  if (config_.accumulate == 1) {
    Bindings in{{"ids", batch.ids}, {"targets", batch.targets}};
    in.merge(rate);
    in.merge(random);
    out = program_.run("step", std::move(in));
  } else {
    for (int64_t part = 0; part < config_.accumulate; ++part) {
      Bindings in = random;
      in.emplace("ids", part_of(batch.ids, part, config_.rows()));
      in.emplace("targets", part_of(batch.targets, part, config_.rows()));
      in.emplace("offset", Tensor::scalar(part));
      program_.launch(part == 0 ? "accumulate_first" : "accumulate", std::move(in));
    }
    out = program_.run("update", std::move(rate));
  }
  return {out.at("loss").at(0), out.at("grad_norm").at(0),
          static_cast<int64_t>(out.at("skipped_steps").at(0))};
}

double GptTrainer::validate(const data::ByteText& text) {
  double total = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < text.validation_batches(config_.rows()); ++i) {
    data::Batch batch = text.validation_batch(config_.rows(), i);
    Bindings out = program_.run("eval", {{"ids", batch.ids}, {"targets", batch.targets}});
    total += out.at("loss_sum").at(0);
    count += static_cast<int64_t>(out.at("count").at(0));
  }
  return count == 0 ? 0 : total / static_cast<double>(count);
}

std::string GptTrainer::sample(std::string_view prompt, int64_t count, double temperature,
                               uint64_t seed) {
  SINTER_CHECK(!prompt.empty(), "a prompt must have a byte");
  int64_t context = config_.model.context;
  std::string text(prompt);
  RandomStream stream{
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, 0, kSampleSite, 0};
  for (int64_t i = 0; i < count; ++i) {
    // The window moves by steps of a quarter, so that most tokens see a long past.
    auto length = static_cast<int64_t>(text.size());
    int64_t start = 0;
    if (length > context) {
      int64_t stride = std::max<int64_t>(context / 4, 1);
      start = (length - context + stride - 1) / stride * stride;
      start = std::min(start, length - 1);
    }
    Tensor ids(i32({1, context}));
    for (int64_t k = start; k < length; ++k)
      ids.as<int32_t>()[k - start] = static_cast<unsigned char>(text[static_cast<size_t>(k)]);
    Tensor position = Tensor::from<int32_t>({1}, {static_cast<int32_t>(length - 1 - start)});
    Tensor logits = program_.run("sample", {{"ids", ids}, {"position", position}}).at("logits");
    Tensor wide = logits.to(DType::F32);
    double uniform = static_cast<double>(random_uniform(stream, i));
    // A vocabulary may be larger than a byte; what is no byte is never drawn.
    int64_t bytes = std::min<int64_t>(wide.size(), 256);
    text += static_cast<char>(draw(wide.as<float>(), bytes, temperature, uniform));
  }
  return text.substr(prompt.size());
}

std::vector<std::string> GptTrainer::optimizer_names() const {
  std::vector<std::string> names;
  for (const State& s : program_.executable().module().states)
    // What is accumulated is made anew by each step, copies by whoever sets what they copy.
    if (!model_->is_parameter(s.name) && !s.name.starts_with(kAccumulatedPrefix) &&
        s.cast_of.empty())
      names.push_back(s.name);
  return names;
}

std::optional<int64_t> GptTrainer::updates() const {
  // Rules that count say so: adamw.t. Muon's matrices do not, AdamW's vectors beside them do.
  for (const State& s : program_.executable().module().states)
    if (s.type == TensorType{DType::I32, {}} && s.name.ends_with(".t"))
      return static_cast<int64_t>(program_.state(s.name).at(0));
  return std::nullopt;
}

double GptTrainer::loss_scale() const {
  return config_.dtype == "f16" ? program_.state("loss_scale").at(0) : 1;
}

int64_t GptTrainer::skipped() const {
  return static_cast<int64_t>(program_.state("skipped").at(0));
}

}  // namespace sinter::train
