// GPT-2 as the DSL builds it against PyTorch in f64: loss, logits, every gradient, and three steps
// of AdamW. The golden files, and what made them: tests/parity/make_gpt2_golden.py.

#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/sinter.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <map>

using namespace sinter;

namespace {

constexpr int64_t kBatch = 2, kContext = 8, kVocab = 13;
const nn::GptConfig kConfig{
    .layers = 2, .heads = 2, .width = 16, .vocab = kVocab, .context = kContext};

constexpr double kF64 = 1e-12, kF32 = 1e-5;

using Tensors = std::map<std::string, Tensor>;

Tensors read(const std::string& name) {
  Tensors tensors;
  for (auto& [key, value] : read_safetensors(test::data_path("golden/" + name)))
    tensors.emplace(key, value);
  return tensors;
}

double norm_of(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

double distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  for (size_t i = 0; i < x.size(); ++i) x[i] -= y[i];
  return norm_of(x);
}

// Of all of them together.
double norm_of_gradients(const Tensors& golden) {
  double all = 0;
  for (const auto& [name, value] : golden)
    if (name.starts_with("grad.")) all = std::hypot(all, norm_of(value.to_doubles()));
  return all;
}

struct Gpt2 {
  Model model;
  Scope step = model.graph("step", Mode::Training);
  Value loss;

  Gpt2() {
    TensorType tokens = i32({kBatch, kContext});
    Value logits = nn::gpt(step, step.input("ids", tokens), kConfig);
    Value targets = reshape(step.input("targets", tokens), {kBatch * kContext});
    loss = cross_entropy(logits, targets).loss.named("loss");
    step.output("loss", loss);
    step.output("logits", logits);
  }
};

// Whether the device works here; says why not.
bool usable(DeviceKind kind) {
  for (const DeviceEntry& d : list_devices())
    if (d.kind == kind && d.unavailable.empty()) return true;
  return false;
}

void set_weights(Program& program, const Model& model, const Tensors& golden) {
  for (const std::string& name : model.parameters()) {
    REQUIRE_MESSAGE(golden.contains(name), name);
    program.set_state(name, golden.at(name));
  }
}

Bindings batch_of(const Tensors& golden) {
  return {{"ids", golden.at("ids")}, {"targets", golden.at("targets")}};
}

void check_gradients(const CompileOptions& options, double tolerance) {
  Tensors golden = read("gpt2_2layer.safetensors");
  Gpt2 gpt;
  gpt.step.graph().attributes["loss"] = std::string("loss");
  gpt.step.graph().attributes["wrt"] = gpt.model.parameters();
  Program program(gpt.model, options);
  set_weights(program, gpt.model, golden);
  Bindings out = program.run("step", batch_of(golden));

  double loss = golden.at("loss").at(0);
  CHECK(std::abs(out.at("loss").at(0) - loss) <= tolerance * loss);
  Tensor logits = golden.at("logits");
  Tensor flat =
      Tensor::from_doubles({DType::F64, {kBatch * kContext, kVocab}}, logits.to_doubles());
  CHECK(distance(out.at("logits"), flat) <= tolerance * norm_of(flat.to_doubles()));

  double all = norm_of_gradients(golden);
  for (const std::string& name : gpt.model.parameters()) {
    const Tensor& expected = golden.at("grad." + name);
    double limit = tolerance * std::max(norm_of(expected.to_doubles()), 1e-3 * all);
    double error = distance(out.at("grad_" + name), expected);
    CHECK_MESSAGE(error <= limit, name << ": " << error << " is above " << limit);
  }
}

void check_adamw(const CompileOptions& options, double tolerance, double key_bias_tolerance) {
  Tensors start = read("gpt2_2layer.safetensors"), golden = read("gpt2_2layer_adamw.safetensors");
  const double lr = 1e-3;
  Gpt2 gpt;
  minimize(gpt.loss, gpt.step.parameters(),
           AdamW{.beta2 = 0.95, .weight_decay = 0.1, .grad_norm = "norm"});
  Program program(gpt.model, options);
  set_weights(program, gpt.model, start);
  Bindings batch = batch_of(start);
  // The f64 reference takes all digits.
  batch["lr"] = options.device == DeviceKind::Reference64 ? Tensor::scalar(lr)
                                                          : Tensor::scalar(static_cast<float>(lr));
  for (int i = 0; i < 3; ++i) {
    double expected = golden.at("losses").at(i);
    Bindings out = program.run("step", batch);
    CHECK(std::abs(out.at("loss").at(0) - expected) <= tolerance * expected);
    if (i == 0)
      CHECK(out.at("norm").at(0) == doctest::Approx(norm_of_gradients(start)).epsilon(kF32));
  }
  for (const std::string& name : gpt.model.parameters()) {
    std::vector<double> p = program.state(name).to_doubles(), q = golden.at(name).to_doubles();
    REQUIRE(p.size() == q.size());
    bool qkv_bias = name.ends_with("attn.qkv.bias");
    double worst = 0, worst_key = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      bool key = qkv_bias && i >= p.size() / 3 && i < 2 * p.size() / 3;
      double& w = key ? worst_key : worst;
      w = std::max(w, std::abs(p[i] - q[i]));
    }
    CHECK_MESSAGE(worst <= tolerance, name << ": " << worst);
    CHECK_MESSAGE(worst_key <= key_bias_tolerance, name << ", key part: " << worst_key);
  }
}

CompileOptions on(DeviceKind device) {
  CompileOptions options;
  options.device = device;
  return options;
}

}  // namespace

TEST_CASE("parity: GPT-2 gradients on the f64 reference") {
  check_gradients(on(DeviceKind::Reference64), kF64);
}
TEST_CASE("parity: GPT-2 gradients on the f32 reference") {
  check_gradients(on(DeviceKind::Reference), kF32);
}
TEST_CASE("parity: GPT-2 gradients on the interpreter, scheduled for the host") {
  CompileOptions options = on(DeviceKind::Interpreter);
  options.target = "host";
  check_gradients(options, kF32);
}
TEST_CASE("parity: GPT-2 gradients on the interpreter, scheduled for CUDA") {
  CompileOptions options = on(DeviceKind::Interpreter);
  options.target = "sm_90a";
  check_gradients(options, kF32);
}
TEST_CASE("parity: GPT-2 gradients on the CPU") {
  if (!usable(DeviceKind::Cpu)) SINTER_SKIP("no host compiler");
  check_gradients(on(DeviceKind::Cpu), kF32);
}
TEST_CASE("parity: GPT-2 gradients on CUDA") {
  if (!usable(DeviceKind::Cuda)) SINTER_SKIP("no GPU");
  check_gradients(on(DeviceKind::Cuda), kF32);
}

// In f32 Adam turns what rounding left of a zero gradient into whole steps of the learning rate.
TEST_CASE("parity: three AdamW steps on the f64 reference") {
  check_adamw(on(DeviceKind::Reference64), kF64, 1e-11);
}
TEST_CASE("parity: three AdamW steps on the f32 reference") {
  check_adamw(on(DeviceKind::Reference), 1e-4, 6e-3);
}
TEST_CASE("parity: three AdamW steps on the CPU") {
  if (!usable(DeviceKind::Cpu)) SINTER_SKIP("no host compiler");
  check_adamw(on(DeviceKind::Cpu), 1e-4, 6e-3);
}
TEST_CASE("parity: three AdamW steps on CUDA") {
  if (!usable(DeviceKind::Cuda)) SINTER_SKIP("no GPU");
  check_adamw(on(DeviceKind::Cuda), 1e-4, 6e-3);
}
