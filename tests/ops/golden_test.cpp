// Single ops, forward and backward, against PyTorch's results in f64.

#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

namespace sinter::test {

TEST_CASE("single ops agree with PyTorch in f64, forward and backward") {
  SafetensorsFile file(data_path("golden/ops_golden.safetensors"));
  REQUIRE(file.metadata().size() > 20);
  for (const auto& pair : file.metadata()) {
    const std::string &key = pair.first, &text = pair.second;
    CAPTURE(key);
    CAPTURE(text);
    // The inputs, named as in the text, and the results, in the text of a graph.
    std::string inputs, types, outputs = "%y";
    std::vector<Tensor> given;
    std::vector<std::string> names;
    std::string prefix = key + ".input.";
    for (const auto& entry : file.entries()) {
      if (!entry.name.starts_with(prefix)) continue;
      names.push_back(entry.name.substr(prefix.size()));
      inputs += fmt::format("%{}: {}, ", names.back(), entry.type.str());
      given.push_back(file.read(entry));
    }
    Tensor y = file.read(key + ".output"), upstream = file.read(key + ".upstream");
    types = y.type().str();
    const auto* count = file.find(key + ".count");
    if (count != nullptr) {
      types += ", " + count->type.str();
      outputs += ", %count";
    }
    auto module = parse_module(
        fmt::format("graph @g({}%upstream: {}) -> ({}) {{\n  {} : {}\n  return {}\n}}\n", inputs,
                    upstream.type().str(), types, text, types, outputs),
        "golden.sir");
    given.push_back(upstream);

    Graph& graph = *module->find("g");
    Value loss = sum(graph.outputs()[0].value * graph.find_input("upstream"));
    std::vector<Value> wrt;
    std::vector<Tensor> right{y};
    if (count != nullptr) right.push_back(file.read(*count));
    for (const std::string& name : names) {
      const auto* grad = file.find(fmt::format("{}.grad.{}", key, name));
      if (grad == nullptr) continue;
      wrt.push_back(graph.find_input(name));
      right.push_back(file.read(*grad));
    }
    for (Value g : gradients(graph, loss, wrt)) graph.add_output("", g);

    auto results = Reference().run(graph, given);
    REQUIRE(results.size() == right.size());
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(i);
      REQUIRE(results[i].type() == right[i].type());
      size_t where = 0;
      double d = difference(to_cells(results[i], results[i].dtype()),
                            to_cells(right[i], right[i].dtype()), where);
      CAPTURE(where);
      CHECK(d <= 1e-11);  // a mean of 4096 with a deviation of 0.01 costs a digit
    }
  }
}

}  // namespace sinter::test
