// Scheduled loops, lane by lane, with their checks; products by the reference.

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
  graph.add_output("y", copy.result());
  return ReferenceProgram(graph);
}

using Products = std::unordered_map<const Op*, ReferenceProgram>;

class InterpreterMemory final : public HostMemory {
 public:
  InterpreterMemory(const CompiledModule& compiled, const Products& products)
      : HostMemory(compiled), products_(products) {}

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
    std::vector<Tensor> inputs{Tensor::from_bytes(step.op->operand(0).type(), a),
                               Tensor::from_bytes(step.op->operand(1).type(), b)};
    if (c != nullptr) inputs.push_back(Tensor::from_bytes(step.op->operand(2).type(), c));
    std::vector<Tensor> outputs = products_.at(step.op).run(inputs);
    std::memcpy(d, outputs[0].data(), static_cast<size_t>(outputs[0].bytes()));
  }

 private:
  const Products& products_;
};

class InterpreterBackend final : public Backend {
 public:
  explicit InterpreterBackend(const CompiledModule& compiled) : compiled_(compiled) {
    for (const auto& [name, program] : compiled.programs)
      for (const Step& step : program.steps)
        if (auto* matmul = std::get_if<MatmulStep>(&step))
          products_.emplace(matmul->op, program_of(*matmul->op));
  }
  std::unique_ptr<DeviceMemory> make_memory() const override {
    return std::make_unique<InterpreterMemory>(compiled_, products_);
  }
  std::string describe() const override { return "products by the reference"; }

 private:
  const CompiledModule& compiled_;
  Products products_;
};

}  // namespace

std::unique_ptr<Backend> make_interpreter_backend(const BuildContext& context) {
  const auto& kernels = context.compiled.kernels;
  for (size_t i = 0; i < kernels.size(); ++i)
    dump_kernel(context, static_cast<int>(i), print(kernels[i]), "loops");
  return std::make_unique<InterpreterBackend>(context.compiled);
}

}  // namespace sinter::detail
