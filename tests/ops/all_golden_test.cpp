// Every op that has a counterpart in PyTorch, forward and reverse, against its results in f64: in
// f32 and, for ops used in training, in bf16, on every executor. How a case is written stands in
// tests/parity/make_op_golden.py.

#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace sinter::test {
namespace {

// The 97-valued part of F(shape, s).
int64_t raw(int64_t i, int64_t s) {
  return (37 * i * i + (53 + 2 * s) * i + 101 * s) % 97;
}

struct GoldenInput {
  std::string name;
  TensorType type;
  int64_t seed = 0;
  double scale = 1, shift = 0;

  Tensor tensor(DType float_type, bool absolute) const {
    std::vector<double> values(static_cast<size_t>(type.elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      int64_t r = raw(static_cast<int64_t>(i), seed);
      if (is_float(type.dtype))
        values[i] = static_cast<double>(r - 48) / 32 * scale + shift;
      else
        values[i] = static_cast<double>(r % static_cast<int64_t>(scale)) + shift;
      if (absolute && is_float(type.dtype)) values[i] = std::abs(values[i]);
    }
    DType dtype = is_float(type.dtype) ? float_type : type.dtype;
    return Tensor::from_doubles({dtype, type.shape}, values);
  }
};

struct GoldenCase {
  std::string name, text, narrow;  // narrow: how bf16 is held to the values; "": it is not
  std::vector<GoldenInput> inputs;
  std::vector<std::string> grad;
  std::vector<double> values;
};

GoldenCase parse_case(const std::string& name, const std::string& text, const Tensor& values) {
  GoldenCase c;
  c.name = name;
  c.values = values.to_doubles();
  std::istringstream lines(text);
  std::getline(lines, c.text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, type;
    words >> first;
    if (first == "grad") {
      for (std::string word; words >> word;) c.grad.push_back(word);
    } else if (first == "bf16") {
      words >> c.narrow;
    } else {
      GoldenInput input;
      words >> type >> input.seed >> input.scale >> input.shift;
      input.name = first;
      auto module =
          parse_module(fmt::format("graph @g(%x: {0}) -> {0} {{ return %x }}", type), name);
      input.type = module->find("g")->inputs()[0].type();
      c.inputs.push_back(std::move(input));
    }
  }
  return c;
}

std::vector<GoldenCase> golden_cases() {
  SafetensorsFile file(data_path("golden/all_ops.safetensors"));
  std::vector<GoldenCase> cases;
  for (const auto& entry : file.metadata())
    cases.push_back(parse_case(entry.first, entry.second, file.read(entry.first)));
  return cases;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// The case as graph `name` of `module`: results, then gradients.
void add_graph(Module& module, const GoldenCase& c, const std::string& name, DType float_type) {
  std::string inputs, text = c.text;
  for (const GoldenInput& i : c.inputs)
    inputs += fmt::format("{}%{}: {}", inputs.empty() ? "" : ", ", i.name, i.type.str());
  std::string results = text.substr(0, text.find(" = "));
  std::string types = text.substr(text.rfind(" : ") + 3);
  auto narrow = [&](std::string& part) {
    if (float_type != DType::F32)
      part = replaced(part, "f32[", std::string(to_string(float_type)) + "[");
  };
  narrow(inputs);
  if (c.narrow != "loss") narrow(types);  // losses are f32 whatever the logits are
  text = text.substr(0, text.rfind(" : ") + 3) + types;
  std::string source =
      fmt::format("graph @g({}) -> ({}) {{\n  {}\n  return {}\n}}\n", inputs, types, text, results);
  auto parsed = parse_module(source, c.name + ".sir");
  Graph& graph = copy_into(module, *parsed->find("g"), name);
  if (c.grad.empty()) return;
  Value loss;
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    Value y = graph.outputs()[k].value;
    if (!is_float(y.dtype())) continue;
    Value weight = graph.add_input(fmt::format("upstream{}", k), y.type());
    Value term = sum(cast(y * weight, compute_type(y.dtype())));
    loss = loss ? loss + term : term;
  }
  std::vector<Value> wrt;
  for (const std::string& one : c.grad) wrt.push_back(graph.find_input(one));
  for (Value g : gradients(graph, loss, wrt)) graph.add_output("", g);
}

std::vector<Tensor> inputs_of(const GoldenCase& c, const Graph& graph, DType float_type,
                              bool absolute = false) {
  std::vector<Tensor> tensors;
  for (const GoldenInput& i : c.inputs) tensors.push_back(i.tensor(float_type, absolute));
  for (size_t i = tensors.size(); i < graph.inputs().size(); ++i) {
    const std::string& name = graph.inputs()[i].name();
    GoldenInput upstream{name, graph.inputs()[i].type(), 50 + name.back() - '0', 1, 0};
    tensors.push_back(upstream.tensor(graph.inputs()[i].dtype(), absolute));
  }
  return tensors;
}

double norm_of(std::span<const double> values) {
  double squares = 0;
  for (double v : values) squares += v * v;
  return std::sqrt(squares);
}

double ulp(double x) {
  return x == 0 ? 0x1p-133 : std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
}

// Calls check(result, expected values, index) for each result of a case.
template <typename F>
void for_each_result(const GoldenCase& c, const std::vector<Tensor>& results, F&& check) {
  size_t at = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    auto size = static_cast<size_t>(results[i].size());
    REQUIRE(at + size <= c.values.size());
    CAPTURE(i);
    check(results[i].to_doubles(), std::span(c.values).subspan(at, size), i);
    at += size;
  }
  REQUIRE(at == c.values.size());
}

// What each executor gives for the cases, as one module, so that it compiles once. In bf16 an
// executor with a compiler takes every third case: the kernels are those of f32 but for the casts.
void run_cases(const std::vector<GoldenCase>& cases, DType float_type,
               const std::function<void(const GoldenCase&, const std::vector<Tensor>&)>& check) {
  for (const Executor& executor : executors()) {
    CAPTURE(executor.name);
    size_t step = executor.costly && float_type == DType::BF16 ? 3 : 1;
    Module module;
    std::vector<Job> jobs;
    std::vector<const GoldenCase*> chosen;
    for (size_t i = 0; i < cases.size(); i += step) {
      CAPTURE(cases[i].name);
      std::string name = fmt::format("case{}", i);
      add_graph(module, cases[i], name, float_type);
      jobs.push_back({name, inputs_of(cases[i], *module.find(name), float_type)});
      chosen.push_back(&cases[i]);
    }
    std::vector<std::vector<Tensor>> results = executor.run_all(module, jobs);
    for (size_t i = 0; i < chosen.size(); ++i) {
      CAPTURE(chosen[i]->name);
      CAPTURE(chosen[i]->text);
      check(*chosen[i], results[i]);
    }
  }
}

// Sum |a b| of each element of a contraction and of its gradients.
std::vector<double> magnitudes(const GoldenCase& c) {
  Module module;
  add_graph(module, c, "g", DType::F32);
  Graph& graph = *module.find("g");
  std::vector<double> all;
  for (const Tensor& t : Reference({.f64 = true}).run(graph, inputs_of(c, graph, DType::F32, true)))
    for (double v : t.to_doubles()) all.push_back(v);
  return all;
}

}  // namespace

TEST_CASE("golden values of every op: the f64 reference") {
  for (const GoldenCase& c : golden_cases()) {
    CAPTURE(c.name);
    CAPTURE(c.text);
    Module module;
    add_graph(module, c, "g", DType::F32);
    Graph& graph = *module.find("g");
    auto results = Reference({.f64 = true}).run(graph, inputs_of(c, graph, DType::F32));
    for_each_result(c, results,
                    [](const std::vector<double>& y, std::span<const double> right, size_t) {
                      double scale = std::max(norm_of(right), 1e-3);
                      for (size_t k = 0; k < y.size(); ++k)
                        CHECK(std::abs(y[k] - right[k]) <= 1e-12 * scale);
                    });
  }
}

TEST_CASE("golden values of every op: f32 on every executor") {
  run_cases(
      golden_cases(), DType::F32, [](const GoldenCase& c, const std::vector<Tensor>& results) {
        for_each_result(c, results,
                        [&](const std::vector<double>& y, std::span<const double> right, size_t i) {
                          std::vector<double> error(y);
                          for (size_t k = 0; k < y.size(); ++k) error[k] -= right[k];
                          if (!is_float(results[i].dtype())) CHECK(norm_of(error) == 0);
                          CHECK(norm_of(error) <= 1e-5 * norm_of(right));
                        });
      });
}

TEST_CASE("golden values of every op: bf16 on every executor") {
  std::vector<GoldenCase> cases = golden_cases();
  std::erase_if(cases, [](const GoldenCase& c) { return c.narrow.empty(); });
  REQUIRE(cases.size() > 50);
  run_cases(cases, DType::BF16, [](const GoldenCase& c, const std::vector<Tensor>& results) {
    std::vector<double> sizes;
    if (c.narrow == "contraction") sizes = magnitudes(c);
    size_t at = 0, forward = results.size() - c.grad.size();
    for_each_result(c, results,
                    [&](const std::vector<double>& y, std::span<const double> right, size_t i) {
                      double largest = 0;
                      for (double r : right) largest = std::max(largest, std::abs(r));
                      for (size_t k = 0; k < y.size(); ++k, ++at) {
                        CAPTURE(k);
                        double allowed = ulp(right[k]);
                        // Differences of numbers that were rounded when they were saved, as the
                        // softmax is: half an ulp of the largest, and half of the result's own.
                        if (c.narrow == "attention" || (i >= forward && c.narrow == "row"))
                          allowed = 0x1p-8 * largest + allowed / 2;
                        if (!sizes.empty()) allowed = 0x1p-7 * sizes[at];
                        CHECK(std::abs(y[k] - right[k]) <= allowed);
                      }
                    });
  });
}

TEST_CASE("golden values of every op: none is left out without a reason") {
  std::set<std::string> known, given;
  for (const GoldenCase& c : golden_cases()) {
    std::istringstream words(c.text.substr(c.text.find(" = ") + 3));
    std::string op;
    words >> op;
    given.insert(op);
  }
  std::set<std::string> registered;
  for (const OpDef* def : OpRegistry::get().all()) registered.insert(def->name);
  std::ifstream file(data_path("golden/without_golden.txt"));
  REQUIRE(file);
  for (std::string line; std::getline(file, line);) {
    size_t colon = line.find(": ");
    if (line.empty() || line[0] == '#') continue;
    REQUIRE_MESSAGE(colon != std::string::npos, line);
    std::istringstream ops(line.substr(0, colon));
    for (std::string op; ops >> op;) {
      CHECK_MESSAGE(registered.contains(op), op, " is no op");
      CHECK_MESSAGE(!given.contains(op), op, " has golden values");
      CHECK_MESSAGE(known.insert(op).second, op, " stands there twice");
    }
  }
  for (const std::string& op : registered)
    CHECK_MESSAGE((given.contains(op) || known.contains(op)), op,
                  " has neither golden values (tests/parity/make_op_golden.py) nor a reason in "
                  "tests/golden/without_golden.txt");
}

}  // namespace sinter::test
