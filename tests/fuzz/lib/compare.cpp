#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/cuda/nvrtc.h>
#include <sinter/runtime/detail/kernel_table.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/fuzz/lib/compare.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <set>

namespace sinter::test {
namespace {

std::vector<Tensor> in_order(const Graph& graph, const Bindings& outputs) {
  std::vector<Tensor> results;
  for (const GraphOutput& o : graph.outputs()) results.push_back(outputs.at(o.name));
  return results;
}

CompileOptions options_of(DeviceKind device, const Setting& setting) {
  CompileOptions options;
  options.device = device;
  options.target = setting.target;
  options.disabled = setting.disabled;
  options.pipeline = setting.pipeline;
  return options;
}

// Whether two elements count as one result. canonicalize makes a plain product of grad_mul where
// the slope is bounded, and that gives -0 where grad_mul gives 0: across that pass zeros are equal.
bool same_element(const Tensor& a, const Tensor& b, int64_t k, bool signed_zero) {
  if (load_bits(a.dtype(), a.data(), k) == load_bits(b.dtype(), b.data(), k)) return true;
  if (!is_float(a.dtype())) return false;
  double x = a.at(k), y = b.at(k);
  // Which NaN it is depends on the order of operands alone.
  return (std::isnan(x) && std::isnan(y)) || (!signed_zero && x == y);
}

std::optional<Failure> check_bits(const Graph& graph, const std::string& setting,
                                  const std::vector<Tensor>& first,
                                  const std::vector<Tensor>& given, bool signed_zero) {
  for (size_t i = 0; i < first.size(); ++i) {
    int64_t at = 0, bad = 0;
    for (int64_t k = first[i].size(); k-- > 0;) {
      if (same_element(first[i], given[i], k, signed_zero)) continue;
      at = k;
      ++bad;
    }
    if (bad == 0) continue;
    return Failure{Failure::Bits, setting,
                   fmt::format("{} element {}: {} and {}; {} of {} differ", graph.outputs()[i].name,
                               at, first[i].at(at), given[i].at(at), bad, first[i].size())};
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Failure::Kind kind) {
  switch (kind) {
    case Failure::Throws:
      return "throws";
    case Failure::Bits:
      return "differs from all passes";
    case Failure::Error:
      return "is off the reference";
  }
  return "";
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings{{"all passes", {}, {}, {}}};
  Setting none{"no pass that can be switched off", {}, {}, {}};
  std::set<std::string_view> seen;
  for (const PipelineStep& step : default_pipeline()) {
    if (step.pass->disabling == PassInfo::Refused || !seen.insert(step.pass->name).second) continue;
    std::string name(step.pass->name);
    settings.push_back({"without " + name, {name}, {}, {}});
    none.disabled.push_back(name);
  }
  settings.push_back(std::move(none));
  // Kernels for a card run on the interpreter, lane by lane.
  for (const char* target : {"sm_90a", "host"})
    settings.push_back({fmt::format("for {}", target), {}, {}, target});
  return settings;
}

std::vector<LoopProgram> kernels_of(const Module& module) {
  std::vector<LoopProgram> kernels;
  detail::KernelTable table(module, kernels);
  for (const auto& graph : module.graphs())
    for (Op& op : *graph)
      if (!op.callee().empty() && detail::writes_elements(op)) table.of(op);
  return kernels;
}

namespace {

// What CUDA's printer refuses is a failure on a machine without a card too.
void print_kernels(const Module& module) {
  if (!module.target.is_cuda()) return;
  for (const LoopProgram& kernel : kernels_of(module)) print_cuda(kernel);
}

// By NVRTC, many to a unit.
void compile_kernels(const Module& module) {
  constexpr size_t kUnit = 64;
  std::vector<LoopProgram> kernels = kernels_of(module);
  std::vector<cuda::CompileRequest> requests;
  for (size_t i = 0; i < kernels.size(); i += kUnit) {
    std::vector<const LoopProgram*> unit;
    for (size_t k = i; k < std::min(i + kUnit, kernels.size()); ++k) unit.push_back(&kernels[k]);
    requests.push_back({unit.front()->symbol, print_cuda(unit), module.target.arch});
  }
  cuda::compile_all(requests);
}

// Attention as one op adds up in another order than what it was made of.
bool fuses_attention(const Executable& executable) {
  const std::vector<Remark>& remarks = executable.remarks();
  return std::any_of(remarks.begin(), remarks.end(), [](const Remark& r) {
    return r.pass == "fuse-attention" && r.message.starts_with("fused:");
  });
}

// The size of the numbers that an output comes from, by output: its own elements and those of the
// last values before it, since a sum may be small beside its terms.
std::vector<double> scales_of(const Specimen& specimen, std::span<const Tensor> inputs) {
  constexpr int kDepth = 6;
  Specimen probe = specimen.clone();
  Graph& graph = probe.graph();
  std::vector<Value> ends, values(graph.inputs().begin(), graph.inputs().end());
  for (const GraphOutput& o : graph.outputs()) ends.push_back(o.value);
  for (Op& op : graph)
    for (size_t i = 0; i < op.num_results(); ++i) values.push_back(op.result(i));
  while (!graph.outputs().empty()) graph.erase_output(0);
  for (Value v : values) graph.add_output(fmt::format("v{}", graph.outputs().size()), v);
  auto results = Reference({.f64 = true}).run(graph, inputs);
  ValueMap<double> size;
  for (size_t i = 0; i < values.size(); ++i) {
    double& most = size[values[i]];
    if (!is_float(values[i].dtype())) continue;
    for (int64_t k = 0; k < results[i].size(); ++k)
      if (double x = std::abs(results[i].at(k)); std::isfinite(x)) most = std::max(most, x);
  }
  std::vector<double> scales;
  for (Value end : ends) {
    double scale = 0;
    std::vector<Value> level{end};
    for (int depth = 0; depth <= kDepth; ++depth) {
      std::vector<Value> next;
      for (Value v : level) {
        scale = std::max(scale, size.at(v));
        if (v.op() == nullptr) continue;
        for (Value x : v.op()->operands())
          if (x && std::find(next.begin(), next.end(), x) == next.end()) next.push_back(x);
      }
      level = std::move(next);
    }
    scales.push_back(scale);
  }
  return scales;
}

// How a thread rounds, while this lives.
class Rounding {
 public:
  explicit Rounding(int mode) { std::fesetround(mode); }
  ~Rounding() { std::fesetround(before_); }
  Rounding(const Rounding&) = delete;
  Rounding& operator=(const Rounding&) = delete;

 private:
  int before_ = std::fegetround();
};

// The largest difference of two results of one type.
double distance(const Tensor& narrow, const Tensor& wide) {
  double off = 0;
  if (is_float(narrow.dtype()))
    for (int64_t k = 0; k < narrow.size(); ++k) {
      double a = narrow.at(k), b = wide.at(k);
      if (a != b && !(std::isnan(a) && std::isnan(b))) off = std::max(off, std::abs(a - b));
    }
  return off;
}

}  // namespace

Right right_of(const Specimen& specimen) {
  const Graph& graph = specimen.graph();
  auto inputs = specimen.inputs();
  Right right;
  right.wide = Reference({.f64 = true}).run(graph, inputs);
  auto narrow = Reference().run(graph, inputs);
  // One run in f32 may be right by luck: a sum that cancels, in the one order that is exact. What
  // the graph makes of rounding shows when all is rounded to one side, too (stochastic arithmetic:
  // Vignes, 1993). A result that this makes NaN or infinite says nothing.
  std::vector<std::vector<Tensor>> others;
  for (int mode : {FE_UPWARD, FE_DOWNWARD}) {
    Rounding rounding(mode);
    others.push_back(Reference().run(graph, inputs));
  }
  auto scales = scales_of(specimen, inputs);
  for (size_t i = 0; i < narrow.size(); ++i) {
    double scale = 0, off = distance(narrow[i], right.wide[i]);
    if (is_float(narrow[i].dtype()))
      for (int64_t k = 0; k < narrow[i].size(); ++k)
        if (double b = right.wide[i].at(k); std::isfinite(b)) scale = std::max(scale, std::abs(b));
    // bf16 and f16 are off by what they are.
    double own = compute_type(narrow[i].dtype()) == narrow[i].dtype() ? 1e-2 : 5e-2;
    right.ill = right.ill || !(off <= own * std::max(scale, 1e-2));
    for (const auto& other : others)
      if (double d = distance(other[i], right.wide[i]); std::isfinite(d)) off = std::max(off, d);
    right.allowed.push_back(8 * off + 1e-6 * scales[i]);
  }
  return right;
}

std::optional<Failure> check_error(const Specimen& specimen, const Right& right,
                                   const std::vector<Tensor>& results) {
  const Graph& graph = specimen.graph();
  for (size_t i = 0; i < results.size(); ++i) {
    const GraphOutput& output = graph.outputs()[i];
    if (results[i].type() != output.value.type())
      return Failure{Failure::Error, "",
                     fmt::format("{} is {}, not {}", output.name, results[i].type().str(),
                                 output.value.type().str())};
    bool floats = is_float(output.value.dtype());
    for (int64_t k = 0; k < results[i].size(); ++k) {
      double a = results[i].at(k), b = right.wide[i].at(k);
      double allowed = floats ? right.allowed[i] : 0;
      if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= allowed) continue;
      return Failure{
          Failure::Error, "",
          fmt::format("{} element {}: {}, not {}; {} allowed", output.name, k, a, b, allowed)};
    }
  }
  return std::nullopt;
}

std::vector<Tensor> run_on(const Specimen& specimen, DeviceKind device, const Setting& setting) {
  auto session = make_session(compile(*specimen.module, options_of(device, setting)));
  return in_order(specimen.graph(), session->run("g", specimen.bindings()));
}

Comparison compare_settings(const Specimen& specimen, std::span<const Setting> settings) {
  Comparison comparison;
  std::vector<Tensor> first, uncanonical;  // the first results, and those without canonicalize
  bool first_fused = false;                // whether they are of attention as one op
  std::set<std::string> seen;
  const Setting* current = nullptr;
  try {
    Right right = right_of(specimen);
    comparison.ill = right.ill;
    Bindings inputs = specimen.bindings();
    for (const Setting& setting : settings) {
      current = &setting;
      auto executable = compile(*specimen.module, options_of(DeviceKind::Interpreter, setting));
      // The same module and plan: the same code.
      if (!seen.insert(print(executable->module()) + executable->plan_text()).second) continue;
      ++comparison.ran;
      print_kernels(executable->module());
      auto results = in_order(specimen.graph(), make_session(executable)->run("g", inputs));
      const auto& off = setting.disabled;
      bool canonical = std::find(off.begin(), off.end(), "canonicalize") == off.end();
      bool fused = fuses_attention(*executable);
      // Another target adds up in another order.
      bool alike = fused == first_fused && setting.target.empty();
      std::optional<Failure>& failure = comparison.failure;
      if (first.empty() || !alike) {
        if (first.empty()) {
          first = results;
          first_fused = fused;
        }
        if (!right.ill) failure = check_error(specimen, right, results);
        if (failure) failure->setting = setting.name;
      } else {
        failure = check_bits(specimen.graph(), setting.name, first, results, canonical);
      }
      if (!canonical && alike) {
        if (uncanonical.empty())
          uncanonical = std::move(results);
        else if (!failure)
          failure = check_bits(specimen.graph(), setting.name, uncanonical, results, true);
      }
      if (failure) return comparison;
    }
  } catch (const std::exception& e) {
    comparison.failure =
        Failure{Failure::Throws, current != nullptr ? current->name : "", e.what()};
  }
  return comparison;
}

std::vector<Comparison> compare_on(DeviceKind device, std::span<const Specimen> specimens,
                                   const std::string& arch) {
  std::vector<Comparison> comparisons(specimens.size());
  auto check = [&](size_t i, const std::vector<Tensor>& results) {
    Right right = right_of(specimens[i]);
    comparisons[i].ill = right.ill;
    if (!right.ill) comparisons[i].failure = check_error(specimens[i], right, results);
  };
  try {
    Module all;
    for (size_t i = 0; i < specimens.size(); ++i) {
      // Callees first.
      std::vector<const Graph*> graphs;
      for (const auto& graph : specimens[i].module->graphs())
        if (graph->name() != "g") graphs.push_back(graph.get());
      graphs.push_back(&specimens[i].graph());
      for (const Graph* graph : graphs) {
        // Sub-graphs bear the specimen's seed in their names.
        std::string name = graph->name() == "g" ? fmt::format("g_{}", i) : graph->name();
        Graph& copy = all.add_graph(name);
        ValueMap<Value> map;
        for (Value v : graph->inputs()) map[v] = copy.add_input(v.name(), v.type());
        clone_ops(*graph, copy, map);
        for (const GraphOutput& o : graph->outputs()) copy.add_output(o.name, map.at(o.value));
      }
    }
    auto executable = compile(all, options_of(device, {"all passes", {}, {}, arch}));
    if (!arch.empty()) compile_kernels(executable->module());
    auto session = make_session(executable);
    for (size_t i = 0; i < specimens.size(); ++i)
      check(i, in_order(specimens[i].graph(),
                        session->run(fmt::format("g_{}", i), specimens[i].bindings())));
  } catch (const std::exception& e) {
    if (specimens.size() == 1) {
      comparisons[0].failure = Failure{Failure::Throws, "", e.what()};
      return comparisons;
    }
    // Which one it was.
    for (size_t i = 0; i < specimens.size(); ++i)
      comparisons[i] = compare_on(device, specimens.subspan(i, 1), arch)[0];
  }
  return comparisons;
}

}  // namespace sinter::test
