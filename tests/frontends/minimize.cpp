// minimize(): every optimizer trains, and mistakes are refused at the user's line.

#include <sinter/sinter.h>
#include <sinter/tests/support.h>

using namespace sinter;

namespace {

// A network of two layers on a line that bends; its loss after each of `steps`.
std::vector<double> train(const Optimizer& optimizer, double lr, int steps,
                          const MinimizeOptions& options = {}) {
  Model model;
  Scope g = model.graph("step", Mode::Training);
  Value h = tanh(nn::linear(g / "a", g.input("x", f32({16, 2})), 8));
  Value loss = mean(square(nn::linear(g / "b", h, 1) - g.input("t", f32({16, 1}))));
  g.output("loss", loss);
  minimize(loss, g.parameters(), optimizer, options);
  CompileOptions compile;
  compile.device = DeviceKind::Reference;
  Program program(model, compile);
  program.init(3);
  std::vector<double> x, t;
  for (int i = 0; i < 16; ++i) {
    x.insert(x.end(), {i / 8.0 - 1, i % 4 / 2.0 - 1});
    t.push_back(x[x.size() - 2] * x.back());
  }
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i)
    losses.push_back(program
                         .run("step", {{"x", Tensor::from_doubles(f32({16, 2}), x)},
                                       {"t", Tensor::from_doubles(f32({16, 1}), t)},
                                       {"lr", Tensor::scalar(static_cast<float>(lr))}})
                         .at("loss")
                         .at(0));
  return losses;
}

}  // namespace

TEST_CASE("minimize: every optimizer learns") {
  auto check = [](const char* name, const Optimizer& optimizer, double lr) {
    std::vector<double> losses = train(optimizer, lr, 40, {.clip = 10});
    CAPTURE(name);
    CAPTURE(losses.front());
    CHECK(losses.back() < 0.6 * losses.front());
  };
  check("sgd", Sgd{}, 0.2);
  check("sgd with momentum", Sgd{.momentum = 0.9, .nesterov = true}, 0.05);
  check("adam", Adam{}, 0.03);
  check("adamw", AdamW{}, 0.03);
  check("lion", Lion{}, 0.01);
  check("adafactor", Adafactor{}, 0.1);
  check("muon", Muon{.weight_decay = 0}, 0.03);
}

TEST_CASE("minimize: a bound on the gradients slows the first steps") {
  std::vector<double> free = train(Sgd{}, 0.1, 2), bound = train(Sgd{}, 0.1, 2, {.clip = 1e-3});
  CHECK(free[0] == bound[0]);
  CHECK(bound[1] < bound[0]);
  CHECK(free[1] < bound[1]);
}

TEST_CASE("minimize: muon takes the matrices, with AdamW and its own rate for the rest") {
  Model model;
  Scope g = model.graph("step", Mode::Training);
  Value slow = g.input("slow", f32({}));
  Value x = nn::embedding(g / "embed", g.input("ids", i32({4})), 10, 8);
  Value loss = mean(square(nn::linear(g / "a", x, 8)));
  minimize(
      loss, g.parameters(),
      Muon{.takes = [](std::string_view name,
                       const TensorType& t) { return t.rank() == 2 && !name.starts_with("embed"); },
           .others = {.lr = slow, .beta2 = 0.95}});
  const AttrMap& attributes = g.graph().attributes;
  using Names = std::vector<std::string>;
  CHECK(std::get<std::string>(attributes.at("optimizer")) == "muon");
  CHECK(std::get<Names>(attributes.at("adamw")) == Names{"embed.weight", "a.bias"});
  CHECK(std::get<std::string>(attributes.at("lr")) == "lr");
  CHECK(std::get<std::string>(attributes.at("adamw.lr")) == "slow");
  CHECK(std::get<double>(attributes.at("adamw.beta2")) == 0.95);
  CHECK(std::get<Names>(attributes.at("no_decay")) == Names{"a.bias"});
}

TEST_CASE("minimize: mistakes are refused at the user's line") {
  Model model;
  Scope g = model.graph("step", Mode::Training);
  Value y = nn::linear(g / "a", g.input("x", f32({4, 2})), 2);
  auto refused = [](const std::string& part, int line, auto&& action) {
    std::string message;
    try {
      action();
    } catch (const Error& e) {
      message = e.what();
    }
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find(fmt::format("minimize.cpp:{}: error: minimize: ", line)) !=
          std::string::npos);
  };
  Value x = g.input("x", f32({4, 2})), loss = mean(y);
  std::vector<Value> all = g.parameters();
  refused("the loss must be a float scalar, not f32[4,2]", __LINE__, [&] { minimize(y, all); });
  refused("no parameters", __LINE__, [&] { minimize(loss, {}, Sgd{}); });
  refused("'x' is no parameter", __LINE__, [&] { minimize(loss, {x}); });
  refused("rate must be a float", __LINE__, [&] { minimize(loss, all, Lion{.lr = y}); });
  refused("norm must not be -1", __LINE__, [&] { minimize(loss, all, {}, {.clip = -1}); });
  minimize(loss, all, Sgd{});
  refused("has a loss already", __LINE__, [&] { minimize(loss, all, Sgd{}); });
}
