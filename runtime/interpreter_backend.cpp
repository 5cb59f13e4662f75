// Scheduled loops, lane by lane, with their checks; products and kernel templates by the
// reference.

#include <sinter/runtime/detail/host_memory.h>
#include <sinter/runtime/reference.h>

#include <cstring>
#include <unordered_map>

namespace sinter::detail {
namespace {

// One op as a graph of its own.
ReferenceProgram program_of(const Op& op) {
  Module module;
  Graph& graph = module.add_graph("op");
  std::vector<Value> operands;
  for (size_t i = 0; i < op.operands().size(); ++i) {
    Value v = op.operand(i);
    operands.push_back(v ? graph.add_input(fmt::format("x{}", i), v.type()) : Value());
  }
  Op& copy = clone_op(op, graph, std::move(operands));
  for (size_t i = 0; i < copy.num_results(); ++i)
    graph.add_output(fmt::format("y{}", i), copy.result(i));
  return ReferenceProgram(graph);
}

// What no loops are made for: products and kernel templates.
using Opaque = std::unordered_map<const Op*, ReferenceProgram>;

// Calls `visit` with the row-major index of each element and its place by strides.
template <typename F>
void each_element(const TensorType& type, const std::vector<int64_t>& strides, F visit) {
  std::vector<int64_t> index(type.shape.size());
  int64_t there = 0;
  for (int64_t at = 0; at < type.elements(); ++at) {
    visit(at, there);
    for (size_t axis = index.size(); axis-- > 0;) {
      there += strides[axis];
      if (++index[axis] < type.shape[axis]) break;
      there -= strides[axis] * type.shape[axis];
      index[axis] = 0;
    }
  }
}
void copy_element(DType type, void* to, int64_t there, const void* from, int64_t at) {
  auto size = static_cast<int64_t>(size_of(type));
  std::memcpy(static_cast<unsigned char*>(to) + there * size,
              static_cast<const unsigned char*>(from) + at * size, static_cast<size_t>(size));
}
Tensor gathered(const TensorType& type, const std::vector<int64_t>& strides, const void* from) {
  Tensor dense = Tensor::uninitialized(type);
  each_element(type, strides, [&](int64_t at, int64_t there) {
    copy_element(type.dtype, dense.data(), at, from, there);
  });
  return dense;
}

class InterpreterMemory final : public HostMemory {
 public:
  InterpreterMemory(const CompiledModule& compiled, const Opaque& opaque)
      : HostMemory(compiled), opaque_(opaque) {}

 protected:
  // NaN as a float: a kernel that reads what this run has not written, or what is dead, shows it.
  void forget(unsigned char* arena, int64_t bytes) override {
    if (bytes > 0) std::memset(arena, 0xff, static_cast<size_t>(bytes));
  }
  void run_kernel(const KernelStep& step, const LoopProgram& kernel, std::span<void* const> buffers,
                  std::span<FaultSlot> faults) override {
    if (kernel.grid > 0) interpret(kernel, buffers, faults, step.sites);
  }
  void run_matmul(const MatmulStep& step, const void* a, const void* b, const void* c,
                  void* d) override {
    const void* operands[] = {a, b, c};
    run_op(*step.op, operands, {&d, 1});
  }
  void run_template(const TemplateStep& step, std::span<const void* const> operands,
                    std::span<void* const> results) override {
    // The reference knows dense tensors alone.
    const Op& op = *step.op;
    std::vector<Tensor> read, made;
    std::vector<const void*> from;
    std::vector<void*> to;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i] != nullptr)
        read.push_back(gathered(op.operand(i).type(), step.operand_strides[i], operands[i]));
      from.push_back(operands[i] != nullptr ? read.back().data() : nullptr);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      made.push_back(Tensor::uninitialized(op.result(i).type()));
      to.push_back(made.back().data());
    }
    run_op(op, from, to);
    for (size_t i = 0; i < results.size(); ++i)
      each_element(made[i].type(), step.result_strides[i], [&](int64_t at, int64_t there) {
        copy_element(made[i].type().dtype, results[i], there, made[i].data(), at);
      });
  }

 private:
  void run_op(const Op& op, std::span<const void* const> operands,
              std::span<void* const> results) const {
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < op.operands().size(); ++i)
      if (Value v = op.operand(i)) inputs.push_back(Tensor::from_bytes(v.type(), operands[i]));
    std::vector<Tensor> outputs = opaque_.at(&op).run(inputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      std::memcpy(results[i], outputs[i].data(), static_cast<size_t>(outputs[i].bytes()));
  }

  const Opaque& opaque_;
};

class InterpreterBackend final : public Backend {
 public:
  explicit InterpreterBackend(const CompiledModule& compiled) : compiled_(compiled) {
    for (const auto& [name, program] : compiled.programs)
      for (const Step& step : program.steps) {
        if (auto* matmul = std::get_if<MatmulStep>(&step))
          opaque_.emplace(matmul->op, program_of(*matmul->op));
        if (auto* native = std::get_if<TemplateStep>(&step))
          opaque_.emplace(native->op, program_of(*native->op));
      }
  }
  std::unique_ptr<DeviceMemory> make_memory() const override {
    return std::make_unique<InterpreterMemory>(compiled_, opaque_);
  }
  std::string describe() const override { return "products and kernel templates by the reference"; }

 private:
  const CompiledModule& compiled_;
  Opaque opaque_;
};

}  // namespace

std::unique_ptr<Backend> make_interpreter_backend(const BuildContext& context) {
  const auto& kernels = context.compiled.kernels;
  for (size_t i = 0; i < kernels.size(); ++i)
    dump_kernel(context, static_cast<int>(i), print(kernels[i]), "loops");
  return std::make_unique<InterpreterBackend>(context.compiled);
}

}  // namespace sinter::detail
