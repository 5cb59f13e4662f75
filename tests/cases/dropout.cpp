// Dropout as a model sees it: no op where nothing is dropped, one mask whatever surrounds it, and
// masks that look like chance.

#include <doctest/doctest.h>
#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/frontends/dsl/program.h>
#include <sinter/frontends/nn/gpt.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/philox.h>
#include <sinter/tests/cases/devices.h>

#include <algorithm>
#include <cmath>

using namespace sinter;

namespace {

nn::GptConfig tiny(double p) {
  return {.layers = 2, .heads = 2, .width = 16, .vocab = 16, .context = 8, .dropout = p};
}

// A GPT with a graph that trains and one that judges; all gradients are outputs.
std::unique_ptr<Model> gpt(double p, nn::GptStyle style = nn::GptStyle::Gpt2) {
  auto model = std::make_unique<Model>();
  nn::GptConfig config = tiny(p);
  config.style = style;
  for (const char* name : {"step", "eval"}) {
    Scope g = model->graph(name, name[0] == 's' ? Mode::Training : Mode::Inference);
    Value logits = nn::gpt(g, g.input("ids", i32({4, 8})), config);
    Value targets = reshape(g.input("targets", i32({4, 8})), {32});
    Value loss = cross_entropy(logits, targets).loss;
    g.output("loss", loss);
    if (name[0] != 's') continue;
    minimize(loss, g.parameters(), AdamW{.weight_decay = 0});
    g.graph().attributes["keep_gradients"] = true;
  }
  return model;
}

int count_ops(const Graph& graph, std::string_view name) {
  int count = 0;
  for (Op& op : graph) count += op.is(name);
  return count;
}
double share_dropped_by_attention(const Graph& graph) {
  double p = 0;
  for (Op& op : graph)
    if (op.is("attention")) p = std::max(p, std::get<double>(op.attr("p")));
  return p;
}

Bindings batch(double lr = 0) {
  std::vector<int32_t> ids(32), targets(32);
  for (int i = 0; i < 32; ++i) ids[static_cast<size_t>(i)] = i * i % 16;
  for (int i = 0; i < 32; ++i) targets[static_cast<size_t>(i)] = (i * i + 3) % 16;
  return {{"ids", Tensor::from<int32_t>({4, 8}, ids)},
          {"targets", Tensor::from<int32_t>({4, 8}, targets)},
          {"lr", Tensor::scalar(static_cast<float>(lr))}};
}
Bindings judged() {
  Bindings in = batch();
  in.erase("lr");
  return in;
}

void check_same(const Bindings& a, const Bindings& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& entry : a) CHECK_MESSAGE(entry.second.same_bits(b.at(entry.first)), entry.first);
}

CompileOptions on(DeviceKind device) {
  CompileOptions options;
  options.device = device;
  return options;
}

// One mask of 2^20 elements: true where kept.
std::vector<bool> mask(uint32_t seed, uint32_t step, uint32_t site, double p) {
  RandomStream stream{{seed, 0}, step, site, 0};
  uint32_t threshold = dropout_threshold(p);
  std::vector<bool> kept(1 << 20);
  for (size_t i = 0; i < kept.size(); ++i)
    kept[i] = dropout_keep(stream, static_cast<int64_t>(i), threshold);
  return kept;
}
double correlation(const std::vector<bool>& a, const std::vector<bool>& b, size_t shift = 0) {
  auto n = static_cast<double>(a.size() - shift);
  double sa = 0, sb = 0, sab = 0;
  for (size_t i = 0; i + shift < a.size(); ++i) {
    bool x = a[i], y = b[i + shift];
    sa += x;
    sb += y;
    sab += x && y;
  }
  double ma = sa / n, mb = sb / n;
  return (sab / n - ma * mb) / std::sqrt(ma * (1 - ma) * mb * (1 - mb));
}

}  // namespace

TEST_CASE("dropout: p = 0 and evaluation make no op, p > 0 one at each site") {
  for (nn::GptStyle style : {nn::GptStyle::Gpt2, nn::GptStyle::Llama}) {
    auto none = gpt(0, style), some = gpt(0.25, style);
    const Graph &trained = *some->module().find("step"), &judged_by = *some->module().find("eval");
    CHECK(count_ops(*none->module().find("step"), "dropout") == 0);
    CHECK(count_ops(judged_by, "dropout") == 0);
    CHECK(share_dropped_by_attention(*none->module().find("step")) == 0);
    CHECK(share_dropped_by_attention(judged_by) == 0);
    CHECK(!judged_by.find_input("seed"));
    // The embedding, and twice a block what joins the residual stream.
    CHECK(count_ops(trained, "dropout") == 1 + 2 * 2);
    CHECK(share_dropped_by_attention(trained) == 0.25);
  }
  Model model;
  Scope g = model.graph("g", Mode::Training);
  nn::mlp(g / "mlp", g.input("x", f32({2, 8})), 16, {.dropout = 0.5});
  nn::swiglu(g / "swiglu", g.input("x", f32({2, 8})), 16, {.bias = false, .dropout = 0.5});
  CHECK(count_ops(g.graph(), "dropout") == 2);
}

TEST_CASE("dropout: p = 0 is no dropout, in the bits of loss and every gradient") {
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    auto run = [&](bool with_op) {
      Model model;
      Scope g = model.graph("step", Mode::Training);
      Value x = nn::linear(g / "a", g.input("x", f32({8, 12})), 20);
      if (with_op) x = dropout(x, g.seed(), g.step(), g.offset(), 0.0);
      Value loss = mean(square(nn::linear(g / "b", gelu(x), 5)));
      g.output("loss", loss);
      minimize(loss, g.parameters());
      g.graph().attributes["keep_gradients"] = true;
      Program program(model, on(device));
      program.init(3);
      return program.run("step", {{"x", fill(f32({8, 12}), 1)}, {"lr", Tensor::scalar(0.01f)}});
    };
    check_same(run(false), run(true));
  }
}

TEST_CASE("dropout: evaluation is the identity, and leaves later masks as they are") {
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    Program dropped(*gpt(0.5), on(device)), plain(*gpt(0), on(device));
    dropped.init(5);
    plain.init(5);
    auto model = gpt(0);
    for (const std::string& name : model->parameters()) plain.set_state(name, dropped.state(name));
    check_same(dropped.run("eval", judged()), plain.run("eval", judged()));
    // Three steps with evaluations between them, and without.
    std::vector<Bindings> with, without;
    for (int i = 0; i < 3; ++i) {
      with.push_back(dropped.run("step", batch(0.01)));
      dropped.run("eval", judged());
    }
    dropped.init(5);
    for (int i = 0; i < 3; ++i) without.push_back(dropped.run("step", batch(0.01)));
    for (size_t i = 0; i < 3; ++i) check_same(with[i], without[i]);
    CHECK(with[0].at("loss").at(0) != plain.run("step", batch(0.01)).at("loss").at(0));
  }
}

TEST_CASE("dropout: over 256 seeds the mean is the input, within 5 sigma") {
  Model model;
  Scope g = model.graph("g", Mode::Training);
  g.output("y", g.dropout(g.input("x", f32({512})), 0.3));
  Program program(model, on(DeviceKind::Reference));
  Tensor x = fill(f32({512}), 1);
  std::vector<double> total(512, 0);
  for (uint32_t seed = 0; seed < 256; ++seed) {
    Tensor y =
        program.run("g", {{"x", x}, {"seed", Tensor::from<uint32_t>({2}, {seed, 0})}}).at("y");
    for (int64_t i = 0; i < 512; ++i) total[static_cast<size_t>(i)] += y.at(i);
  }
  double p = dropout_threshold(0.3) / 65536.0;
  for (int64_t i = 0; i < 512; ++i) {
    double sigma = std::abs(x.at(i)) * std::sqrt(p / (1 - p) / 256);
    CHECK(std::abs(total[static_cast<size_t>(i)] / 256 - x.at(i)) <= 5 * sigma + 1e-4);
  }
}

TEST_CASE("dropout: kept at the stated rate, and independent of step, site and neighbour") {
  const double n = 1 << 20, bound = 5 / std::sqrt(n);
  for (double p : {0.1, 0.5, 0.9}) {
    CAPTURE(p);
    std::vector<bool> a = mask(1, 1, 1, p);
    double rate = 1 - dropout_threshold(p) / 65536.0;
    double kept = static_cast<double>(std::count(a.begin(), a.end(), true));
    CHECK(std::abs(kept - n * rate) < 5 * std::sqrt(n * rate * (1 - rate)));
    CHECK(std::abs(correlation(a, mask(1, 2, 1, p))) < bound);
    CHECK(std::abs(correlation(a, mask(1, 1, 2, p))) < bound);
    CHECK(std::abs(correlation(a, mask(2, 1, 1, p))) < bound);
    for (size_t shift : {1, 2, 8, 64, 768}) CHECK(std::abs(correlation(a, a, shift)) < bound);
  }
}

TEST_CASE("dropout: f32 and bf16 drop the same elements, on every device") {
  std::vector<bool> first;
  for (DeviceKind device : test::devices_here())
    for (DType dtype : {DType::F32, DType::BF16}) {
      CAPTURE(to_string(device));
      Model model;
      Scope g = model.graph("g", Mode::Training);
      g.output("y", g.dropout(g.input("x", {dtype, {3000}}), 0.4));
      Program program(model, on(device));
      Tensor y = program.run("g", {{"x", Tensor::full({dtype, {3000}}, 1)}}).at("y");
      std::vector<bool> kept;
      for (int64_t i = 0; i < y.size(); ++i) kept.push_back(y.at(i) != 0);
      if (first.empty()) first = kept;
      CHECK(kept == first);
    }
}

TEST_CASE("dropout: gradients under a fixed mask are those of differences") {
  Model model;
  Scope g = model.graph("step", Mode::Training);
  Value h = g.dropout(tanh(nn::linear(g / "a", g.input("x", f32({6, 5})), 7)), 0.4);
  Value loss = mean(square(nn::linear(g / "b", h, 3)));
  g.output("loss", loss);
  minimize(loss, g.parameters(), Sgd{});
  g.graph().attributes["keep_gradients"] = true;
  Program program(model, on(DeviceKind::Reference64));
  program.init(2);
  Bindings in{{"x", fill(f32({6, 5}), 4)},
              {"lr", Tensor::scalar(0.0f)},
              {"step", Tensor::scalar<uint32_t>(9)}};
  Bindings right = program.run("step", in);
  for (const std::string& name : model.parameters()) {
    CAPTURE(name);
    Tensor w = program.state(name), gradient = right.at("grad_" + name);
    constexpr double kDelta = 1e-5;
    for (int64_t i = 0; i < w.size(); ++i) {
      auto at = [&](double delta) {
        std::vector<double> moved = w.to_doubles();
        moved[static_cast<size_t>(i)] += delta;
        program.set_state(name, Tensor::from_doubles(w.type(), moved));
        return program.run("step", in).at("loss").at(0);
      };
      double slope = (at(kDelta) - at(-kDelta)) / (2 * kDelta);
      CHECK(std::abs(slope - gradient.at(i)) < 1e-7);
    }
    program.set_state(name, w);
  }
}

TEST_CASE("dropout: a model with p = 0.1 learns, to below half its first loss") {
  Program program(*gpt(0.1), on(DeviceKind::Reference));
  program.init(1);
  double first = 0, last = 0;
  for (int i = 0; i < 100; ++i) {
    last = program.run("step", batch(0.01)).at("loss").at(0);
    REQUIRE(std::isfinite(last));
    if (i == 0) first = last;
  }
  CHECK(last < first / 2);
}
