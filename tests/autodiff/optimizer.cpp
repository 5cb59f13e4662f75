// The update, by value: what the passes make of a graph with minimize()'s attributes, run by the
// reference with the states carried from step to step.

#include <sinter/ir/ops.h>
#include <sinter/passes/optimizer.h>
#include <sinter/passes/pass.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <map>

using namespace sinter;

namespace {

// p is trained on the loss sum(p * g): its gradient is the input g.
class Training {
 public:
  Training(std::vector<double> p, double beta1, double beta2, double decay) {
    auto n = static_cast<int64_t>(p.size());
    module_.states.push_back({"p", {DType::F32, {n}}});
    Graph& graph = module_.add_graph("step");
    Value param = graph.add_input("p", {DType::F32, {n}});
    Value g = graph.add_input("g", {DType::F32, {n}});
    graph.add_output("l", sum(param * g));
    graph.attributes["loss"] = std::string("l");
    graph.attributes["wrt"] = std::vector<std::string>{"p"};
    graph.attributes["optimizer"] = std::string("adamw");
    graph.attributes["beta1"] = beta1;
    graph.attributes["beta2"] = beta2;
    graph.attributes["weight_decay"] = decay;
    PassManager manager;
    manager.run(module_, parse_pipeline("canonicalize,autodiff,optimizer,canonicalize,cse,dce,"
                                        "expand,canonicalize,cse,dce"));
    for (const State& s : module_.states) state_.emplace(s.name, Tensor(s.type));
    state_["p"] = Tensor::from_doubles({DType::F32, {n}}, p);
    program_ = std::make_unique<ReferenceProgram>(graph);
  }

  void step(std::vector<double> g, double lr) {
    Graph& graph = *module_.find("step");
    std::vector<Tensor> inputs;
    for (Value v : graph.inputs()) {
      if (v.name() == "g")
        inputs.push_back(Tensor::from_doubles(v.type(), g));
      else if (v.name() == "lr")
        inputs.push_back(Tensor::from_doubles(v.type(), {lr}));
      else
        inputs.push_back(state_.at(v.name()));
    }
    std::vector<Tensor> outputs = program_->run(inputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (module_.find_state(graph.outputs()[i].name)) state_[graph.outputs()[i].name] = outputs[i];
  }

  void check(const std::string& name, std::vector<double> right) const {
    ReferenceTensor cells = to_cells(state_.at(name), DType::F64);
    REQUIRE(cells.data.size() == right.size());
    for (size_t i = 0; i < right.size(); ++i) {
      CAPTURE(name);
      CAPTURE(i);
      CHECK(std::abs(cells.data[i].f - right[i]) <= std::max(1e-5 * std::abs(right[i]), 1e-8));
    }
  }
  int32_t count() const { return state_.at(optimizer_count("adamw")).as<int32_t>()[0]; }

 private:
  Module module_;
  std::map<std::string, Tensor> state_;
  std::unique_ptr<ReferenceProgram> program_;
};

}  // namespace

TEST_CASE("optimizer: MP-01 three exact steps of AdamW") {
  Training t({1, -2, 0.5}, 0.9, 0.999, 0.1);
  t.step({0.1, -0.2, 0}, 0.01);
  t.check("p", {0.9890000, -1.988000, 0.4995000});
  t.step({0.3, -0.1, 1e-4}, 0.01);
  t.check("p", {0.9788332, -1.976690, 0.4915602});
  t.step({-0.2, 0.05, -2}, 0.01);
  t.check("p", {0.9752753, -1.969077, 0.4974565});
  t.check(optimizer_state("adamw", "m", "p"), {0.01510000, -0.02020000, -0.1999910});
  t.check(optimizer_state("adamw", "v", "p"), {1.398900e-4, 5.241004e-5, 0.004000000});
  CHECK(t.count() == 3);
}

TEST_CASE("optimizer: MP-02 neither the count of steps nor the learning rate is frozen") {
  Training fixed({1}, 0.9, 0.999, 0), rising({1}, 0.9, 0.999, 0);
  for (int i = 1; i <= 10; ++i) {
    fixed.step({1}, 1e-3);
    rising.step({1}, 1e-3 * i);
  }
  fixed.check("p", {0.99});
  rising.check("p", {0.945});
}

TEST_CASE("optimizer: MP-06 gradients are clipped by the norm of all of them") {
  // Beside p, whose gradient is [3, 4], a parameter without a gradient.
  for (double largest : {1.0, 5.0, 100.0}) {
    CAPTURE(largest);
    Module module;
    Graph& graph = module.add_graph("step");
    Value p = graph.add_input("p", {DType::F32, {2}}), g = graph.add_input("g", {DType::F32, {2}});
    Value b = graph.add_input("b", {DType::F32, {}});
    graph.add_output("l", sum(p * g) + b * 0.0);
    graph.attributes["loss"] = std::string("l");
    graph.attributes["wrt"] = std::vector<std::string>{"p", "b"};
    graph.attributes["optimizer"] = std::string("sgd");
    graph.attributes["clip"] = largest;
    graph.attributes["grad_norm"] = std::string("norm");
    PassManager manager;
    manager.run(module, parse_pipeline("canonicalize,autodiff,optimizer,expand,canonicalize"));
    std::vector<Tensor> inputs{Tensor::from_doubles({DType::F32, {2}}, {0, 0}),
                               Tensor::from_doubles({DType::F32, {2}}, {3, 4}),
                               Tensor::scalar(2.0f), Tensor::scalar(1.0f)};
    std::vector<Tensor> outputs = Reference().run(graph, inputs);
    double scale = std::min(1.0, largest / 5);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string& name = graph.outputs()[i].name;
      if (name == "norm") CHECK(outputs[i].at(0) == 5);
      if (name == "b") CHECK(outputs[i].at(0) == 2);
      if (name != "p") continue;
      CHECK(outputs[i].at(0) == doctest::Approx(-3 * scale).epsilon(1e-6));
      CHECK(outputs[i].at(1) == doctest::Approx(-4 * scale).epsilon(1e-6));
    }
  }
}
