#pragma once
// Device memory that is the host's: what the interpreter and the CPU backend share.

#include <sinter/runtime/detail/backend.h>

namespace sinter::detail {

// A block of host bytes, aligned to 256 and zeroed.
class HostBlock {
 public:
  HostBlock() = default;
  explicit HostBlock(int64_t bytes);
  unsigned char* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(unsigned char* p) const;
  };
  std::unique_ptr<unsigned char[], Free> data_;
  int64_t size_ = 0;
};

class HostMemory : public DeviceMemory {
 public:
  explicit HostMemory(const CompiledModule& compiled);
  ~HostMemory() override;
  void write_input(const Program& program, const Port& port, const void* data) override;
  void launch(const Program& program) override;
  void synchronize() override {}
  Results results(const Program& program) override;
  void clear_faults() override;
  void read_state(int64_t offset, int64_t bytes, void* data) override;
  void write_state(int64_t offset, int64_t bytes, const void* data) override;

 protected:
  virtual void run_kernel(const KernelStep& step, const LoopProgram& kernel,
                          std::span<void* const> buffers, std::span<FaultSlot> faults) = 0;
  // a, b, d; c may be null.
  virtual void run_matmul(const MatmulStep& step, const void* a, const void* b, const void* c,
                          void* d) = 0;
  // Operands (null where absent) and results. Only targets that have kernel templates meet one.
  virtual void run_template(const TemplateStep& step, std::span<const void* const> operands,
                            std::span<void* const> results);
  // Called before a run, and for each value that nobody reads any more; the interpreter makes stale
  // values conspicuous here.
  virtual void forget(unsigned char* arena, int64_t bytes);

 private:
  struct Blocks {
    HostBlock inputs, outputs;
  };
  Blocks& blocks_of(const Program& program);
  bool faulted() const;

  const CompiledModule& compiled_;
  HostBlock arena_, state_;
  std::map<const Program*, Blocks> blocks_;
  std::vector<FaultSlot> faults_;  // of all programs
  std::vector<void*> pointers_;
};

}  // namespace sinter::detail
