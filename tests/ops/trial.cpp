#include <pthread.h>
#include <sinter/ir/numeric.h>
#include <sinter/ir/ops.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>
#include <exception>

namespace sinter::test {
namespace {

uint64_t hash_of(std::string_view text) {
  uint64_t h = 1469598103934665603ULL;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return h;
}

// The gradient of that graph, for an op that names one: 2 x dy for each float input.
Graph& add_gradient(Module& module, const Graph& callee) {
  Graph& graph = module.add_graph(callee.name() + "_vjp");
  std::vector<Value> operands, cotangents;
  for (Value v : callee.inputs()) operands.push_back(graph.add_input(v.name(), v.type()));
  for (const GraphOutput& o : callee.outputs()) graph.add_input("y_" + o.name, o.value.type());
  for (const GraphOutput& o : callee.outputs())
    if (is_float(o.value.dtype()))
      cotangents.push_back(graph.add_input("dy_" + o.name, o.value.type()));
  size_t next = 0;
  for (Value v : operands)
    if (is_float(v.dtype())) graph.add_output("", v * 2.0 * cotangents[next++]);
  return graph;
}

}  // namespace

void on_small_stack(const std::function<void()>& body) {
  struct Start {
    const std::function<void()>& body;
    std::exception_ptr thrown;
  } job{body, nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kSmallStack);
  pthread_t thread;
  auto start = [](void* p) -> void* {
    auto* j = static_cast<Start*>(p);
    try {
      j->body();
    } catch (...) {
      j->thrown = std::current_exception();
    }
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, start, &job) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (job.thrown) std::rethrow_exception(job.thrown);
}

Trial make_trial(const OpDef& def, const Sample& sample, size_t number) {
  Trial trial;
  trial.sample = sample;
  trial.name = fmt::format("{} #{}", def.name, number);
  for (const TensorType& type : sample.operands) trial.name += " " + type.str();
  trial.module = std::make_unique<Module>();
  OpInit init;
  if (def.has_callee) {
    Graph& callee =
        add_callee(*trial.module, sample.operands, fmt::format("{}_callee{}", def.name, number));
    init.callee = callee.name();
    for (const std::string& attr : def.callee_attrs)
      trial.sample.attrs[attr] = add_gradient(*trial.module, callee).name();
  }
  trial.graph = &trial.module->add_graph("g");
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    bool absent = std::find(sample.absent.begin(), sample.absent.end(), i) != sample.absent.end();
    init.operands.push_back(
        absent ? Value() : trial.graph->add_input(fmt::format("x{}", i), sample.operands[i]));
  }
  init.attrs = trial_attrs(def, trial.sample);
  init.loc = SourceLocation::here("trial.cpp", 7);
  trial.op = &trial.graph->create(def, std::move(init));
  for (size_t i = 0; i < trial.op->num_results(); ++i)
    trial.graph->add_output(fmt::format("y{}", i), trial.op->result(i));
  return trial;
}

void for_each_trial(const std::function<void(Trial&)>& body) {
  for (const OpDef* def : all_ops()) {
    auto samples = def->samples();
    SINTER_CHECK(!samples.empty(), "{} has no samples", def->name);
    for (size_t i = 0; i < samples.size(); ++i) {
      Trial trial = make_trial(*def, samples[i], i);
      try {
        body(trial);
      } catch (const std::exception& e) {
        std::string message = trial.name + ": " + e.what();
        FAIL_CHECK(message);
      }
    }
  }
}

namespace {

// Whether the op takes these operands.
bool allowed(const OpDef& def, const Sample& sample) {
  try {
    make_trial(def, sample, 0);
    return true;
  } catch (const Error&) {
    return false;
  }
}

template <typename F>
void for_each_shape(Sample& sample, F f) {
  for (TensorType& type : sample.operands) f(type.shape);
  if (sample.result) f(sample.result->shape);
}

}  // namespace

std::vector<std::pair<Variant, Sample>> variants(const OpDef& def, const Sample& sample) {
  std::vector<std::pair<Variant, Sample>> all{{Variant::Own, sample}};
  bool floats = std::any_of(sample.operands.begin(), sample.operands.end(),
                            [](const TensorType& t) { return is_float(t.dtype); });
  if (floats) {
    all.emplace_back(Variant::Wide, sample);
    all.back().second.low = -8;
    all.back().second.high = 8;
  }
  std::vector<int64_t> extents;
  Sample copy = sample;
  for_each_shape(copy, [&](Shape& shape) {
    for (int64_t extent : shape)
      if (extent > 1 && std::find(extents.begin(), extents.end(), extent) == extents.end())
        extents.push_back(extent);
  });
  for (int64_t extent : extents)
    for (int64_t other : {1, 0}) {
      Sample changed = sample;
      for_each_shape(
          changed, [&](Shape& shape) { std::replace(shape.begin(), shape.end(), extent, other); });
      if (allowed(def, changed)) all.emplace_back(Variant::Reshaped, std::move(changed));
    }
  Sample longer = sample;
  size_t rank = 0;
  for_each_shape(longer, [&](Shape& shape) {
    shape.insert(shape.begin(), 2);
    rank = std::max(rank, shape.size());
  });
  if (rank > 0 && rank <= 4 && allowed(def, longer))
    all.emplace_back(Variant::Reshaped, std::move(longer));
  return all;
}

size_t rank_of(const Sample& sample) {
  size_t rank = 0;
  for (const TensorType& type : sample.operands) rank = std::max(rank, type.shape.size());
  return rank;
}

std::vector<Sample> samples_of_other_ranks(const OpDef& def) {
  constexpr size_t kMost = 4;
  std::vector<Sample> known, added;
  bool taken[kMost + 1] = {};
  for (const Sample& sample : def.samples())
    for (auto& [variant, changed] : variants(def, sample)) {
      if (size_t rank = rank_of(changed); rank <= kMost) taken[rank] = true;
      if (variant == Variant::Own) known.push_back(changed);
    }
  for (size_t rank = 0; rank <= kMost; ++rank) {
    for (size_t i = 0; i < known.size() && !taken[rank]; ++i) {
      Sample changed = known[i];
      size_t from = rank_of(changed);
      if (from == 0) continue;  // its operands may be absent
      for_each_shape(changed, [&](Shape& shape) {
        if (rank >= from)
          shape.insert(shape.begin(), rank - from, 2);
        else
          shape.erase(shape.begin(),
                      shape.begin() + static_cast<int64_t>(std::min(from - rank, shape.size())));
      });
      if (!allowed(def, changed)) continue;
      taken[rank] = true;
      added.push_back(std::move(changed));
    }
  }
  return added;
}

void for_each_variant(const std::function<void(Trial&, Variant)>& body) {
  for (const OpDef* def : all_ops()) {
    auto attempt = [&](const Sample& sample, size_t number, const std::string& suffix,
                       Variant variant) {
      Trial trial = make_trial(*def, sample, number);
      trial.name += suffix;
      try {
        body(trial, variant);
      } catch (const std::exception& e) {
        std::string message = trial.name + ": " + e.what();
        FAIL_CHECK(message);
      }
    };
    auto samples = def->samples();
    for (size_t i = 0; i < samples.size(); ++i) {
      auto all = variants(*def, samples[i]);
      for (size_t k = 0; k < all.size(); ++k)
        attempt(all[k].second, i, k > 0 ? fmt::format(" variant {}", k) : "", all[k].first);
    }
    for (const Sample& sample : samples_of_other_ranks(*def))
      attempt(sample, samples.size(), " of another rank", Variant::Reshaped);
  }
}

std::vector<ReferenceTensor> draw(const Graph& graph, const Sample& sample, uint64_t seed) {
  seed ^= hash_of(graph.name());
  uint64_t counter = 0;
  std::vector<double> taken;
  auto draw_float = [&] {
    double value = 0;
    // Few values fit between gaps: after some trials only the distance from 0 is kept.
    for (int i = 0; i < 400; ++i) {
      value = sample.low + (sample.high - sample.low) * uniform(seed, counter++);
      auto near = [&](double other) { return std::abs(value - other) < sample.gap; };
      if (sample.gap <= 0) break;
      if (near(0)) continue;
      if (i > 200 || std::none_of(taken.begin(), taken.end(), near)) break;
    }
    taken.push_back(value);
    return value;
  };
  std::vector<ReferenceTensor> inputs;
  for (Value v : graph.inputs()) {
    ReferenceTensor t{v.type(), {}};
    t.data.resize(static_cast<size_t>(v.type().elements()));
    for (Cell& cell : t.data) {
      if (is_float(v.dtype())) {
        cell.f = round_to(v.dtype(), draw_float());
      } else {
        int64_t low = v.dtype() == DType::Bool ? 0 : sample.integer_low;
        int64_t high = v.dtype() == DType::Bool ? 2 : sample.integer_high;
        double u = uniform(seed, counter++);
        cell.i = low + static_cast<int64_t>(u * static_cast<double>(high - low));
      }
    }
    inputs.push_back(std::move(t));
  }
  return inputs;
}

Value weigh(Graph& graph, const std::string& prefix) {
  Value total;
  auto outputs = graph.outputs();
  for (size_t i = 0; i < outputs.size(); ++i) {
    Value y = outputs[i].value;
    if (!is_float(y.dtype())) continue;
    Value w = graph.add_input(fmt::format("{}{}", prefix, i), {DType::F64, y.shape()});
    Value term = sum(cast(y, DType::F64) * w);
    total = total ? total + term : term;
  }
  return total;
}

void draw_weights(const Graph& graph, std::vector<ReferenceTensor>& inputs, uint64_t seed) {
  uint64_t counter = 0;
  for (size_t i = inputs.size(); i < graph.inputs().size(); ++i) {
    ReferenceTensor t{graph.inputs()[i].type(), {}};
    t.data.resize(static_cast<size_t>(t.type.elements()));
    for (Cell& cell : t.data) cell.f = 2 * uniform(seed, counter++) - 1;
    inputs.push_back(std::move(t));
  }
}

double difference(const ReferenceTensor& given, const ReferenceTensor& right, size_t& where) {
  where = 0;
  double scale = 1, worst = 0;
  bool floats = is_float(right.type.dtype);
  auto value = [floats](const Cell& c) { return floats ? c.f : static_cast<double>(c.i); };
  for (const Cell& c : right.data)
    if (double v = std::abs(value(c)); std::isfinite(v)) scale = std::max(scale, v);
  for (size_t i = 0; i < right.data.size(); ++i) {
    double a = value(given.data[i]), b = value(right.data[i]);
    double d = std::abs(a - b) / scale;
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!(d <= worst)) {
      worst = std::isnan(d) ? INFINITY : d;
      where = i;
      if (std::isinf(worst)) return worst;
    }
  }
  return worst;
}

Graph& copy_into(Module& module, const Graph& graph, const std::string& name) {
  for (Op& op : graph)
    for (const std::string& callee : callees_of(op))
      if (module.find(callee) == nullptr) copy_into(module, *graph.module().find(callee), callee);
  Graph& copy = module.add_graph(name);
  ValueMap<Value> map;
  for (Value v : graph.inputs()) map[v] = copy.add_input(v.name(), v.type());
  clone_ops(graph, copy, map);
  for (const GraphOutput& o : graph.outputs()) copy.add_output(o.name, map.at(o.value));
  return copy;
}

// Compiled for `device` with the whole pipeline.
static std::vector<std::vector<Tensor>> run_compiled(DeviceKind device, const Module& module,
                                                     std::span<const Job> jobs) {
  CompileOptions options;
  options.device = device;
  auto session = make_session(compile(module, options));
  std::vector<std::vector<Tensor>> all;
  for (const Job& job : jobs) {
    const Graph& graph = *module.find(job.graph);
    Bindings bindings;
    for (size_t i = 0; i < job.inputs.size(); ++i)
      bindings[graph.inputs()[i].name()] = job.inputs[i];
    Bindings outputs = session->run(graph.name(), bindings);
    std::vector<Tensor>& results = all.emplace_back();
    for (const GraphOutput& o : graph.outputs()) results.push_back(outputs.at(o.name));
  }
  return all;
}

const std::vector<Executor>& executors() {
  static const std::vector<Executor> list = [] {
    std::vector<Executor> all;
    all.push_back({"reference", false, [](const Module& module, std::span<const Job> jobs) {
                     std::vector<std::vector<Tensor>> results;
                     for (const Job& job : jobs)
                       results.push_back(Reference().run(*module.find(job.graph), job.inputs));
                     return results;
                   }});
    std::vector<DeviceKind> seen{DeviceKind::Reference};
    for (const DeviceEntry& entry : list_devices()) {
      DeviceKind device = entry.kind;
      if (!entry.unavailable.empty()) continue;
      if (std::find(seen.begin(), seen.end(), device) != seen.end()) continue;
      seen.push_back(device);
      all.push_back({std::string(to_string(device)), device != DeviceKind::Interpreter,
                     [device](const Module& module, std::span<const Job> jobs) {
                       return run_compiled(device, module, jobs);
                     }});
    }
    return all;
  }();
  return list;
}

}  // namespace sinter::test
