// sinter-run: reads a module, compiles it for a device, runs one of its graphs, prints the outputs.
//
// Values go to standard output, messages to standard error. Exit status: 0; 1 for a diagnostic;
// 2 when --compare finds a difference; 3 when a device or a compiler is missing or fails.

#include <sinter/frontends/checkpoint/safetensors.h>
#include <sinter/frontends/cli/common.h>
#include <sinter/ir/text.h>
#include <sinter/passes/detail/util.h>
#include <sinter/runtime/executable.h>
#include <sinter/runtime/tensor_text.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>

namespace sinter {
namespace {

constexpr int kDiagnostic = 1, kDifference = 2, kNoDevice = 3;

struct Options {
  std::string file, passes, target, graph, device = "cpu", format = "text", compare;
  std::vector<std::string> inputs, print, disable;
  uint64_t seed = 0, step = 0;
  int64_t repeat = 1;
  double rtol = -1, atol = -1;
  bool devices = false, plan = false, timing = false;
};

using cli::err, cli::out, cli::read_source;

void list() {
  for (const DeviceEntry& device : list_devices())
    out(device.unavailable.empty()
            ? device.name + "\n"
            : fmt::format("{}: unavailable: {}\n", device.name, device.unavailable));
}

DeviceKind parse_device(const std::string& name) {
  for (DeviceKind kind :
       {DeviceKind::Reference, DeviceKind::Interpreter, DeviceKind::Cpu, DeviceKind::Cuda})
    if (to_string(kind) == name) return kind;
  throw Error(
      fmt::format("there is no device '{}'; there are reference, interpreter, cpu and cuda", name));
}

// The graphs that no other calls, of those from which `graph` is called.
std::vector<Graph*> callers_of(Module& module, const Graph& graph) {
  std::vector<Graph*> entries = detail::entry_graphs(module);
  if (std::find(entries.begin(), entries.end(), &graph) != entries.end()) return {};
  return entries;
}

// The graph to run: the one asked for, or the only one that no other calls. One that others call
// runs alone: it would not outlive the calls of it.
Graph& choose_graph(Module& module, const std::string& name) {
  if (!name.empty()) {
    Graph* graph = module.find(name);
    if (graph == nullptr) throw Error(fmt::format("there is no graph @{}", name));
    for (std::vector<Graph*> callers = callers_of(module, *graph); !callers.empty();
         callers = callers_of(module, *graph))
      for (Graph* caller : callers) module.erase_graph(*caller);
    return *graph;
  }
  Graph* found = nullptr;
  std::string names;
  int count = 0;
  for (Graph* graph : detail::entry_graphs(module)) {
    found = graph;
    names += fmt::format("{}{}", count++ ? ", " : "", graph->name());
  }
  if (count == 1) return *found;
  throw Error(count == 0 ? std::string("the module has no graph to run")
                         : fmt::format("choose a graph with --graph: {}", names));
}

// Values asked for by --print that are no outputs become some.
void add_printed(Graph& graph, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    bool known = graph.module().find_state(name) != nullptr;
    for (const GraphOutput& o : graph.outputs()) known = known || o.name == name;
    if (known) continue;
    Value found = graph.find_input(name);
    for (Op& op : graph)
      for (size_t i = 0; i < op.num_results() && !found; ++i)
        if (op.result(i).name() == name) found = op.result(i);
    if (found) graph.add_output(name, found);
  }
}

// Of a list of passes, those that say what a module computes; the others keep its meaning.
std::vector<PipelineStep> meaning_of(const std::vector<PipelineStep>& steps) {
  constexpr std::array<std::string_view, 6> kTransforms = {"verify", "autodiff", "vjp",
                                                           "jvp",    "vmap",     "optimizer"};
  std::vector<PipelineStep> kept;
  for (const PipelineStep& step : steps)
    if (std::find(kTransforms.begin(), kTransforms.end(), step.pass->name) != kTransforms.end())
      kept.push_back(step);
  return kept;
}

std::vector<PipelineStep> joined(std::vector<PipelineStep> a, const std::vector<PipelineStep>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// One compiled module with its state, and the inputs that the command line gives it.
class Runner {
 public:
  Runner(const Module& module, const std::string& graph, const CompileOptions& compile_options,
         const Options& options)
      : graph_(graph), options_(options), session_(make_session(compile(module, compile_options))) {
    bind();
  }

  const Executable& executable() const { return session_->executable(); }

  void run() {
    for (int64_t i = 0; i < options_.repeat; ++i) {
      fill_from_flags(i);
      outputs_ = session_->run(graph_, inputs_);
    }
  }

  // The outputs, or those asked for, in order; new states among them.
  std::vector<std::pair<std::string, Tensor>> values() const {
    std::vector<std::string> names = options_.print;
    if (names.empty())
      for (const GraphOutput& o : graph().outputs())
        if (!is_copy(o.name)) names.push_back(o.name);
    std::vector<std::pair<std::string, Tensor>> result;
    for (const std::string& name : names) {
      auto found = outputs_.find(name);
      if (found != outputs_.end())
        result.emplace_back(name, found->second);
      else if (executable().module().find_state(name) != nullptr)
        result.emplace_back(name, session_->state(name));
      else
        throw Error(fmt::format("--print: @{} has no value '{}'", graph_, name));
    }
    return result;
  }

  TensorType declared_type(const std::string& name) const {
    for (const GraphOutput& o : graph().outputs())
      if (o.name == name) return o.value.type();
    const State* state = executable().module().find_state(name);
    SINTER_CHECK(state != nullptr, "no value '{}'", name);
    return state->type;
  }

 private:
  // States that a pass derived from others are no results of the user's graph.
  bool is_copy(const std::string& name) const {
    const State* state = executable().module().find_state(name);
    return state != nullptr && !state->cast_of.empty();
  }
  const Graph& graph() const {
    const Graph* found = executable().module().find(graph_);
    SINTER_CHECK(found != nullptr, "graph @{} went away in the pipeline", graph_);
    return *found;
  }

  void bind() {
    for (const std::string& text : options_.inputs) {
      size_t equals = text.find('=');
      if (equals == 0 || equals == std::string::npos)
        throw Error(fmt::format("--input: expected NAME=VALUE, got '{}'", text));
      std::string name = text.substr(0, equals), value = text.substr(equals + 1);
      if (const State* state = executable().module().find_state(name)) {
        session_->set_state(name, parse_value(fmt::format("state '{}'", name), state->type, value,
                                              load_safetensors));
        continue;
      }
      Value input = graph().find_input(name);
      if (!input) throw Error(fmt::format("@{} has no input '{}'", graph_, name));
      inputs_.insert_or_assign(name, parse_value(fmt::format("input '{}'", name), input.type(),
                                                 value, load_safetensors));
    }
    for (Value v : graph().inputs()) {
      bool flag = v.name() == "seed" || v.name() == "step" || v.name() == "offset";
      if (flag && !is_float(v.dtype()) && !inputs_.contains(v.name()) &&
          executable().module().find_state(v.name()) == nullptr)
        from_flags_.push_back(v.name());
    }
  }

  // seed: its low and high half; step: counts on with every repetition; offset: 0.
  void fill_from_flags(int64_t repetition) {
    for (const std::string& name : from_flags_) {
      Tensor value(graph().find_input(name).type());
      for (int64_t i = 0; i < value.size() && name != "offset"; ++i) {
        uint64_t number = options_.step + static_cast<uint64_t>(repetition);
        if (name == "seed") {
          bool halves = value.size() > 1;
          number = i > 1 ? 0 : halves ? (options_.seed >> (32 * i)) & 0xffffffffU : options_.seed;
        }
        store_from_int64(value.dtype(), value.data(), i, static_cast<int64_t>(number));
      }
      inputs_.insert_or_assign(name, std::move(value));
    }
  }

  std::string graph_;
  const Options& options_;
  std::unique_ptr<Session> session_;
  Bindings inputs_, outputs_;
  std::vector<std::string> from_flags_;
};

struct Tolerance {
  double relative = 0, absolute = 0;
};

// How far a device may be from the f64 reference unless the user says.
Tolerance default_tolerance(DType type) {
  switch (type) {
    case DType::F64:
      return {1e-12, 1e-12};
    case DType::F32:
      return {1e-4, 1e-5};
    case DType::F16:
      return {1e-2, 1e-3};
    case DType::BF16:
      return {3e-2, 1e-2};
    default:
      return {};
  }
}

std::string index_text(int64_t linear, const Shape& shape) {
  Shape index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = linear % shape[i];
    linear /= shape[i];
  }
  return to_string(index);
}

// Whether `got` is `want` within the tolerance; says so on standard error.
bool compare(const std::string& name, DType declared, const Tensor& got, const Tensor& want,
             const Options& options) {
  if (got.shape() != want.shape()) {
    err(fmt::format("error: compare: {} has shape {}, that of the reference {}\n", name,
                    to_string(got.shape()), to_string(want.shape())));
    return false;
  }
  Tolerance tolerance = default_tolerance(declared);
  if (options.rtol >= 0) tolerance.relative = options.rtol;
  if (options.atol >= 0) tolerance.absolute = options.atol;
  int64_t bad = 0, worst = -1;
  double worst_excess = 0, largest = 0;
  for (int64_t i = 0; i < got.size(); ++i) {
    double a = got.at(i), b = want.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    double error = std::fabs(a - b),
           allowed = tolerance.absolute + tolerance.relative * std::fabs(b);
    if (error <= allowed && std::isfinite(b)) {
      largest = std::max(largest, error);
      continue;
    }
    ++bad;
    double excess = std::isfinite(error) ? error - allowed : HUGE_VAL;
    if (worst < 0 || excess > worst_excess) {
      worst = i;
      worst_excess = excess;
    }
  }
  if (bad == 0) {
    err(fmt::format("compare: {}: within tolerance, largest error {:.3g}\n", name, largest));
    return true;
  }
  double a = got.at(worst), b = want.at(worst);
  err(
      fmt::format("error: compare: {} differs from the reference at {}: got {}, expected {}, error "
                  "{:.3g}, tolerance {:.3g}; {} of {} elements\n",
                  name, index_text(worst, got.shape()), a, b, std::fabs(a - b),
                  tolerance.absolute + tolerance.relative * std::fabs(b), bad, got.size()));
  return false;
}

// What compiling took, and what the cache spared.
void print_timing(const CompileStats& stats) {
  for (const auto& [phase, seconds] : stats.phases)
    err(fmt::format("{:9.3f} ms  {}\n", seconds * 1e3, phase));
  err(fmt::format("{:9.3f} ms in all: {} kernels, {} compiled, {} from the cache\n",
                  stats.seconds * 1e3, stats.kernels, stats.compiled, stats.cached));
}

int run(const Options& o) {
  auto format = parse_value_format(o.format);
  if (!format) throw Error(fmt::format("--format={}: expected text, json or hex", o.format));
  if (!o.compare.empty() && o.compare != "reference")
    throw Error(fmt::format("--compare={}: expected reference", o.compare));
  if (o.repeat < 1) throw Error("--repeat: expected at least 1");

  std::unique_ptr<Module> module =
      parse_module(read_source(o.file), o.file == "-" ? "<stdin>" : o.file);
  Graph& graph = choose_graph(*module, o.graph);
  add_printed(graph, o.print);

  CompileOptions options;
  options.device = parse_device(o.device);
  options.target = o.target;
  options.disabled = o.disable;
  std::vector<PipelineStep> passes = parse_pipeline(o.passes);
  std::vector<PipelineStep> rest = rest_of_pipeline(passes);
  options.pipeline =
      joined(passes, options.device == DeviceKind::Reference ? meaning_of(rest) : rest);

  Runner runner(*module, graph.name(), options, o);
  runner.run();
  std::vector<std::pair<std::string, Tensor>> values = runner.values();
  if (o.plan) err(runner.executable().plan_text());
  if (o.timing) print_timing(runner.executable().stats());
  out(format_values(values, *format));
  if (o.compare.empty()) return 0;

  CompileOptions oracle_options;
  oracle_options.device = DeviceKind::Reference64;
  oracle_options.pipeline = joined(meaning_of(passes), meaning_of(rest));
  Runner oracle(*module, graph.name(), oracle_options, o);
  oracle.run();
  std::vector<std::pair<std::string, Tensor>> expected = oracle.values();
  bool same = true;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [name, value] = values[i];
    same = compare(name, runner.declared_type(name).dtype, value, expected[i].second, o) && same;
  }
  return same ? 0 : kDifference;
}

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Compiles a module of sinter's IR, runs a graph of it and prints the outputs.",
               "sinter-run");
  app.add_option("FILE", o.file, "The module to read; - for standard input");
  app.add_option("--device", o.device, "reference, interpreter, cpu (default) or cuda");
  app.add_option("--graph", o.graph, "The graph to run, where there are several");
  app.add_option("--input", o.inputs,
                 "NAME=VALUE: an input or a state; nested lists, fill:S, fill:S:M, @FILE:NAME")
      ->allow_extra_args(false);
  app.add_option("--seed", o.seed, "Fills an input named seed");
  app.add_option("--step", o.step, "Fills an input named step; counts on with --repeat");
  app.add_option("--repeat", o.repeat, "Runs N times, carrying the state");
  app.add_option("--print", o.print, "Prints these values only")->delimiter(',');
  app.add_option("--format", o.format, "text, json or hex");
  app.add_option("--compare", o.compare, "reference: compares with the f64 reference");
  app.add_option("--rtol", o.rtol, "Relative tolerance of --compare");
  app.add_option("--atol", o.atol, "Absolute tolerance of --compare");
  app.add_option("--passes", o.passes, "Passes to run before the rest of the pipeline");
  app.add_option("--disable", o.disable, "Passes to switch off")->delimiter(',');
  app.add_option("--target", o.target, "What the interpreter schedules for: host, sm_90a, …");
  app.add_flag("--plan", o.plan, "Prints launches and memory plan to standard error");
  app.add_flag("--timing", o.timing,
               "Prints how long each phase of compiling took, and how many kernels were compiled");
  app.add_flag("--devices", o.devices, "Lists the devices of this machine");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kDiagnostic;
  }
  try {
    if (o.devices) {
      list();
      return 0;
    }
    if (o.file.empty()) throw Error("no FILE is given");
    return run(o);
  } catch (const Error& e) {
    // A diagnostic without a place of its own is about the file.
    const Diagnostic& d = e.diagnostic();
    err(d.location.known() || o.file.empty() ? fmt::format("{}\n", e.what())
                                             : fmt::format("{}: {}\n", o.file, e.what()));
    return kDiagnostic;
  } catch (const DeviceError& e) {
    err(fmt::format("error: {}\n", e.what()));
    return kNoDevice;
  } catch (const std::exception& e) {
    err(fmt::format("internal error: {}\n", e.what()));
    return kDiagnostic;
  }
}

}  // namespace
}  // namespace sinter

int main(int argc, char** argv) {
  return sinter::main(argc, argv);
}
