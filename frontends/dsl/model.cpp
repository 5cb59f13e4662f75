#include <sinter/frontends/dsl/model.h>
#include <sinter/ir/ops.h>

#include <algorithm>
#include <cmath>

namespace sinter {
namespace {

constexpr std::string_view kInit = "init";

[[noreturn]] void fail(SourceLocation loc, std::string message) {
  throw Error(Diagnostic{std::move(loc), std::move(message)});
}

// Names appear in texts and in files.
void check_name(std::string_view what, std::string_view name, const SourceLocation& loc) {
  auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), fits))
    fail(loc, fmt::format("{} name '{}' must be letters, digits, '_', '.' and '-'", what, name));
}

}  // namespace

namespace init {

Initializer constant(double value) {
  return [value](const Scope& init, const TensorType& type, SourceLocation loc) {
    return full(init.graph(), type, value, std::move(loc));
  };
}
Initializer zeros() {
  return constant(0);
}
Initializer ones() {
  return constant(1);
}
Initializer normal(double deviation, double mean) {
  return [=](const Scope& init, const TensorType& type, SourceLocation loc) {
    Value unit = random_normal(init.seed(), init.step(), init.offset(), type, loc);
    InsertionScope place(init.graph(), nullptr, *unit.op(), {});
    Value scaled = unit * deviation;
    return mean == 0 ? scaled : scaled + mean;
  };
}
Initializer uniform(double low, double high) {
  return [=](const Scope& init, const TensorType& type, SourceLocation loc) {
    Value unit = random_uniform(init.seed(), init.step(), init.offset(), type, loc);
    InsertionScope place(init.graph(), nullptr, *unit.op(), {});
    return unit * (high - low) + low;
  };
}
Initializer xavier() {
  return [](const Scope& init, const TensorType& type, SourceLocation loc) {
    if (type.rank() != 2)
      fail(loc, fmt::format("init::xavier is for weights [inputs, outputs], not {}", type.str()));
    double limit = std::sqrt(6.0 / static_cast<double>(type.shape[0] + type.shape[1]));
    return uniform(-limit, limit)(init, type, std::move(loc));
  };
}

}  // namespace init

Scope Scope::operator/(std::string_view name) const {
  Scope inner = *this;
  inner.prefix_ += fmt::format("{}.", name);
  return inner;
}

std::string Scope::name() const {
  return prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1);
}

Scope Scope::operator/(int64_t number) const {
  return *this / std::string_view(std::to_string(number));
}

Value Scope::input(std::string_view name, const TensorType& type, SourceLocation loc) const {
  check_name("input", name, loc);
  if (model_->is_parameter(name))
    fail(loc, fmt::format("input '{}' is named like a parameter", name));
  if (Value v = graph_->find_input(name)) {
    if (v.type() != type)
      fail(loc, fmt::format("input '{}' of graph @{} is {} already, not {}", name, graph_->name(),
                            v.type().str(), type.str()));
    return v;
  }
  return graph_->add_input(std::string(name), type);
}

Value Scope::parameter(std::string_view name, Shape shape, const Initializer& initializer,
                       SourceLocation loc) const {
  std::string full_name = prefix_ + std::string(name);
  check_name("parameter", full_name, loc);
  TensorType type = f32(std::move(shape));
  Module& module = model_->module_;
  if (const State* state = module.find_state(full_name)) {
    if (!model_->is_parameter(full_name))
      fail(loc, fmt::format("parameter '{}' is named like another state", full_name));
    if (state->type != type)
      fail(loc, fmt::format("parameter '{}' is {} already, not {}", full_name, state->type.str(),
                            type.str()));
    if (Value v = graph_->find_input(full_name)) return v;
  } else {
    for (const auto& g : module.graphs())
      if (g->find_input(full_name))
        fail(loc, fmt::format("parameter '{}' is named like an input of graph @{}", full_name,
                              g->name()));
    Scope init(*model_, *module.find(kInit), Mode::Inference);
    Value first = initializer(init, type, loc);
    if (!first || &first.graph() != &init.graph() || first.type() != type)
      fail(loc, fmt::format("the initializer of parameter '{}' must give {} in graph @init",
                            full_name, type.str()));
    module.states.push_back({full_name, type});
    model_->parameters_.push_back(full_name);
    init.output(full_name, first);
  }
  return graph_->add_input(full_name, type);
}

void Scope::output(std::string name, Value value) const {
  graph_->add_output(std::move(name), value);
}

Value Scope::seed() const {
  return input("seed", {DType::U32, {2}});
}
Value Scope::step() const {
  return input("step", {DType::U32, {}});
}
Value Scope::offset() const {
  return input("offset", {DType::I64, {}});
}

Scope::Stream Scope::stream(const TensorType& type, SourceLocation loc) const {
  Stream s;
  s.seed = seed();
  s.step = step();
  s.offset = offset();
  if (mode_ != Mode::TrainingPart) return s;
  // The caller's place, as for the op itself.
  Operand parts{s.offset, loc.file ? loc.file->c_str() : "", loc.line};
  s.offset = parts * static_cast<double>(type.elements());
  return s;
}

Value Scope::dropout(Value x, double p, SourceLocation loc) const {
  if (!training() || p == 0) return x;
  Stream s = stream(x.type(), loc);
  return sinter::dropout(x, s.seed, s.step, s.offset, p, std::move(loc));
}

std::vector<Value> Scope::parameters() const {
  std::vector<Value> found;
  for (Value v : graph_->inputs())
    if (model_->is_parameter(v.name())) found.push_back(v);
  return found;
}

Model::Model() {
  Scope init(*this, module_.add_graph(std::string(kInit)), Mode::Inference);
  init.seed();
  init.step();
  init.offset();
}

Scope Model::graph(std::string name, Mode mode) {
  if (module_.find(name) != nullptr) throw Error(fmt::format("there is a graph @{} already", name));
  return {*this, module_.add_graph(std::move(name)), mode};
}

bool Model::is_parameter(std::string_view name) const {
  return std::find(parameters_.begin(), parameters_.end(), name) != parameters_.end();
}

void recompute_within(const Scope& scope, int64_t bytes) {
  scope.graph().attributes["recompute_budget"] = bytes;
}

int64_t recompute_group(int64_t blocks) {
  return static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(blocks))));
}

RecomputeScope::RecomputeScope(const Scope& scope, std::string name)
    : graph_(scope.graph()), saved_(graph_.current_segment()) {
  graph_.set_current_segment(std::move(name));
}

RecomputeScope::~RecomputeScope() {
  graph_.set_current_segment(saved_);
}

}  // namespace sinter
