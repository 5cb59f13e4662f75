#include <sinter/ir/numeric.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/passes/detail/util.h>
#include <sinter/runtime/gemm.h>
#include <sinter/runtime/reference.h>

#include <algorithm>

namespace sinter {
namespace {

// Below this many multiplications a product is left to the op's own evaluation.
constexpr int64_t kGemmWork = 32768;

DType running_type(DType type, bool f64) {
  return f64 && is_float(type) ? DType::F64 : type;
}

// An element's function with every float type as f64: casts between floats become identities, and
// literals, held unrounded, stay so.
ScalarFn in_f64(ScalarFn fn) {
  for (DType& type : fn.params) type = running_type(type, true);
  for (ExprNode& node : fn.nodes) node.type = running_type(node.type, true);
  return fn;
}

std::vector<Value> inline_callee(Graph& graph, const Op& op) {
  const Graph* callee = graph.module().find(op.callee());
  SINTER_CHECK(callee != nullptr, "{} calls @{}, which does not exist", op.name(), op.callee());
  ValueMap<Value> map;
  for (size_t i = 0; i < callee->inputs().size(); ++i) map[callee->inputs()[i]] = op.operand(i);
  clone_ops(*callee, graph, map);
  std::vector<Value> results;
  for (const GraphOutput& output : callee->outputs()) results.push_back(map.at(output.value));
  return results;
}

void require_input(const Tensor& given, Value input, bool f64) {
  TensorType expected = input.type();
  if (f64 && is_float(expected.dtype) && given.dtype() == DType::F64) expected.dtype = DType::F64;
  require_type(fmt::format("input '{}'", input.name()), expected, given.type());
}

}  // namespace

void expand_all(Graph& graph) {
  for (Op* op = graph.front(); op != nullptr;) {
    const OpDef& def = op->def();
    bool calls = def.has_callee && def.kind == OpKind::Opaque;
    if (!def.expand && !calls) {
      op = op->next();
      continue;
    }
    Op* before = op->prev();
    std::vector<Value> values;
    {
      InsertionScope scope(graph, op, *op, op->from());
      values = calls ? inline_callee(graph, *op) : def.expand(graph, *op);
    }
    SINTER_CHECK(values.size() == op->num_results(), "{} has {} results, its expansion {}",
                 op->name(), op->num_results(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      SINTER_CHECK(values[i].type() == op->result(i).type(),
                   "result {} of {} is {}, that of its expansion {}", i, op->name(),
                   op->result(i).type().str(), values[i].type().str());
      op->result(i).replace_all_uses_with(values[i]);
    }
    graph.erase(*op);
    op = before != nullptr ? before->next() : graph.front();
  }
}

ReferenceTensor to_cells(const Tensor& tensor, DType type) {
  ReferenceTensor cells{{type, tensor.shape()}, {}};
  cells.data.resize(static_cast<size_t>(tensor.size()));
  bool from_float = is_float(tensor.dtype());
  for (size_t i = 0; i < cells.data.size(); ++i) {
    auto at = static_cast<int64_t>(i);
    Cell cell{};
    if (from_float)
      cell.f = load_as_double(tensor.dtype(), tensor.data(), at);
    else
      cell.i = load_as_int64(tensor.dtype(), tensor.data(), at);
    cells.data[i] = convert(cell, tensor.dtype(), type);
  }
  return cells;
}

Tensor from_cells(const ReferenceTensor& cells) {
  Tensor tensor = Tensor::uninitialized(cells.type);
  bool floats = is_float(cells.type.dtype);
  for (size_t i = 0; i < cells.data.size(); ++i) {
    auto at = static_cast<int64_t>(i);
    if (floats)
      store_from_double(cells.type.dtype, tensor.data(), at, cells.data[i].f);
    else
      store_from_int64(cells.type.dtype, tensor.data(), at, cells.data[i].i);
  }
  return tensor;
}

struct ReferenceProgram::Impl {
  struct Step {
    const Op* op = nullptr;
    std::vector<int> operands;  // slots; -1: absent
    std::vector<int> results;
    std::vector<int> last_read;  // slots that nothing reads afterwards
    ScalarFn fn;                 // pointwise
  };

  bool f64 = false;
  std::unique_ptr<Module> module;
  const Graph* graph = nullptr;
  std::vector<Step> steps;
  std::vector<int> outputs;
  size_t slots = 0;

  void prepare();
  void execute(const Step& step, std::vector<ReferenceTensor>& values) const;
  bool run_gemm(const Step& step, std::vector<ReferenceTensor>& values) const;
};

void ReferenceProgram::Impl::prepare() {
  // Ops whose results nothing needs are left out, but for checks; users come after their operands.
  std::vector<const Op*> needed;
  ValueMap<bool> used;
  for (const GraphOutput& output : graph->outputs()) used[output.value] = true;
  for (const Op* op = graph->back(); op != nullptr; op = op->prev()) {
    bool any = detail::is_check(*op);
    for (size_t i = 0; i < op->num_results(); ++i) any = any || used.contains(op->result(i));
    if (!any) continue;
    needed.push_back(op);
    for (Value v : op->operands())
      if (v) used[v] = true;
  }
  std::reverse(needed.begin(), needed.end());

  ValueMap<int> slot;
  auto add_slot = [&](Value v) { return slot.emplace(v, static_cast<int>(slots++)).first->second; };
  for (Value v : graph->inputs()) add_slot(v);
  for (const Op* op : needed) {
    Step step;
    step.op = op;
    for (Value v : op->operands()) step.operands.push_back(v ? slot.at(v) : -1);
    for (size_t i = 0; i < op->num_results(); ++i) step.results.push_back(add_slot(op->result(i)));
    const OpDef& def = op->def();
    if (def.kind == OpKind::Pointwise && def.scalar) {
      std::vector<DType> types;
      for (Value v : op->operands()) types.push_back(v.dtype());
      step.fn = def.scalar(types, op->raw_attrs().get());
      if (f64) step.fn = in_f64(std::move(step.fn));
    }
    steps.push_back(std::move(step));
  }
  for (const GraphOutput& output : graph->outputs()) outputs.push_back(slot.at(output.value));

  std::vector<bool> seen(slots, false);
  for (int s : outputs) seen[static_cast<size_t>(s)] = true;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    auto visit = [&](int s) {
      if (s < 0 || seen[static_cast<size_t>(s)]) return;
      seen[static_cast<size_t>(s)] = true;
      step->last_read.push_back(s);
    };
    for (int s : step->operands) visit(s);
    for (int s : step->results) visit(s);  // a result that nothing reads
  }
}

bool ReferenceProgram::Impl::run_gemm(const Step& step,
                                      std::vector<ReferenceTensor>& values) const {
  MatmulSizes s = matmul_sizes(*step.op);
  if (s.batch * s.m * s.n * s.k < kGemmWork) return false;
  const auto& attrs = step.op->attrs<MatmulAttrs>();
  auto cells = [&](size_t i) { return values[static_cast<size_t>(step.operands[i])].data.data(); };
  ReferenceTensor& y = values[static_cast<size_t>(step.results[0])];
  // Cells of floats are doubles, so the product reads and writes them in place.
  Gemm g = dense_gemm(s.batch, s.m, s.n, s.k, DType::F64, cells(0), attrs.transpose_a, cells(1),
                      attrs.transpose_b, y.data.data());
  // The f64 reference rounds nothing; cells of a narrow type are round already.
  DType compute = matmul_compute(*step.op);
  if (compute == step.op->operand(0).dtype()) compute = compute_type(compute);
  g.compute = f64 ? DType::F64 : compute;
  std::vector<Cell> bias;
  if (step.operands.size() > 2 && step.operands[2] >= 0) {
    g.d = {cells(2), DType::F64, s.n, s.m * s.n, false};
    if (step.op->operand(2).rank() == 1) {
      bias = values[static_cast<size_t>(step.operands[2])].data;
      for (Cell& cell : bias) cell = canonical(y.type.dtype, cell);
      g.d = {bias.data(), DType::F64, 0, 0, false};
    }
  }
  gemm(g);
  for (Cell& cell : y.data) cell = canonical(y.type.dtype, cell);
  return true;
}

void ReferenceProgram::Impl::execute(const Step& step, std::vector<ReferenceTensor>& values) const {
  const Op& op = *step.op;
  const OpDef& def = op.def();
  for (size_t i = 0; i < step.results.size(); ++i) {
    TensorType type = op.result(i).type();
    type.dtype = running_type(type.dtype, f64);
    auto count = static_cast<size_t>(type.elements());
    values[static_cast<size_t>(step.results[i])] = {std::move(type), std::vector<Cell>(count)};
  }
  if (!step.fn.results.empty()) {
    std::vector<const Cell*> args;
    for (int s : step.operands) args.push_back(values[static_cast<size_t>(s)].data.data());
    ReferenceTensor& y = values[static_cast<size_t>(step.results[0])];
    Cell* out = y.data.data();
    evaluate(step.fn, static_cast<int64_t>(y.data.size()), args, {&out, 1});
    return;
  }
  if (def.kind == OpKind::Contract && run_gemm(step, values)) return;

  std::vector<const ReferenceTensor*> operands;
  for (int s : step.operands) operands.push_back(s < 0 ? nullptr : &values[static_cast<size_t>(s)]);
  std::vector<ReferenceTensor> results;
  for (int s : step.results) results.push_back(std::move(values[static_cast<size_t>(s)]));
  EvaluateContext context{
      op, operands, results, [&](int64_t position, int64_t value, int64_t low, int64_t high) {
        throw Error(Diagnostic{op.loc(), bad_index_message(op, position, value, low, high)});
      }};
  SINTER_CHECK(def.evaluate, "{} has neither an expansion nor an evaluation", op.name());
  def.evaluate(context);
  for (size_t i = 0; i < results.size(); ++i)
    values[static_cast<size_t>(step.results[i])] = std::move(results[i]);
}

ReferenceProgram::ReferenceProgram(const Graph& graph, ReferenceOptions options)
    : impl_(std::make_unique<Impl>()) {
  impl_->f64 = options.f64;
  impl_->module = graph.module().clone();
  Graph* copy = impl_->module->find(graph.name());
  SINTER_CHECK(copy != nullptr, "@{} is not a graph of its module", graph.name());
  expand_all(*copy);
  impl_->graph = copy;
  impl_->prepare();
}

ReferenceProgram::~ReferenceProgram() = default;
ReferenceProgram::ReferenceProgram(ReferenceProgram&&) noexcept = default;
ReferenceProgram& ReferenceProgram::operator=(ReferenceProgram&&) noexcept = default;

std::vector<ReferenceTensor> ReferenceProgram::run_cells(
    std::span<const ReferenceTensor> inputs) const {
  const auto& declared = impl_->graph->inputs();
  if (inputs.size() != declared.size())
    throw Error(fmt::format("@{} takes {} inputs, got {}", impl_->graph->name(), declared.size(),
                            inputs.size()));
  std::vector<ReferenceTensor> values(impl_->slots);
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorType expected = declared[i].type(), given = inputs[i].type;
    if (impl_->f64 && is_float(expected.dtype) && is_float(given.dtype))
      expected.dtype = given.dtype;
    require_type(fmt::format("input '{}'", declared[i].name()), expected, given);
    values[i] = inputs[i];
    values[i].type.dtype = running_type(expected.dtype, impl_->f64);
  }
  for (const Impl::Step& step : impl_->steps) {
    impl_->execute(step, values);
    for (int s : step.last_read) values[static_cast<size_t>(s)] = {};
  }
  std::vector<ReferenceTensor> outputs;
  for (int s : impl_->outputs) outputs.push_back(values[static_cast<size_t>(s)]);
  return outputs;
}

std::vector<Tensor> ReferenceProgram::run(std::span<const Tensor> inputs) const {
  const auto& declared = impl_->graph->inputs();
  std::vector<ReferenceTensor> cells;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& given = inputs[i];
    if (i < declared.size()) require_input(given, declared[i], impl_->f64);
    cells.push_back(to_cells(given, running_type(given.dtype(), impl_->f64)));
  }
  std::vector<Tensor> outputs;
  for (const ReferenceTensor& y : run_cells(cells)) outputs.push_back(from_cells(y));
  return outputs;
}

}  // namespace sinter
