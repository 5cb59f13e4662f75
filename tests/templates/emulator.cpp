// The device emulator itself: what it computes, and that it sees the mistakes it is there for.

#include <doctest/doctest.h>
#include <sinter/tests/emulator/ptx.h>

#include <numeric>
#include <string>
#include <vector>

using namespace sinter;
using namespace device;
namespace emu = sinter::emulator;

namespace {

template <typename F>
std::string error_of(const emu::Launch& launch, F&& kernel) {
  try {
    emu::launch(launch, kernel);
  } catch (const emu::EmulatorError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr emu::Order kOrders[] = {emu::Order::Forward, emu::Order::Reverse, emu::Order::Shuffled};

}  // namespace

TEST_CASE("emulator: blocks, threads, barriers and shared memory") {
  for (emu::Order order : kOrders) {
    std::vector<int> x(3 * 64);
    std::iota(x.begin(), x.end(), 0);
    emu::Launch launch{3, 64, 64 * sizeof(int), order, 2, {}};
    emu::launch(launch, [&] {
      SN_DYNAMIC_SHARED(memory);
      int* tile = reinterpret_cast<int*>(memory);
      const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
      CHECK(tile[threadIdx.x] == -1);
      __syncthreads();
      tile[threadIdx.x] = x[at];
      __syncthreads();
      x[at] = tile[63 - threadIdx.x];
    });
    for (int i = 0; i < 3 * 64; ++i) CHECK(x[i] == i / 64 * 64 + 63 - i % 64);
  }
}

TEST_CASE("emulator: a missing barrier is seen in one of the orders") {
  bool wrong = false;
  for (emu::Order order : {emu::Order::Forward, emu::Order::Reverse}) {
    std::vector<int> x(64);
    emu::launch({1, 64, 64 * sizeof(int), order, 1, {}}, [&] {
      SN_DYNAMIC_SHARED(memory);
      int* tile = reinterpret_cast<int*>(memory);
      tile[threadIdx.x] = static_cast<int>(threadIdx.x);
      x[threadIdx.x] = tile[threadIdx.x ^ 1u];
    });
    for (unsigned i = 0; i < 64; ++i) wrong |= x[i] != static_cast<int>(i ^ 1u);
  }
  CHECK(wrong);
}

TEST_CASE("emulator: warp collectives") {
  emu::launch({1, 64, 0, emu::Order::Shuffled, 1, {}}, [] {
    const int lane = static_cast<int>(threadIdx.x % 32);
    CHECK(__shfl_sync(0xffffffffu, lane * 2, 5) == 10);
    CHECK(__shfl_xor_sync(0xffffffffu, lane, 3) == (lane ^ 3));
    CHECK(__shfl_up_sync(0xffffffffu, lane, 1) == (lane == 0 ? 0 : lane - 1));
    CHECK(__shfl_down_sync(0xffffffffu, lane, 2, 8) == (lane % 8 >= 6 ? lane : lane + 2));
    CHECK(__ballot_sync(0xffffffffu, lane % 2) == 0xaaaaaaaau);
    CHECK(__match_any_sync(0xffffffffu, lane / 4) == 0xfu << (lane / 4 * 4));
    CHECK(__reduce_add_sync(0xffffffffu, static_cast<uint32_t>(lane)) == 496u);
    CHECK(__reduce_max_sync(0xffffffffu, lane) == 31);
    CHECK(__any_sync(0xffffffffu, lane == 7) == 1);
    CHECK(__all_sync(0xffffffffu, lane == 7) == 0);
    // Two halves of a warp, each by itself.
    const uint32_t half = lane < 16 ? 0xffffu : 0xffff0000u;
    CHECK(__ballot_sync(half, 1) == half);
    CHECK(__syncthreads_count(lane == 3) == 2);
    CHECK(__syncthreads_or(threadIdx.x == 40) == 1);
    CHECK(__syncthreads_and(threadIdx.x != 40) == 0);
  });
}

TEST_CASE("emulator: fragments and their product") {
  // c = a b of 16x16 and 16x8, b once as [n][k] and once, transposed by ldmatrix, as [k][n].
  std::vector<bf16> a(16 * 16), b(8 * 16);
  std::vector<float> c(16 * 8), transposed(16 * 8);
  for (int i = 0; i < 16 * 16; ++i) a[i] = f32_to_bf16(static_cast<float>(i % 13 - 6));
  for (int i = 0; i < 8 * 16; ++i) b[i] = f32_to_bf16(static_cast<float>(i % 7 - 3));
  emu::launch({1, 32, 2048, emu::Order::Forward, 1, {}}, [&] {
    SN_DYNAMIC_SHARED(memory);
    bf16* tile_a = reinterpret_cast<bf16*>(memory);
    bf16* tile_b = reinterpret_cast<bf16*>(memory + 512);
    bf16* tile_bt = reinterpret_cast<bf16*>(memory + 1024);
    const unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32) tile_a[i] = a[i];
    for (unsigned i = lane; i < 128; i += 32) {
      tile_b[i] = b[i];
      tile_bt[i % 16 * 8 + i / 16] = b[i];
    }
    __syncwarp();
    uint32_t fragment[4], columns[2], rows[2];
    ldmatrix_x4(fragment, shared_address(tile_a + lane % 16 * 16 + lane / 16 * 8));
    ldmatrix_x2(columns, shared_address(tile_b + lane % 8 * 16 + lane / 8 % 2 * 8));
    ldmatrix_x2_trans(rows, shared_address(tile_bt + lane % 16 * 8));
    float d[4] = {}, e[4] = {};
    mma_16x8x16<bf16>(d, fragment, columns[0], columns[1]);
    mma_16x8x16<bf16>(e, fragment, rows[0], rows[1]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned at = (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
      c[at] = d[i];
      transposed[at] = e[i];
    }
  });
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int k = 0; k < 16; ++k)
        sum += bf16_to_f32(a[row * 16 + k]) * bf16_to_f32(b[column * 16 + k]);
      CHECK(c[row * 8 + column] == sum);
      CHECK(transposed[row * 8 + column] == sum);
    }
  CHECK(emu::times_met("mma.m16n8k16.bf16") > 0);
}

TEST_CASE("emulator: asynchronous copies arrive when they are waited for") {
  std::vector<float> from(64), early(64), late(64);
  std::iota(from.begin(), from.end(), 1.0f);
  emu::Launch launch{1, 16, 256, emu::Order::Forward, 1, {{from.data(), 256}}};
  emu::launch(launch, [&] {
    SN_DYNAMIC_SHARED(memory);
    const float* tile = reinterpret_cast<const float*>(memory);
    const unsigned i = threadIdx.x;
    cp_async_16_or_zero(shared_address(memory + 16 * i), &from[4 * i], i != 3);
    cp_async_commit();
    cp_async_commit();
    cp_async_wait<2>();
    for (unsigned k = 0; k < 4; ++k) early[4 * i + k] = tile[4 * i + k];
    cp_async_wait<1>();
    for (unsigned k = 0; k < 4; ++k) late[4 * i + k] = tile[4 * i + k];
  });
  for (int i = 0; i < 64; ++i) {
    CHECK(std::isnan(early[i]));
    CHECK(late[i] == (i / 4 == 3 ? 0.0f : from[i]));
  }
  CHECK(contains(error_of(launch, [&] { cp_async_16(0, &from[61]); }), "not aligned to 16"));
  CHECK(contains(error_of(launch, [&] { cp_async_16(0, from.data() + 64); }), "outside"));
  CHECK(contains(error_of(launch, [&] { cp_async_16(256, from.data()); }), "beyond the 256"));
}

TEST_CASE("emulator: who waits for whom is told") {
  emu::Launch launch{1, 64, 0, emu::Order::Forward, 1, {}};
  const std::string deadlock = error_of(launch, [] {
    if (threadIdx.x < 32) __syncthreads();
  });
  CHECK(deadlock ==
        "deadlock in block 0: threads 0-31 wait at barrier 0; threads 32-63 have ended");
  CHECK(contains(error_of(launch,
                          [] {
                            if (threadIdx.x % 2 == 0)
                              __ballot_sync(0xffffffffu, 1);
                            else
                              __shfl_sync(0xffffffffu, 1, 0);
                          }),
                 "diverged: this lane is at __shfl_sync, others of its warp wait at "
                 "__ballot_sync"));
  // What failed leaves nothing behind.
  CHECK(error_of(launch, [] { __syncthreads(); }).empty());
}

TEST_CASE("emulator: named barriers, waits and deferred work") {
  std::vector<int> order;
  emu::launch({1, 64, 0, emu::Order::Forward, 1, {}}, [&] {
    if (threadIdx.x < 32) {
      named_barrier_sync(2, 64);
      if (threadIdx.x == 0) order.push_back(2);
    } else {
      if (threadIdx.x == 32) order.push_back(1);
      named_barrier_arrive(2, 64);
    }
  });
  CHECK(order == std::vector<int>{1, 2});

  emu::WaitList list;
  bool done = false;
  emu::launch({1, 32, 0, emu::Order::Forward, 1, {}}, [&] {
    if (threadIdx.x == 0)
      emu::defer([&] {
        done = true;
        emu::wake(list);
      });
    while (!done) emu::wait(list, "the deferred work");
  });
  CHECK(done);
}
