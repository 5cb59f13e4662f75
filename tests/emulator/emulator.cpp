#include <sinter/tests/emulator/emulator.h>

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#define SINTER_EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SINTER_EMULATOR_ASAN 1
#endif
#endif
#ifdef SINTER_EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee's registers on the running stack, leaves its top in *from, and goes on where the
// stack `to` was left. libc's ways either ask the kernel about signals or may refuse another stack.
extern "C" void sinter_emulator_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
  .text
  .globl sinter_emulator_switch
  .type sinter_emulator_switch, @function
sinter_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size sinter_emulator_switch, .-sinter_emulator_switch
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl sinter_emulator_switch
  .type sinter_emulator_switch, %function
sinter_emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size sinter_emulator_switch, .-sinter_emulator_switch
)");
#else
#error "the emulator knows x86-64 and aarch64"
#endif

namespace sinter::emulator {

constinit thread_local Dim3 threadIdx;
constinit thread_local Dim3 blockIdx;
constinit thread_local Dim3 blockDim;
constinit thread_local Dim3 gridDim;

namespace {

#ifdef SINTER_EMULATOR_ASAN
constexpr size_t kStackBytes = 1 << 20;
#else
constexpr size_t kStackBytes = 1 << 18;
#endif
constexpr unsigned kBarriers = 16;
constexpr unsigned kMaxTogether = 128;
constexpr size_t kSharedAlignment = 1024;

struct AsyncCopy {
  uint32_t shared;
  const void* global;
  uint32_t bytes;
};

// One stack with its own flow of control; also that of the system thread itself.
struct Fiber {
  void* top = nullptr;  // where it was left
  void* stack = nullptr;
  size_t stack_bytes = 0;
  bool done = false;
  const char* waits_at = nullptr;
  std::vector<AsyncCopy> copies;   // committed ones first
  std::deque<size_t> group_sizes;  // of the committed ones
  size_t grouped = 0;
#ifdef SINTER_EMULATOR_ASAN
  void* fake_stack = nullptr;
#endif
};

struct Barrier {
  unsigned arrived = 0, expected = 0;
  unsigned or_value = 0, sum = 0;
  BarrierResult result;
  WaitList waiting;
};

struct Meeting {
  unsigned first, count;
  uint32_t mask;
  const char* what;
  unsigned arrived = 0;
  void* args[kMaxTogether] = {};
  WaitList waiting;
};

std::mutex met_mutex;
std::map<std::string, uint64_t>& met_counts() {
  static std::map<std::string, uint64_t> counts;
  return counts;
}

// The blocks that one system thread runs, one after another, on the same stacks.
class Worker {
 public:
  Worker(const Launch& launch, const std::function<void()>& thread);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run_block(unsigned index);
  // The body of a fiber.
  [[noreturn]] void fiber_main() noexcept;

  [[noreturn]] void fail_now(const std::string& message) const;
  void wait(WaitList& list, const char* what);
  void wake(WaitList& list);
  void finish_copies(Fiber& fiber, size_t groups_left);
  Fiber& running() { return fibers_[current_]; }

  const Launch& launch;
  unsigned char* shared = nullptr;
  Barrier barriers[kBarriers];
  std::vector<std::unique_ptr<Meeting>> meetings;
  std::deque<std::function<void()>> deferred;
  std::map<const char*, uint64_t> met;

 private:
  void enter(Fiber& from, Fiber& to);
  void arrived_on(Fiber& fiber);
  // Leaves the running fiber for the next one that can go on, or for the system thread.
  void switch_away();
  std::string deadlock() const;

  const std::function<void()>& thread_;
  std::vector<unsigned char> shared_storage_;
  std::vector<Fiber> fibers_;
  Fiber main_;
  std::deque<unsigned> ready_;
  unsigned current_ = 0;
  unsigned unfinished_ = 0;
  std::exception_ptr error_;
  std::minstd_rand random_{12345};
};

thread_local Worker* worker = nullptr;

void fiber_entry() {
  worker->fiber_main();
}

// The top of a stack that, once switched to, begins fiber_entry().
void* fresh_stack(void* stack) {
  auto* top = reinterpret_cast<void**>(static_cast<char*>(stack) + kStackBytes);
#if defined(__x86_64__)
  // Six registers, then the address to return to; entered as by a call, 8 below a multiple of 16.
  top -= 8;
  std::fill(top, top + 8, nullptr);
  top[6] = reinterpret_cast<void*>(fiber_entry);
#else
  top -= 20;
  std::fill(top, top + 20, nullptr);
  top[11] = reinterpret_cast<void*>(fiber_entry);
#endif
  return top;
}

Worker::Worker(const Launch& l, const std::function<void()>& thread)
    : launch(l), thread_(thread), fibers_(l.block) {
  shared_storage_.resize(l.shared_bytes + kSharedAlignment);
  void* base = shared_storage_.data();
  size_t space = shared_storage_.size();
  shared = static_cast<unsigned char*>(std::align(kSharedAlignment, l.shared_bytes, base, space));
  for (Fiber& fiber : fibers_) {
    fiber.stack_bytes = kStackBytes;
    fiber.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber.stack == MAP_FAILED) throw EmulatorError("no memory for the stacks of a block");
    mprotect(fiber.stack, 4096, PROT_NONE);  // an overflow faults
#ifdef SINTER_EMULATOR_ASAN
    // Fibers that were given up at the same place left their marks.
    __asan_unpoison_memory_region(fiber.stack, kStackBytes);
#endif
    fiber.top = fresh_stack(fiber.stack);
  }
}

Worker::~Worker() {
  for (Fiber& fiber : fibers_) munmap(fiber.stack, kStackBytes);
  std::lock_guard lock(met_mutex);
  for (const auto& [what, count] : met) met_counts()[what] += count;
}

void Worker::arrived_on(Fiber& fiber) {
#ifdef SINTER_EMULATOR_ASAN
  const void* old = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &old, &bytes);
  // The first switch tells where the system thread's stack lies.
  if (main_.stack == nullptr) {
    main_.stack = const_cast<void*>(old);
    main_.stack_bytes = bytes;
  }
#else
  (void)fiber;
#endif
}

void Worker::enter(Fiber& from, Fiber& to) {
#ifdef SINTER_EMULATOR_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
  sinter_emulator_switch(&from.top, to.top);
  arrived_on(from);
}

void Worker::fiber_main() noexcept {
  Fiber& self = running();
  arrived_on(self);
  for (;;) {
    try {
      thread_();
    } catch (...) {
      error_ = std::current_exception();
    }
    self.done = true;
    --unfinished_;
    if (error_) {
      enter(self, main_);
    } else {
      switch_away();
    }
  }
}

void Worker::switch_away() {
  Fiber& from = running();
  while (ready_.empty() && unfinished_ != 0 && !deferred.empty()) {
    std::function<void()> task = std::move(deferred.front());
    deferred.pop_front();
    try {
      task();
    } catch (...) {
      error_ = std::current_exception();
      enter(from, main_);
    }
  }
  if (ready_.empty()) {
    enter(from, main_);
    return;
  }
  if (launch.order == Order::Shuffled) std::swap(ready_.front(), ready_[random_() % ready_.size()]);
  const unsigned next = ready_.front();
  ready_.pop_front();
  current_ = next;
  threadIdx = {next, 0, 0};
  if (&fibers_[next] != &from) enter(from, fibers_[next]);
}

void Worker::run_block(unsigned index) {
  worker = this;
  blockIdx = {index, 0, 0};
  blockDim = {launch.block, 1, 1};
  gridDim = {launch.grid, 1, 1};
  std::memset(shared, 0xff, launch.shared_bytes);
  std::fill(std::begin(barriers), std::end(barriers), Barrier());
  ready_.clear();
  deferred.clear();
  for (unsigned i = 0; i < launch.block; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.done = false;
    fiber.waits_at = nullptr;
    fiber.copies.clear();
    fiber.group_sizes.clear();
    fiber.grouped = 0;
    if (launch.order == Order::Reverse)
      ready_.push_front(i);
    else
      ready_.push_back(i);
  }
  unfinished_ = launch.block;
  const unsigned first = ready_.front();
  ready_.pop_front();
  current_ = first;
  threadIdx = {first, 0, 0};
  enter(main_, fibers_[first]);
  if (error_) std::rethrow_exception(error_);
  if (unfinished_ != 0) throw EmulatorError(deadlock());
}

std::string Worker::deadlock() const {
  std::string message = "deadlock in block " + std::to_string(blockIdx.x) + ":";
  auto state = [&](unsigned i) {
    return fibers_[i].done ? std::string("ended") : std::string(fibers_[i].waits_at);
  };
  for (unsigned i = 0; i < fibers_.size();) {
    unsigned end = i + 1;
    while (end < fibers_.size() && state(end) == state(i)) ++end;
    message += " threads " + std::to_string(i) + "-" + std::to_string(end - 1);
    message += (fibers_[i].done ? " have " : " wait at ") + state(i) + ";";
    i = end;
  }
  message.pop_back();
  return message;
}

void Worker::fail_now(const std::string& message) const {
  throw EmulatorError("block " + std::to_string(blockIdx.x) + ", thread " +
                      std::to_string(current_) + ": " + message);
}

void Worker::wait(WaitList& list, const char* what) {
  Fiber& self = running();
  list.threads.push_back(current_);
  self.waits_at = what;
  switch_away();
  self.waits_at = nullptr;
}

void Worker::wake(WaitList& list) {
  if (launch.order == Order::Reverse) std::reverse(list.threads.begin(), list.threads.end());
  for (unsigned thread : list.threads) ready_.push_back(thread);
  list.threads.clear();
}

void Worker::finish_copies(Fiber& fiber, size_t groups_left) {
  size_t copies = 0;
  while (fiber.group_sizes.size() > groups_left) {
    copies += fiber.group_sizes.front();
    fiber.group_sizes.pop_front();
  }
  for (size_t i = 0; i < copies; ++i) {
    const AsyncCopy& copy = fiber.copies[i];
    if (copy.global != nullptr)
      std::memcpy(shared + copy.shared, copy.global, copy.bytes);
    else
      std::memset(shared + copy.shared, 0, copy.bytes);
  }
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<ptrdiff_t>(copies));
  fiber.grouped -= copies;
}

}  // namespace

void launch(const Launch& launch, const std::function<void()>& thread) {
  std::atomic<unsigned> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  auto work = [&] {
    try {
      Worker mine(launch, thread);
      for (unsigned i = next++; i < launch.grid; i = next++) mine.run_block(i);
    } catch (...) {
      next = launch.grid;
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  const unsigned workers = std::min(launch.workers, launch.grid);
  for (unsigned i = 1; i < workers; ++i) others.emplace_back(work);
  // A thread of its own: the caller may have a small stack, or be asked for its thread_locals.
  std::thread(work).join();
  for (std::thread& other : others) other.join();
  if (error) std::rethrow_exception(error);
}

void fail(const std::string& message) {
  worker->fail_now(message);
}

unsigned char* shared_memory() {
  return worker->shared;
}
size_t shared_bytes() {
  return worker->launch.shared_bytes;
}
uint32_t shared_offset(const void* pointer) {
  const auto* at = static_cast<const unsigned char*>(pointer);
  if (at < worker->shared || at > worker->shared + worker->launch.shared_bytes)
    fail("an address is not in dynamic shared memory");
  return static_cast<uint32_t>(at - worker->shared);
}
void* shared_pointer(uint32_t address, size_t bytes, size_t alignment, const char* what) {
  if (address % alignment != 0)
    fail(std::string(what) + ": shared address " + std::to_string(address) + " is not aligned to " +
         std::to_string(alignment));
  if (address + bytes > worker->launch.shared_bytes)
    fail(std::string(what) + ": shared address " + std::to_string(address) + " is beyond the " +
         std::to_string(worker->launch.shared_bytes) + " bytes of the block");
  return worker->shared + address;
}
void check_global(const void* pointer, size_t bytes, size_t alignment, const char* what) {
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
    fail(std::string(what) + ": a global address is not aligned to " + std::to_string(alignment));
  if (worker->launch.global.empty()) return;
  const auto* at = static_cast<const unsigned char*>(pointer);
  for (const GlobalRange& range : worker->launch.global) {
    const auto* begin = static_cast<const unsigned char*>(range.begin);
    if (at >= begin && at + bytes <= begin + range.bytes) return;
  }
  fail(std::string(what) + ": a global address is outside of the launch's buffers");
}

void wait(WaitList& list, const char* what) {
  worker->wait(list, what);
}
void wake(WaitList& list) {
  worker->wake(list);
}
void defer(std::function<void()> task) {
  worker->deferred.push_back(std::move(task));
}

namespace {

// Whether the phase is complete, which frees those who wait.
bool arrive(unsigned id, unsigned count, unsigned or_value, unsigned sum) {
  if (id >= kBarriers) fail("barrier " + std::to_string(id) + " does not exist");
  if (count == 0) count = worker->launch.block;
  if (count % 32 != 0) fail("a barrier's count is no multiple of 32");
  Barrier& barrier = worker->barriers[id];
  if (barrier.arrived != 0 && barrier.expected != count)
    fail("barrier " + std::to_string(id) + " of " + std::to_string(barrier.expected) +
         " threads is entered with a count of " + std::to_string(count));
  barrier.expected = count;
  barrier.or_value |= or_value;
  barrier.sum += sum;
  if (++barrier.arrived < count) return false;
  barrier.result = {barrier.or_value, barrier.sum};
  barrier.arrived = barrier.or_value = barrier.sum = 0;
  worker->wake(barrier.waiting);
  return true;
}

constexpr const char* kBarrierNames[kBarriers] = {
    "barrier 0",  "barrier 1",  "barrier 2",  "barrier 3", "barrier 4",  "barrier 5",
    "barrier 6",  "barrier 7",  "barrier 8",  "barrier 9", "barrier 10", "barrier 11",
    "barrier 12", "barrier 13", "barrier 14", "barrier 15"};

}  // namespace

BarrierResult barrier_sync(unsigned id, unsigned count, unsigned or_value, unsigned sum) {
  const bool last = arrive(id, count, or_value, sum);
  Barrier& barrier = worker->barriers[id];
  if (!last) worker->wait(barrier.waiting, kBarrierNames[id]);
  return barrier.result;
}
void barrier_arrive(unsigned id, unsigned count) {
  arrive(id, count, 0, 0);
}

void meet(unsigned first, unsigned count, uint32_t mask, const char* what, void* args,
          void (*run)(void* const* args)) {
  const unsigned lane = threadIdx.x - first;
  const bool whole = count > 32;
  if (!whole && (mask >> lane & 1u) == 0)
    fail(std::string(what) + ": the calling lane is not in its own mask");
  const unsigned expected = whole ? count : static_cast<unsigned>(__builtin_popcount(mask));
  auto& meetings = worker->meetings;
  Meeting* meeting = nullptr;
  for (auto& open : meetings)
    if (open->first == first && open->count == count && open->mask == mask && open->arrived != 0)
      meeting = open.get();
  if (meeting == nullptr) {
    for (auto& open : meetings)
      if (open->arrived == 0 && open->waiting.threads.empty()) meeting = open.get();
    if (meeting == nullptr) {
      meetings.push_back(std::make_unique<Meeting>());
      meeting = meetings.back().get();
    }
    meeting->first = first;
    meeting->count = count;
    meeting->mask = mask;
    meeting->what = what;
  }
  if (std::strcmp(meeting->what, what) != 0)
    fail(std::string("diverged: this lane is at ") + what + ", others of its warp wait at " +
         meeting->what);
  meeting->args[lane] = args;
  if (++meeting->arrived < expected) {
    worker->wait(meeting->waiting, what);
    return;
  }
  ++worker->met[what];
  run(meeting->args);
  std::fill(std::begin(meeting->args), std::end(meeting->args), nullptr);
  meeting->arrived = 0;
  worker->wake(meeting->waiting);
}

void async_copy(uint32_t shared, const void* global, size_t bytes) {
  void* to = shared_pointer(shared, bytes, bytes, "cp.async");
  if (global != nullptr) check_global(global, bytes, bytes, "cp.async");
  std::memset(to, 0xff, bytes);
  worker->running().copies.push_back({shared, global, static_cast<uint32_t>(bytes)});
}
void async_commit() {
  Fiber& fiber = worker->running();
  fiber.group_sizes.push_back(fiber.copies.size() - fiber.grouped);
  fiber.grouped = fiber.copies.size();
}
void async_wait(unsigned pending_groups) {
  worker->finish_copies(worker->running(), pending_groups);
}

void poll(const void* flag, uint64_t value) {
  using Clock = std::chrono::steady_clock;
  struct Polled {
    const void* flag = nullptr;
    uint64_t value = 0;
    Clock::time_point since;
  };
  thread_local Polled last;
  const auto now = Clock::now();
  if (flag != last.flag || value != last.value) last = {flag, value, now};
  if (now - last.since > std::chrono::seconds(20))
    fail("a flag of " + std::to_string(value) + " that no other block changes");
  std::this_thread::yield();
}

uint64_t times_met(const std::string& what) {
  std::lock_guard lock(met_mutex);
  auto found = met_counts().find(what);
  return found == met_counts().end() ? 0 : found->second;
}

}  // namespace sinter::emulator
