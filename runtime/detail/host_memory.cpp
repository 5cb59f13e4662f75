#include <sinter/runtime/detail/host_memory.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace sinter::detail {

void HostBlock::Free::operator()(unsigned char* p) const {
  std::free(p);
}

HostBlock::HostBlock(int64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  size_t rounded = (static_cast<size_t>(bytes) + 255) / 256 * 256;
  data_.reset(static_cast<unsigned char*>(std::aligned_alloc(256, rounded)));
  if (!data_) throw std::bad_alloc();
  std::memset(data_.get(), 0, rounded);
}

HostMemory::HostMemory(const CompiledModule& compiled)
    : compiled_(compiled),
      arena_(compiled.arena_bytes),
      state_(compiled.state_bytes),
      faults_(static_cast<size_t>(compiled.num_faults), kNoFault) {}

HostMemory::~HostMemory() = default;

void HostMemory::forget(unsigned char*, int64_t) {}

void HostMemory::run_template(const TemplateStep& step, std::span<const void* const>,
                              std::span<void* const>) {
  SINTER_CHECK(false, "the host has no kernel template for {}", step.op->name());
}

HostMemory::Blocks& HostMemory::blocks_of(const Program& program) {
  auto found = blocks_.find(&program);
  if (found != blocks_.end()) return found->second;
  Blocks blocks;
  blocks.inputs = HostBlock(program.input_bytes);
  blocks.outputs = HostBlock(program.output_bytes);
  return blocks_.emplace(&program, std::move(blocks)).first->second;
}

void HostMemory::write_input(const Program& program, const Port& port, const void* data) {
  if (port.type.bytes() == 0) return;
  std::memcpy(blocks_of(program).inputs.data() + port.place.offset, data,
              static_cast<size_t>(port.type.bytes()));
}

bool HostMemory::faulted() const {
  return std::any_of(faults_.begin(), faults_.end(),
                     [](const FaultSlot& slot) { return slot.position != kNoFault.position; });
}

void HostMemory::launch(const Program& program) {
  Blocks& blocks = blocks_of(program);
  if (faulted()) return;
  forget(arena_.data(), arena_.size());
  unsigned char* bases[kSpaces] = {arena_.data(), state_.data(), blocks.inputs.data(),
                                   blocks.outputs.data()};
  auto at = [&](const Place& place) -> void* {
    unsigned char* base = bases[static_cast<size_t>(place.space)];
    return base == nullptr ? nullptr : base + place.offset;
  };
  size_t done = 0;
  auto dead = program.dead.begin();
  for (const Step& step : program.steps) {
    for (; dead != program.dead.end() && dead->steps <= done; ++dead)
      forget(arena_.data() + dead->offset, dead->bytes);
    ++done;
    if (auto* kernel = std::get_if<KernelStep>(&step)) {
      const LoopProgram& loops = compiled_.kernels[static_cast<size_t>(kernel->kernel)];
      pointers_.clear();
      for (const Place& place : kernel->buffers) pointers_.push_back(at(place));
      std::span<FaultSlot> faults(faults_);
      run_kernel(*kernel, loops, pointers_,
                 faults.subspan(static_cast<size_t>(program.first_fault + kernel->first_fault),
                                loops.faults.size()));
    } else if (auto* matmul = std::get_if<MatmulStep>(&step)) {
      run_matmul(*matmul, at(matmul->a), at(matmul->b), matmul->c ? at(*matmul->c) : nullptr,
                 at(matmul->d));
    } else if (auto* native = std::get_if<TemplateStep>(&step)) {
      std::vector<const void*> operands;
      std::vector<void*> results;
      for (size_t i = 0; i < native->operands.size(); ++i)
        operands.push_back(native->op->operand(i) ? at(native->operands[i]) : nullptr);
      for (const Place& place : native->results) results.push_back(at(place));
      run_template(*native, operands, results);
    } else if (auto* copy = std::get_if<CopyStep>(&step)) {
      std::memcpy(at(copy->to), at(copy->from), static_cast<size_t>(copy->bytes));
    } else if (faulted()) {
      return;  // at the gate; nobody will see what else this run gives
    }
  }
}

DeviceMemory::Results HostMemory::results(const Program& program) {
  Blocks& blocks = blocks_of(program);
  return {blocks.outputs.data(), faults_.data()};
}

void HostMemory::clear_faults() {
  std::fill(faults_.begin(), faults_.end(), kNoFault);
}

void HostMemory::read_state(int64_t offset, int64_t bytes, void* data) {
  if (bytes > 0) std::memcpy(data, state_.data() + offset, static_cast<size_t>(bytes));
}

void HostMemory::write_state(int64_t offset, int64_t bytes, const void* data) {
  if (bytes > 0) std::memcpy(state_.data() + offset, data, static_cast<size_t>(bytes));
}

}  // namespace sinter::detail
