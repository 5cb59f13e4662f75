#pragma once
// A device emulator for the kernel templates of codegen/templates/, for tests alone.
//
// A template is compiled as host C++ (device.h stands in for the prelude and the intrinsics, ptx.h
// for ptx.cuh) and launch() runs a whole grid of it. Every thread of a block is a fiber; a block
// runs on one system thread from begin to end, and several system threads take blocks from the
// grid. A fiber runs until it waits: at a barrier, or at a warp collective until all its lanes
// have come.
//
// What it is strict about, since a GPU would only sometimes show it:
//   - shared memory is filled with 0xff (NaN) before each block;
//   - the destination of an asynchronous copy is poisoned when the copy is issued, and the data
//     arrives only when its group is waited for;
//   - addresses of shared memory, and of global memory where the launch names its buffers, are
//     checked for bounds and alignment in every function of ptx.h;
//   - lanes that meet in one collective must be at the same instruction;
//   - a block in which all fibers wait is reported with the place of each of them;
//   - Order makes the fibers take turns in another order: results must not change.
// Blocks begin in the order of the grid, some at a time: one may poll for what an earlier one does.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sinter::emulator {

// What a kernel did wrong: deadlock, divergence, an address out of bounds.
class EmulatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Order { Forward, Reverse, Shuffled };

struct GlobalRange {
  const void* begin = nullptr;
  size_t bytes = 0;
};

struct Launch {
  unsigned grid = 1;
  unsigned block = 32;
  size_t shared_bytes = 0;  // dynamic
  Order order = Order::Forward;
  unsigned workers = 2;  // system threads
  // The buffers that asynchronous copies may touch; with none, global addresses are not checked.
  std::vector<GlobalRange> global;
};

// Runs `thread` once for each thread of each block. Throws EmulatorError for the first block that
// fails.
void launch(const Launch& launch, const std::function<void()>& thread);

// --- For the twins of device functions: what follows is called from inside a running thread. ---

struct Dim3 {
  unsigned x = 0, y = 0, z = 0;
};
extern constinit thread_local Dim3 threadIdx;
extern constinit thread_local Dim3 blockIdx;
extern constinit thread_local Dim3 blockDim;
extern constinit thread_local Dim3 gridDim;

// Ends the block with an EmulatorError that names block and thread.
[[noreturn]] void fail(const std::string& message);

// The dynamic shared memory of the running block, aligned to 1024 bytes, and its size.
unsigned char* shared_memory();
size_t shared_bytes();
// A shared address is an offset into it. Both check bounds; `alignment` in bytes.
uint32_t shared_offset(const void* pointer);
void* shared_pointer(uint32_t address, size_t bytes, size_t alignment, const char* what);
// That [pointer, pointer + bytes) lies in one of the launch's buffers and is aligned.
void check_global(const void* pointer, size_t bytes, size_t alignment, const char* what);

// Fibers that wait for the same thing.
struct WaitList {
  std::vector<unsigned> threads;
};
// The running thread waits until wake() is called for the list. `what` is told in a deadlock and
// must outlive the wait.
void wait(WaitList& list, const char* what);
void wake(WaitList& list);
// A task that runs when no thread of the block can go on: asynchronous work, as late as it may
// be. Tasks run in the order in which they were given, one each time; not inside a thread.
void defer(std::function<void()> task);

// A barrier of `count` threads (a multiple of 32; 0: all of the block). arrive() does not wait.
// `or_value` is joined by or, `sum` added up over the threads of the phase.
struct BarrierResult {
  unsigned or_value = 0;
  unsigned sum = 0;
};
BarrierResult barrier_sync(unsigned id, unsigned count, unsigned or_value = 0, unsigned sum = 0);
void barrier_arrive(unsigned id, unsigned count);

// The threads of the block that begin at `first` and whose bits are set in `mask` meet; the last
// one runs `run(args)`, args[i] being what thread first + i gave (null where it takes no part), and
// all go on. `what` names instruction and immediates: it must be the same for all. Up to 128
// threads: `count` bits, 32 for a warp, 128 for a warpgroup, which always takes part whole.
void meet(unsigned first, unsigned count, uint32_t mask, const char* what, void* args,
          void (*run)(void* const* args));

// The lanes of the running thread's warp that are set in `mask`. A is what each lane gives and
// gets; F is called as run(A* const* lanes), null for lanes that take no part.
template <typename A, typename F>
void warp_collective(uint32_t mask, const char* what, A& mine, F) {
  meet(threadIdx.x / 32 * 32, 32, mask, what, &mine,
       [](void* const* args) { F{}(reinterpret_cast<A* const*>(args)); });
}

// The running thread has read `value` at `flag` and will read again. Fails where that goes on
// without a change for 20 seconds: another block's thread was to change it.
void poll(const void* flag, uint64_t value);

// Asynchronous copies of the running thread, in groups. A null source fills with zeros.
void async_copy(uint32_t shared, const void* global, size_t bytes);
void async_commit();
void async_wait(unsigned pending_groups);

// A counter for names: how often the instruction `what` was met, over all launches. Tests use it to
// see that a path was taken.
uint64_t times_met(const std::string& what);

}  // namespace sinter::emulator
