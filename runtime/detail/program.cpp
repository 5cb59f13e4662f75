#include <sinter/ir/op_def.h>
#include <sinter/passes/layout.h>
#include <sinter/runtime/detail/kernel_table.h>
#include <sinter/runtime/detail/program.h>

#include <algorithm>

namespace sinter::detail {
namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class ProgramBuilder {
 public:
  ProgramBuilder(const CompiledModule& compiled, const Graph& graph, KernelTable& kernels,
                 TemplateTable& templates)
      : compiled_(compiled),
        graph_(graph),
        views_(graph),
        kernels_(kernels),
        templates_(templates) {
    auto plan = compiled.plans.find(graph.name());
    SINTER_CHECK(plan != compiled.plans.end(), "graph @{} has no memory plan", graph.name());
    plan_ = &plan->second;
    program_.graph = &graph;
    program_.arena_bytes = plan_->arena_bytes;
  }

  Program build() {
    add_ports();
    auto update = plan_->updates.begin();
    // The copies that come after op `at`.
    auto copy_states = [&](int64_t at) {
      for (; update != plan_->updates.end() && update->after <= at; ++update)
        if (!update->in_place) copy_state(*update);
    };
    std::vector<const PlannedValue*> ending;
    for (const PlannedValue& p : plan_->values)
      if (p.where == PlannedValue::Arena) ending.push_back(&p);
    std::stable_sort(ending.begin(), ending.end(),
                     [](auto* a, auto* b) { return a->last < b->last; });
    auto end = ending.begin();
    int64_t at = 0, count = 0;
    for ([[maybe_unused]] Op& op : graph_) ++count;
    for (Op& op : graph_) {
      add_op(op);
      copy_states(at);
      for (; end != ending.end() && (*end)->last == at && at + 1 < count; ++end)
        program_.dead.push_back({program_.steps.size(), (*end)->offset, (*end)->bytes});
      ++at;
    }
    for (size_t i = 0; i < program_.outputs.size(); ++i)
      if (program_.outputs[i].state < 0)
        add_copy(place_of(graph_.outputs()[i].value), program_.outputs[i].place,
                 program_.outputs[i].type.bytes());
    for (const StateUpdate& u : plan_->updates)
      if (u.staged >= 0)
        add_copy(place_of(graph_.outputs()[u.output].value), {Space::Arena, u.staged},
                 program_.outputs[u.output].type.bytes());
    copy_states(INT64_MAX);
    return std::move(program_);
  }

 private:
  Port make_port(const std::string& name, const TensorType& type, Space own, int64_t& bytes) {
    Port port{name, type, -1, {own, bytes}};
    const auto& states = compiled_.module->states;
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].name != name) continue;
      port.state = static_cast<int>(i);
      port.place = {Space::State, compiled_.state_offsets[i]};
      return port;
    }
    bytes += aligned(type.bytes());
    return port;
  }

  void add_ports() {
    for (Value v : graph_.inputs())
      program_.inputs.push_back(make_port(v.name(), v.type(), Space::Input, program_.input_bytes));
    for (const GraphOutput& o : graph_.outputs())
      program_.outputs.push_back(
          make_port(o.name, o.value.type(), Space::Output, program_.output_bytes));
  }

  Place place_of(Value v) const {
    const PlannedValue* planned = plan_->find(v);
    SINTER_CHECK(planned != nullptr, "a value of @{} has no place in its plan", graph_.name());
    int64_t inside = 0;  // of the storage that it is a part of
    if (planned->where == PlannedValue::Alias) {
      inside = planned->offset;
      planned = &plan_->values[static_cast<size_t>(planned->index)];
    }
    auto index = static_cast<size_t>(planned->index);
    Place place{Space::Arena, planned->offset};
    if (planned->where == PlannedValue::Input) place = program_.inputs[index].place;
    if (planned->where == PlannedValue::Output || planned->where == PlannedValue::State)
      place = program_.outputs[index].place;
    place.offset += inside;
    return place;
  }

  void add_copy(Place from, Place to, int64_t bytes) {
    if (from == to || bytes == 0) return;
    program_.steps.push_back(CopyStep{from, to, bytes});
  }

  void add_gate() {
    if (gated_) return;
    gated_ = true;
    program_.steps.push_back(GateStep{});
  }
  void copy_state(const StateUpdate& update) {
    const Port& to = program_.outputs[update.output];
    if (to.type.bytes() == 0) return;
    add_gate();
    Place from = update.staged >= 0 ? Place{Space::Arena, update.staged}
                                    : place_of(graph_.outputs()[update.output].value);
    program_.steps.push_back(CopyStep{from, to.place, to.type.bytes(), true});
  }

  void add_op(const Op& op) {
    const OpDef& def = op.def();
    if (def.has_callee) return add_kernel(op);
    if (!op.native().empty()) return add_template(op);
    if (def.kind == OpKind::Contract) {
      MatmulStep step;
      step.op = &op;
      step.a = place_of(op.operand(0));
      step.b = place_of(op.operand(1));
      if (op.operand(2)) step.c = place_of(op.operand(2));
      step.d = place_of(op.result());
      if (op.result().type().elements() > 0) program_.steps.push_back(step);
      return;
    }
    if (views_.is_free(op)) return;
    // What is a view where layout is on.
    SINTER_CHECK(is_dense_view(op), "{} is left outside of kernels: run the pass fuse before",
                 op.name());
    Place from = place_of(op.operand(0));
    from.offset += view_offset(op);
    add_copy(from, place_of(op.result()), op.result().type().bytes());
  }

  void add_kernel(const Op& op) {
    if (!writes_elements(op)) return;
    bool writes_state = false;
    for (size_t i = 0; i < op.num_results(); ++i)
      writes_state = writes_state || place_of(op.result(i)).space == Space::State;
    if (writes_state) add_gate();
    const KernelTable::Entry& entry = kernels_.of(op, writes_state);
    SINTER_CHECK(!gated_ || entry.faults.empty(), "{} checks indices behind the gate", op.name());
    KernelStep step;
    step.writes_state = writes_state;
    step.kernel = entry.index;
    step.op = &op;
    step.sites = entry.sites;
    for (Value v : op.operands()) step.buffers.push_back(place_of(v));
    for (size_t i = 0; i < op.num_results(); ++i) step.buffers.push_back(place_of(op.result(i)));
    step.first_fault = static_cast<int>(program_.faults.size());
    for (KernelFault fault : entry.faults) {
      fault.loc = place_of_fault(op, fault.op);
      program_.faults.push_back(std::move(fault));
    }
    program_.steps.push_back(std::move(step));
  }

  void add_template(const Op& op) {
    TemplateStep step;
    step.op = &op;
    for (Value v : op.operands()) step.operands.push_back(v ? place_of(v) : Place{});
    for (size_t i = 0; i < op.num_results(); ++i) step.results.push_back(place_of(op.result(i)));
    if (const PlannedScratch* scratch = plan_->find_scratch(op))
      step.scratch = {Space::Arena, scratch->offset};
    TemplateCall call = dense_call(op, compiled_.module->target);
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const StridedView* view = op.operand(i) ? views_.find(op.operand(i)) : nullptr;
      if (view != nullptr) call.operands[i]->strides = view->strides;
      step.operand_strides.push_back(call.operands[i] ? call.operands[i]->strides
                                                      : std::vector<int64_t>{});
    }
    for (size_t i = 0; i < call.results.size(); ++i) {
      const StridedView* view = views_.find(op.result(i));
      if (view != nullptr) call.results[i].strides = view->strides;
      step.result_strides.push_back(call.results[i].strides);
    }
    for (TemplateAction& action : template_actions(call)) {
      if (auto* fill = std::get_if<TemplateFill>(&action)) {
        step.actions.emplace_back(*fill);
        continue;
      }
      auto& launch = std::get<TemplateLaunch>(action);
      if (launch.grid == 0) continue;
      step.actions.emplace_back(TemplateStep::Launch{templates_.intern(std::move(launch.kernel)),
                                                     launch.grid, std::move(launch.arguments)});
    }
    program_.steps.emplace_back(std::move(step));
  }

  // Of the lines that a fusion was made from, the one with an op of this name.
  SourceLocation place_of_fault(const Op& op, const std::string& name) const {
    auto known = compiled_.places.find(name);
    if (known == compiled_.places.end()) return op.loc();
    auto made_it = [&](const SourceLocation& loc) {
      return std::find(known->second.begin(), known->second.end(), loc) != known->second.end();
    };
    if (made_it(op.loc())) return op.loc();
    auto found = std::find_if(op.with().begin(), op.with().end(), made_it);
    return found != op.with().end() ? *found : op.loc();
  }

  const CompiledModule& compiled_;
  const Graph& graph_;
  Views views_;
  KernelTable& kernels_;
  TemplateTable& templates_;
  const MemoryPlan* plan_ = nullptr;
  bool gated_ = false;
  Program program_;
};

}  // namespace

Place TemplateStep::place(const TemplatePointer& pointer) const {
  Place place = pointer.of == TemplatePointer::Operand  ? operands[pointer.index]
                : pointer.of == TemplatePointer::Result ? results[pointer.index]
                                                        : scratch;
  place.offset += pointer.offset;
  return place;
}

const Port* Program::find_input(std::string_view name) const {
  for (const Port& port : inputs)
    if (port.name == name) return &port;
  return nullptr;
}

void build_programs(CompiledModule& compiled) {
  compiled.state_bytes = 0;
  for (const State& state : compiled.module->states) {
    compiled.state_offsets.push_back(compiled.state_bytes);
    compiled.state_bytes += aligned(state.type.bytes());
  }
  KernelTable kernels(*compiled.module, compiled.kernels);
  TemplateTable templates(compiled.templates);
  for (const Graph* graph : entry_graphs(*compiled.module)) {
    Program program = ProgramBuilder(compiled, *graph, kernels, templates).build();
    compiled.arena_bytes = std::max(compiled.arena_bytes, program.arena_bytes);
    program.first_fault = compiled.num_faults;
    compiled.num_faults += static_cast<int>(program.faults.size());
    compiled.programs.emplace(graph->name(), std::move(program));
  }
}

std::unique_ptr<Diagnostic> first_fault(const Program& program, const FaultSlot* record) {
  const FaultSlot* slots = record + program.first_fault;
  for (size_t i = 0; i < program.faults.size(); ++i) {
    if (slots[i].position == kNoFault.position) continue;
    const KernelFault& fault = program.faults[i];
    std::string message =
        fmt::format("{} {} at {} {} is outside {}..{}", fault.what, slots[i].value, fault.place,
                    slots[i].position, fault.low, fault.high - 1);
    return std::make_unique<Diagnostic>(Diagnostic{fault.loc, std::move(message)});
  }
  return nullptr;
}

}  // namespace sinter::detail
