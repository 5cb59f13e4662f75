#include <sinter/tests/emulator/hopper.h>

#include <chrono>
#include <deque>
#include <map>
#include <thread>

namespace device::hopper {
namespace {

using ::sinter::emulator::fail;
using ::sinter::emulator::shared_pointer;

struct Mbarrier {
  uint32_t count = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  ::sinter::emulator::WaitList waiting;
};

// Shared memory holds where its barrier is kept, with a mark.
constexpr uint32_t kMark = 0x6d626172;
struct Handle {
  uint32_t mark, index;
};

// A store or an addition: what it does first with shared memory, and later with global memory.
struct Bulk {
  uint32_t from;
  std::vector<unsigned char> data;
  bool read = false;
  uint32_t bytes = 0;
  std::function<void(const std::vector<unsigned char>&)> finish;
};
struct BulkGroup {
  std::vector<Bulk> copies;
};

struct Pending {
  Issue issue;
  uint32_t a_words[4];
};
struct Accumulator {
  std::vector<float> values;
  int in_flight = 0;
};
struct ThreadState {
  std::vector<Pending> open;                // products since the last commit
  std::deque<std::vector<Pending>> groups;  // committed
  std::map<float*, Accumulator> accumulators;
  unsigned pending = 0;  // what the wait under way asks for
  std::deque<BulkGroup> bulk;
  BulkGroup open_bulk;
  std::vector<uint32_t> unfenced;  // chunks of 16 bytes
};

// Of the block that the system thread runs.
struct BlockState {
  int64_t index = -1;
  std::vector<std::unique_ptr<Mbarrier>> barriers;
  std::map<unsigned, ThreadState> threads;
  std::vector<uint16_t> writer;  // of each chunk: thread + 1 while its write is not fenced
};
thread_local BlockState states;
BlockState& block() {
  if (states.index != blockIdx.x) {
    states = {};
    states.index = blockIdx.x;
  }
  return states;
}
ThreadState& mine() {
  return block().threads[threadIdx.x];
}

Mbarrier& barrier_at(uint32_t address) {
  Handle handle;
  std::memcpy(&handle, shared_pointer(address, 8, 8, "mbarrier"), 8);
  if (handle.mark != kMark || handle.index >= block().barriers.size())
    fail("an mbarrier that was not initialised");
  return *block().barriers[handle.index];
}
void settle(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1u;
  barrier.pending = barrier.count;
  ::sinter::emulator::wake(barrier.waiting);
}
void landed(Mbarrier& barrier, uint32_t bytes) {
  barrier.bytes -= bytes;
  settle(barrier);
}

void check_fenced(uint32_t address, uint32_t bytes, const char* what) {
  for (uint32_t chunk = address / 16; chunk < (address + bytes + 15) / 16; ++chunk)
    if (chunk < block().writer.size() && block().writer[chunk] != 0)
      fail(std::string(what) + " reads shared memory that thread " +
           std::to_string(block().writer[chunk] - 1) + " wrote without fence_async()");
}

uint32_t swizzle(uint32_t address, int span) {
  const uint32_t rows = span == 128 ? 7 : span == 64 ? 3 : 1;
  return address ^ (address >> 7 & rows) << 4;
}

// Calls use(shared offset, global pointer or null) for each 16 bytes of a box.
template <typename Use>
void for_each_chunk(const TensorMap& map, uint32_t shared, const int32_t (&at)[4], Use use) {
  const int per_chunk = 16 / map.element_bytes;
  const int row_bytes = map.box[0] * map.element_bytes;
  uint32_t row = 0;
  for (int i3 = 0; i3 < map.box[3]; ++i3)
    for (int i2 = 0; i2 < map.box[2]; ++i2)
      for (int i1 = 0; i1 < map.box[1]; ++i1, ++row)
        for (int chunk = 0; chunk < row_bytes / 16; ++chunk) {
          const int64_t index[4] = {at[0] + chunk * per_chunk, at[1] + i1, at[2] + i2, at[3] + i3};
          bool inside = true;
          for (int d = 0; d < 4; ++d) inside = inside && index[d] >= 0 && index[d] < map.dims[d];
          char* global = static_cast<char*>(map.base);
          for (int d = 0; d < 4; ++d)
            global += index[d] * (d == 0 ? map.element_bytes : map.strides[d]);
          const int64_t left = (map.dims[0] - index[0]) * map.element_bytes;
          use(swizzle(shared + row * static_cast<uint32_t>(row_bytes) +
                          static_cast<uint32_t>(chunk) * 16,
                      map.span),
              inside ? global : nullptr, static_cast<size_t>(std::min<int64_t>(16, left)));
        }
}
uint32_t box_bytes(const TensorMap& map) {
  return static_cast<uint32_t>(map.box[0] * map.box[1] * map.box[2] * map.box[3] *
                               map.element_bytes);
}
void check_map(const TensorMap& map, uint32_t shared) {
  const auto rule = [](bool holds, const char* what) {
    if (!holds) fail(std::string("a tensor map breaks a rule: ") + what);
  };
  rule(reinterpret_cast<uintptr_t>(map.base) % 16 == 0, "the base is a multiple of 16");
  for (int d = 1; d < 4; ++d) {
    rule(map.strides[d] % 16 == 0, "strides are multiples of 16 bytes");
    rule(map.box[d] >= 1 && map.box[d] <= 256, "a box has up to 256 elements along an axis");
  }
  rule(map.box[0] * map.element_bytes == map.span, "a box row is the span of the swizzle");
  rule(shared % static_cast<uint32_t>(8 * map.span) == 0, "boxes begin at a swizzle atom");
}

}  // namespace

void barrier_init(uint32_t address, uint32_t count) {
  void* at = shared_pointer(address, 8, 8, "mbarrier.init");
  auto barrier = std::make_unique<Mbarrier>();
  barrier->count = barrier->pending = count;
  block().barriers.push_back(std::move(barrier));
  const Handle handle{kMark, static_cast<uint32_t>(block().barriers.size() - 1)};
  std::memcpy(at, &handle, 8);
}
void barrier_arrive(uint32_t address) {
  Mbarrier& barrier = barrier_at(address);
  if (barrier.pending == 0) fail("more arrivals at an mbarrier than it counts");
  --barrier.pending;
  settle(barrier);
}
void barrier_arrive_expect(uint32_t address, uint32_t bytes) {
  barrier_at(address).bytes += bytes;
  barrier_arrive(address);
}
void barrier_wait(uint32_t address, uint32_t parity) {
  Mbarrier& barrier = barrier_at(address);
  while (barrier.phase == parity) ::sinter::emulator::wait(barrier.waiting, "mbarrier.try_wait");
}

void tma_load(uint32_t to, const TensorMap& map, uint32_t barrier_address, int32_t c0, int32_t c1,
              int32_t c2, int32_t c3) {
  check_map(map, to);
  const int32_t at[4] = {c0, c1, c2, c3};
  for_each_chunk(map, to, at, [&](uint32_t shared, char*, size_t) {
    std::memset(shared_pointer(shared, 16, 16, "TMA load"), 0xff, 16);
  });
  Mbarrier* barrier = &barrier_at(barrier_address);
  ::sinter::emulator::defer([to, map, barrier, c0, c1, c2, c3] {
    const int32_t place[4] = {c0, c1, c2, c3};
    for_each_chunk(map, to, place, [&](uint32_t shared, char* global, size_t bytes) {
      void* chunk = shared_pointer(shared, 16, 16, "TMA load");
      std::memset(chunk, 0, 16);
      if (global != nullptr) std::memcpy(chunk, global, bytes);
    });
    landed(*barrier, box_bytes(map));
  });
}
void tma_store(const TensorMap& map, uint32_t from, int32_t c0, int32_t c1, int32_t c2,
               int32_t c3) {
  check_map(map, from);
  // A box may reach past the ends, but a store that begins before the first element is an illegal
  // instruction.
  if (c0 < 0 || c1 < 0 || c2 < 0 || c3 < 0) fail("a bulk store that begins at a negative place");
  Bulk bulk;
  bulk.from = from;
  bulk.bytes = box_bytes(map);
  bulk.finish = [map, from, c0, c1, c2, c3](const std::vector<unsigned char>& data) {
    const int32_t place[4] = {c0, c1, c2, c3};
    for_each_chunk(map, from, place, [&](uint32_t shared, char* global, size_t bytes) {
      if (global != nullptr) std::memcpy(global, data.data() + (shared - from), bytes);
    });
  };
  mine().open_bulk.copies.push_back(std::move(bulk));
}
void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier_address) {
  if (bytes % 16 != 0) fail("a bulk copy of a size that is no multiple of 16");
  ::sinter::emulator::check_global(from, bytes, 16, "cp.async.bulk");
  std::memset(shared_pointer(to, bytes, 16, "cp.async.bulk"), 0xff, bytes);
  Mbarrier* barrier = &barrier_at(barrier_address);
  ::sinter::emulator::defer([to, from, bytes, barrier] {
    std::memcpy(shared_pointer(to, bytes, 16, "cp.async.bulk"), from, bytes);
    landed(*barrier, bytes);
  });
}
void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  ::sinter::emulator::check_global(to, bytes, 16, "cp.async.bulk");
  mine().open_bulk.copies.push_back(
      {from, {}, false, bytes, [to, bytes](const std::vector<unsigned char>& data) {
         std::memcpy(to, data.data(), bytes);
       }});
}
void bulk_add(float* to, uint32_t from, uint32_t bytes) {
  ::sinter::emulator::check_global(to, bytes, 16, "cp.reduce.async.bulk");
  mine().open_bulk.copies.push_back(
      {from, {}, false, bytes, [to, bytes](const std::vector<unsigned char>& data) {
         for (uint32_t i = 0; i < bytes / 4; ++i) {
           float value;
           std::memcpy(&value, data.data() + 4 * i, 4);
           atomicAdd(to + i, value);
         }
       }});
}
void bulk_commit() {
  ThreadState& state = mine();
  state.bulk.push_back(std::move(state.open_bulk));
  state.open_bulk = {};
}
void bulk_wait_for(unsigned pending, bool read) {
  ThreadState& state = mine();
  for (size_t i = 0; i + pending < state.bulk.size(); ++i) {
    for (Bulk& copy : state.bulk[i].copies) {
      if (copy.read) continue;
      check_fenced(copy.from, copy.bytes, "a bulk store");
      const auto* from =
          static_cast<unsigned char*>(shared_pointer(copy.from, copy.bytes, 16, "cp.async.bulk"));
      copy.data.assign(from, from + copy.bytes);
      copy.read = true;
    }
  }
  if (read) return;
  while (state.bulk.size() > pending) {
    for (Bulk& copy : state.bulk.front().copies) copy.finish(copy.data);
    state.bulk.pop_front();
  }
}
void fence_async() {
  ThreadState& state = mine();
  for (uint32_t chunk : state.unfenced)
    if (block().writer[chunk] == threadIdx.x + 1) block().writer[chunk] = 0;
  state.unfenced.clear();
}
void note_write(uint32_t address) {
  const uint32_t chunk = address / 16;
  if (block().writer.size() <= chunk) block().writer.resize(chunk + 1);
  block().writer[chunk] = static_cast<uint16_t>(threadIdx.x + 1);
  mine().unfenced.push_back(chunk);
}

void release_store(uint32_t* to, uint32_t value) {
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
}
void wait_for(const uint32_t* from, uint32_t value) {
  const auto start = std::chrono::steady_clock::now();
  while (__atomic_load_n(from, __ATOMIC_ACQUIRE) != value) {
    // The block's other threads go on meanwhile, and other blocks on other system threads.
    ::sinter::emulator::WaitList list;
    ::sinter::emulator::defer([&list] {
      std::this_thread::yield();
      ::sinter::emulator::wake(list);
    });
    ::sinter::emulator::wait(list, "a word in global memory");
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60))
      fail("a word in global memory never got its value");
  }
}

void wgmma_issue(const Issue& issue) {
  ThreadState& state = mine();
  Pending pending{issue, {}};
  if (issue.a != nullptr) std::memcpy(pending.a_words, issue.a, sizeof pending.a_words);
  Accumulator& accumulator = state.accumulators[issue.d];
  if (accumulator.in_flight++ == 0) accumulator.values.assign(issue.d, issue.d + issue.width / 2);
  std::memset(issue.d, 0xff, static_cast<size_t>(issue.width) / 2 * sizeof(float));
  state.open.push_back(pending);
}
void wgmma_commit() {
  ThreadState& state = mine();
  state.groups.push_back(std::move(state.open));
  state.open.clear();
}

namespace {

// Element (row, k) of a K-major operand, or the other way round, in bytes from shared memory.
float element(uint64_t descriptor, bool transposed, int row, int k, bool f16) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fffu) << 4;
  const auto leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fffu) << 4;
  const auto stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fffu) << 4;
  const int kind = static_cast<int>(descriptor >> 62);
  if (kind == 0) fail("a descriptor without swizzle");
  const int span = kind == 1 ? 128 : kind == 2 ? 64 : 32;
  uint32_t offset;
  if (transposed) {
    const int columns = span / 2;
    offset = static_cast<uint32_t>(row / columns) * leading +
             static_cast<uint32_t>(k / 8) * stride +
             static_cast<uint32_t>(k % 8 * span + row % columns * 2);
  } else {
    offset =
        static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8 * span + k * 2);
  }
  const uint32_t address = swizzle(start + offset, span);
  uint16_t bits;
  std::memcpy(&bits, shared_pointer(address, 2, 2, "wgmma"), 2);
  if (address / 16 < block().writer.size() && block().writer[address / 16] != 0)
    check_fenced(address & ~15u, 16, "wgmma");
  return f16 ? f16_to_f32({bits}) : bf16_to_f32({bits});
}

void multiply(ThreadState* const* threads, size_t which) {
  const auto pending = [&](int thread) -> Pending& {
    return threads[thread]->groups.front()[which];
  };
  const Issue& first = pending(0).issue;
  const int width = first.width;
  std::vector<float> a(64 * 16), b(16 * static_cast<size_t>(width));
  for (int t = 0; t < 128; ++t) {
    const Issue& other = pending(t).issue;
    if (other.width != width || other.a_descriptor != first.a_descriptor ||
        other.b_descriptor != first.b_descriptor || other.accumulate != first.accumulate ||
        (other.a == nullptr) != (first.a == nullptr))
      fail("the threads of a warpgroup disagree on a wgmma");
    if (other.a == nullptr) continue;
    if (std::memcmp(other.a, pending(t).a_words, 16) != 0)
      fail("A registers of a wgmma changed in flight");
    for (int i = 0; i < 8; ++i) {
      const auto bits = static_cast<uint16_t>(pending(t).a_words[i / 2] >> (16 * (i % 2)));
      const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
      const int k = 2 * (t % 4) + i % 2 + i / 4 * 8;
      a[static_cast<size_t>(row * 16 + k)] = first.f16 ? f16_to_f32({bits}) : bf16_to_f32({bits});
    }
  }
  if (first.a == nullptr)
    for (int row = 0; row < 64; ++row)
      for (int k = 0; k < 16; ++k)
        a[static_cast<size_t>(row * 16 + k)] =
            element(first.a_descriptor, first.transpose_a, row, k, first.f16);
  for (int k = 0; k < 16; ++k)
    for (int column = 0; column < width; ++column)
      b[static_cast<size_t>(k * width + column)] =
          element(first.b_descriptor, first.transpose_b, column, k, first.f16);
  std::vector<float> row_sums(static_cast<size_t>(width));
  for (int row = 0; row < 64; ++row) {
    std::fill(row_sums.begin(), row_sums.end(), 0.0f);
    for (int k = 0; k < 16; ++k) {
      const float factor = a[static_cast<size_t>(row * 16 + k)];
      const float* from = b.data() + k * width;
      for (int column = 0; column < width; ++column)
        row_sums[static_cast<size_t>(column)] += factor * from[column];
    }
    for (int column = 0; column < width; ++column) {
      const int t = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
      ThreadState& state = *threads[t];
      float& value =
          state.accumulators[pending(t).issue.d]
              .values[static_cast<size_t>(column / 8 * 4 + row % 16 / 8 * 2 + column % 2)];
      value = (first.accumulate ? value : 0.0f) + row_sums[static_cast<size_t>(column)];
    }
  }
}

void complete(void* const* args) {
  ThreadState* threads[128];
  for (int t = 0; t < 128; ++t) threads[t] = static_cast<ThreadState*>(args[t]);
  for (int t = 1; t < 128; ++t)
    if (threads[t]->groups.size() != threads[0]->groups.size() ||
        threads[t]->pending != threads[0]->pending)
      fail("the threads of a warpgroup disagree on the groups of wgmma");
  while (threads[0]->groups.size() > threads[0]->pending) {
    for (size_t i = 0; i < threads[0]->groups.front().size(); ++i) multiply(threads, i);
    for (ThreadState* state : threads) {
      for (const Pending& done : state->groups.front()) {
        Accumulator& accumulator = state->accumulators[done.issue.d];
        if (--accumulator.in_flight != 0) continue;
        const auto* bits = reinterpret_cast<const unsigned char*>(done.issue.d);
        const size_t bytes = accumulator.values.size() * sizeof(float);
        for (size_t i = 0; i < bytes; ++i)
          if (bits[i] != 0xff) fail("accumulators of a wgmma changed in flight");
        std::memcpy(done.issue.d, accumulator.values.data(), bytes);
        state->accumulators.erase(done.issue.d);
      }
      state->groups.pop_front();
    }
  }
}

}  // namespace

void wgmma_wait_for(unsigned pending) {
  ThreadState& state = mine();
  if (!state.open.empty()) fail("a wgmma that was not committed is waited for");
  state.pending = pending;
  ::sinter::emulator::meet(threadIdx.x / 128 * 128, 128, 0, "wgmma.wait_group", &state, complete);
}

}  // namespace device::hopper
