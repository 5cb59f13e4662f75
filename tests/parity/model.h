#pragma once
// What the parity tests of models share: the golden files, the models of make_gpt2_golden.py and
// make_llama_golden.py built by nn::gpt, and the comparison of losses and gradients.
//
// A gradient g is right when |g - g*| <= tolerance * max(|g*|, 1e-3 |all gradients|), in 2-norms.
// The second term is there for the key bias, whose gradient is 0 in exact arithmetic.

#include <doctest/doctest.h>
#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/frontends/dsl/model.h>
#include <sinter/frontends/nn/gpt.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>

namespace sinter::test {

constexpr int64_t kVocab = 13, kContext = 8, kBatch = 2;

// A model of the generators and its file, golden/FILE_2layer.safetensors.
struct ParityModel {
  std::string name, file;
  nn::GptConfig config;
};
inline const std::vector<ParityModel>& parity_models() {
  static const std::vector<ParityModel> models{
      {"GPT-2",
       "gpt2",
       {.layers = 2, .heads = 2, .width = 16, .vocab = kVocab, .context = kContext}},
      {"Llama",
       "llama",
       {.style = nn::GptStyle::Llama,
        .layers = 2,
        .heads = 4,
        .width = 16,
        .kv_heads = 2,
        .head_dim = 6,
        .hidden = 20,
        .vocab = kVocab,
        .context = kContext,
        .tied = false,
        .qk_norm = true}}};
  return models;
}

inline SafetensorsFile golden(const ParityModel& m, const char* part = "") {
  return SafetensorsFile(
      test::data_path(fmt::format("golden/{}_2layer{}.safetensors", m.file, part)));
}

// The names of the parameters, in the file's order.
inline std::vector<std::string> parameter_names(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const auto& entry : file.entries())
    if (entry.name.starts_with("grad.")) names.push_back(entry.name.substr(5));
  return names;
}

// The forward pass of @step, with its outputs loss and logits; the loss.
inline Value build_forward(const Scope& step, const ParityModel& m) {
  const Value ids = step.input("ids", i32({kBatch, kContext}));
  const Value targets = step.input("targets", i32({kBatch, kContext}));
  const Value logits = nn::gpt(step, ids, m.config);
  const Value loss = cross_entropy(logits, reshape(targets, {kBatch * kContext})).loss;
  step.output("loss", loss);
  step.output("logits", reshape(logits, {kBatch, kContext, kVocab}));
  return loss;
}

// Graph @step: the parameters, ids and targets in; loss, logits and grad.NAME out.
inline Graph& build(Model& model, const ParityModel& m, const SafetensorsFile& file) {
  const Scope step = model.graph("step");
  const Value loss = build_forward(step, m);
  const std::vector<std::string> names = parameter_names(file);
  std::vector<Value> parameters;
  for (const std::string& name : names) {
    parameters.push_back(step.graph().find_input(name));
    REQUIRE_MESSAGE(parameters.back(), name);
  }
  REQUIRE(step.parameters().size() == names.size());
  const std::vector<Value> grads = gradients(step.graph(), loss, parameters);
  for (size_t i = 0; i < names.size(); ++i) step.output("grad." + names[i], grads[i]);
  return step.graph();
}

inline Bindings inputs(const SafetensorsFile& file) {
  Bindings bindings;
  for (const std::string& name : parameter_names(file)) bindings.emplace(name, file.read(name));
  bindings.emplace("ids", file.read("ids"));
  bindings.emplace("targets", file.read("targets"));
  return bindings;
}

inline double norm2(const Tensor& t) {
  double squares = 0;
  for (double v : t.to_doubles()) squares += v * v;
  return std::sqrt(squares);
}

inline double distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  double squares = 0;
  for (int64_t i = 0; i < a.size(); ++i) squares += (a.at(i) - b.at(i)) * (a.at(i) - b.at(i));
  return std::sqrt(squares);
}

inline void check(const Bindings& got, const SafetensorsFile& file, double tolerance) {
  double all = 0;
  for (const std::string& name : parameter_names(file))
    all = std::hypot(all, norm2(file.read("grad." + name)));
  const double loss = file.read("loss").at(0);
  CHECK(std::abs(got.at("loss").at(0) - loss) <= tolerance * loss);
  const Tensor logits = file.read("logits");
  CHECK(distance(got.at("logits"), logits) <= tolerance * norm2(logits));
  for (const std::string& name : parameter_names(file)) {
    CAPTURE(name);
    const Tensor want = file.read("grad." + name);
    CHECK(distance(got.at("grad." + name), want) <= tolerance * std::max(norm2(want), 1e-3 * all));
  }
}

}  // namespace sinter::test
