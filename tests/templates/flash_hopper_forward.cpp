// The Hopper forward kernel on the device emulator, against f64.

#include <sinter/tests/templates/flash_hopper.h>

#include <doctest/doctest.h>

#include <algorithm>

namespace device::hopper_full_128 {
using Element = bf16;
constexpr int kHeadDim = 128, kValueDim = 128, kTileM = 128, kTileN = 128, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kQStages = 2;
constexpr int kFeederRegisters = 24, kConsumerRegisters = 240;
constexpr bool kCausal = false, kWindow = false, kSoftcap = false, kSlopes = false,
               kKvLength = false, kDocuments = false, kDropout = false, kPingPong = true,
               kReuseQ = false, kJoin = true;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_forward.cuh>
}  // namespace device::hopper_full_128
namespace device::hopper_causal_64 {
using Element = bf16;
constexpr int kHeadDim = 64, kValueDim = 64, kTileM = 192, kTileN = 128, kStages = 2;
constexpr int kWarps = 16, kSharedBytes = 232448, kQStages = 2;
constexpr int kFeederRegisters = 32, kConsumerRegisters = 160;
constexpr bool kCausal = true, kWindow = false, kSoftcap = false, kSlopes = false,
               kKvLength = false, kDocuments = false, kDropout = false, kPingPong = true,
               kReuseQ = false, kJoin = true;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_forward.cuh>
}  // namespace device::hopper_causal_64
namespace device::hopper_options_64 {
using Element = f16;
constexpr int kHeadDim = 64, kValueDim = 64, kTileM = 128, kTileN = 64, kStages = 3;
constexpr int kWarps = 12, kSharedBytes = 232448, kQStages = 2;
constexpr int kFeederRegisters = 24, kConsumerRegisters = 240;
constexpr bool kCausal = false, kWindow = true, kSoftcap = true, kSlopes = true, kKvLength = true,
               kDocuments = false, kDropout = true, kPingPong = false, kReuseQ = false,
               kJoin = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_forward.cuh>
}  // namespace device::hopper_options_64
namespace device::hopper_documents_96 {
using Element = bf16;
constexpr int kHeadDim = 88, kValueDim = 40, kTileM = 128, kTileN = 64, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kQStages = 1;
constexpr int kFeederRegisters = 24, kConsumerRegisters = 240;
constexpr bool kCausal = true, kWindow = true, kSoftcap = false, kSlopes = false, kKvLength = false,
               kDocuments = true, kDropout = true, kPingPong = false, kReuseQ = false,
               kJoin = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_forward.cuh>
}  // namespace device::hopper_documents_96
namespace device::hopper_causal_256 {
using Element = bf16;
constexpr int kHeadDim = 256, kValueDim = 256, kTileM = 128, kTileN = 64, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kQStages = 1;
constexpr int kFeederRegisters = 24, kConsumerRegisters = 240;
constexpr bool kCausal = true, kWindow = false, kSoftcap = false, kSlopes = false, kKvLength = true,
               kDocuments = false, kDropout = false, kPingPong = false, kReuseQ = true,
               kJoin = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

#include <sinter/codegen/templates/flash_hopper_forward.cuh>
}  // namespace device::hopper_causal_256

namespace {

using namespace sinter::hopper_test;

// Launches an instance's forward kernel on `blocks` blocks.
#define RUN_FORWARD(INSTANCE, DATA, BLOCKS, ORDER)                                  \
  do {                                                                              \
    using namespace device::INSTANCE;                                               \
    Data& d = DATA;                                                                 \
    const auto p = params_of<FlashParams>(d);                                       \
    const auto q = map_of(d.q, kTileM, HopperForward::Q::kSpan);                    \
    const auto k = map_of(d.k, kTileN, HopperForward::K::kSpan);                    \
    const auto v = map_of(d.v, kTileN, HopperForward::V::kSpan);                    \
    const auto o = map_of(d.o, 64, HopperForward::O::kSpan);                        \
    sinter::emulator::Launch launch;                                                \
    launch.grid = BLOCKS;                                                           \
    launch.block = kThreads;                                                        \
    launch.shared_bytes = kSharedBytes;                                             \
    launch.order = ORDER;                                                           \
    sinter::emulator::launch(launch, [&] { flash_hopper_forward(q, k, v, o, p); }); \
  } while (false)

void check(Data& data) {
  const Expected want = expect(data);
  CHECK(error_of(data.o, want.o, data.problem.f16) < 4e-3);
  CHECK(error_of(data.lse, want.lse) < 1e-4);
}

using sinter::emulator::Order;

}  // namespace

TEST_CASE("Hopper forward, all keys, head size 128") {
  for (int s : {1, 63, 130, 257}) {
    CAPTURE(s);
    Problem problem;
    problem.queries = problem.keys = s;
    problem.dim = problem.value_dim = 128;
    problem.heads = 2;
    Data data = make_data(problem);
    RUN_FORWARD(hopper_full_128, data, 2, Order::Forward);
    check(data);
  }
}

TEST_CASE("Hopper forward, causal, head size 64, from a packed projection") {
  for (int s : {1, 63, 65, 128, 257}) {
    CAPTURE(s);
    Problem problem;
    problem.queries = problem.keys = s;
    problem.causal = true;
    problem.packed = true;
    problem.heads = 4;
    problem.kv_heads = 2;
    Data data = make_data(problem);
    RUN_FORWARD(hopper_causal_64, data, 2, Order::Shuffled);
    check(data);
  }
}

TEST_CASE("Hopper forward, causal with more or fewer queries than keys") {
  for (int queries : {40, 300}) {
    CAPTURE(queries);
    Problem problem;
    problem.queries = queries;
    problem.keys = 170;
    problem.causal = true;
    problem.garbage = true;
    Data data = make_data(problem);
    RUN_FORWARD(hopper_causal_64, data, 1, Order::Reverse);
    check(data);
  }
}

TEST_CASE("Hopper forward, window, softcap, slopes, lengths and dropout, f16") {
  for (int keys : {72, 131}) {
    CAPTURE(keys);
    Problem problem;
    problem.batch = 3;
    problem.heads = 2;
    problem.queries = 129;
    problem.keys = keys;
    problem.window = 50;
    problem.softcap = 2;
    problem.slopes = true;
    problem.length = {70, 0, 33};
    problem.p = 0.3;
    problem.offset = 8;
    problem.f16 = true;
    problem.garbage = true;
    Data data = make_data(problem);
    RUN_FORWARD(hopper_options_64, data, 2, Order::Shuffled);
    check(data);
  }
}

TEST_CASE("Hopper forward, packed documents, odd head and value sizes") {
  Problem problem;
  problem.batch = 2;
  problem.queries = problem.keys = 140;
  problem.dim = 88;
  problem.value_dim = 40;
  problem.causal = true;
  problem.window = 60;
  problem.documents = {3, 70, 1, 50};
  problem.p = 0.1;
  problem.garbage = true;
  Data data = make_data(problem);
  RUN_FORWARD(hopper_documents_96, data, 2, Order::Forward);
  check(data);
}

TEST_CASE("Hopper forward, head size 256") {
  Problem problem;
  problem.batch = 2;
  problem.queries = 150;
  problem.keys = 100;
  problem.dim = problem.value_dim = 256;
  problem.causal = true;
  problem.length = {100, 37};
  problem.garbage = true;
  Data data = make_data(problem);
  RUN_FORWARD(hopper_causal_256, data, 1, Order::Forward);
  check(data);
}

TEST_CASE("Hopper forward, enormous scores") {
  Problem problem;
  problem.queries = problem.keys = 1;
  Data data = make_data(problem);
  for (int d = 0; d < problem.dim; ++d)
    for (const Tensor* t : {&data.q, &data.k})
      (*t->storage)[static_cast<size_t>(t->at(0, 0, 0) + d)] = bits_of(49920, false);
  RUN_FORWARD(hopper_causal_64, data, 1, Order::Forward);
  CHECK(error_of(data.o, expect(data).o, false) == 0);
}

TEST_CASE("Hopper forward: every item is dealt once, and causal work evenly") {
  using namespace device::hopper_full_128;
  std::mt19937 random(3);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  // The longest block's key tiles, with 2 more for each item, by the mean.
  const auto deal = [](int heads, int length, int blocks) {
    FlashParams p{};
    p.batch = 1;
    p.heads = heads;
    p.queries = length;
    const int tiles = (length + kTileM - 1) / kTileM;
    std::vector<int> times(static_cast<size_t>(heads * tiles));
    int total = 0, longest = 0;
    for (int block = 0; block < blocks; ++block) {
      device::blockIdx.x = static_cast<unsigned>(block);
      device::gridDim.x = static_cast<unsigned>(blocks);
      int head = 0, tile = 0, work = 0;
      for (HopperDeal next; next.next(p, head, tile); work += tile + 3)
        ++times.at(static_cast<size_t>(head * tiles + tile));
      total += work;
      longest = std::max(longest, work);
    }
    CHECK(std::count(times.begin(), times.end(), 1) == heads * tiles);
    return static_cast<double>(longest) * blocks / total;
  };
  for (int trial = 0; trial < 200; ++trial) {
    const int heads = draw(1, 60), length = draw(1, 3000);
    const int items = heads * ((length + kTileM - 1) / kTileM);
    CAPTURE(heads);
    CAPTURE(length);
    deal(heads, length, std::min(items, draw(1, 200)));
  }
  CHECK(deal(256, 1024, 132) < 1.03);
  CHECK(deal(64, 4096, 132) < 1.03);
  CHECK(deal(16, 16384, 132) < 1.03);
}
