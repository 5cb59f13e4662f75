// The Hopper backward kernels on the device emulator, against f64.

#include <sinter/tests/templates/flash_hopper.h>

#include <doctest/doctest.h>

namespace device::hopper_back_causal_64 {
using Element = bf16;
constexpr int kHeadDim = 64, kValueDim = 64, kTileM = 128, kTileN = 128, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kFeederRegisters = 40, kConsumerRegisters = 232;
constexpr bool kDeterministic = true, kLag = true;
constexpr bool kCausal = true, kWindow = false, kSoftcap = false, kSlopes = false,
               kKvLength = false, kDocuments = false, kDropout = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

// clang-format off
#include <sinter/codegen/templates/flash_hopper_order.cuh>
#include <sinter/codegen/templates/flash_hopper_backward.cuh>
// clang-format on
}  // namespace device::hopper_back_causal_64
namespace device::hopper_back_full_128 {
using Element = bf16;
constexpr int kHeadDim = 128, kValueDim = 128, kTileM = 64, kTileN = 128, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kFeederRegisters = 40, kConsumerRegisters = 232;
constexpr bool kDeterministic = true, kLag = true;
constexpr bool kCausal = false, kWindow = false, kSoftcap = false, kSlopes = false,
               kKvLength = false, kDocuments = false, kDropout = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

// clang-format off
#include <sinter/codegen/templates/flash_hopper_order.cuh>
#include <sinter/codegen/templates/flash_hopper_backward.cuh>
// clang-format on
}  // namespace device::hopper_back_full_128
namespace device::hopper_back_added_128 {
using Element = bf16;
constexpr int kHeadDim = 128, kValueDim = 128, kTileM = 64, kTileN = 128, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kFeederRegisters = 40, kConsumerRegisters = 232;
constexpr bool kDeterministic = false, kLag = false;
constexpr bool kCausal = true, kWindow = false, kSoftcap = false, kSlopes = false,
               kKvLength = false, kDocuments = false, kDropout = false;
#include <sinter/tests/templates/flash_hopper_instance.h>

// clang-format off
#include <sinter/codegen/templates/flash_hopper_order.cuh>
#include <sinter/codegen/templates/flash_hopper_backward.cuh>
// clang-format on
}  // namespace device::hopper_back_added_128
namespace device::hopper_back_options_64 {
using Element = f16;
constexpr int kHeadDim = 64, kValueDim = 64, kTileM = 128, kTileN = 128, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kFeederRegisters = 40, kConsumerRegisters = 232;
constexpr bool kDeterministic = true, kLag = true;
constexpr bool kCausal = false, kWindow = true, kSoftcap = true, kSlopes = true, kKvLength = true,
               kDocuments = false, kDropout = true;
#include <sinter/tests/templates/flash_hopper_instance.h>

// clang-format off
#include <sinter/codegen/templates/flash_hopper_order.cuh>
#include <sinter/codegen/templates/flash_hopper_backward.cuh>
// clang-format on
}  // namespace device::hopper_back_options_64
namespace device::hopper_back_documents_128 {
using Element = bf16;
constexpr int kHeadDim = 88, kValueDim = 40, kTileM = 64, kTileN = 128, kStages = 2;
constexpr int kWarps = 12, kSharedBytes = 232448, kFeederRegisters = 40, kConsumerRegisters = 232;
constexpr bool kDeterministic = true, kLag = true;
constexpr bool kCausal = true, kWindow = true, kSoftcap = false, kSlopes = false, kKvLength = false,
               kDocuments = true, kDropout = true;
#include <sinter/tests/templates/flash_hopper_instance.h>

// clang-format off
#include <sinter/codegen/templates/flash_hopper_order.cuh>
#include <sinter/codegen/templates/flash_hopper_backward.cuh>
// clang-format on
}  // namespace device::hopper_back_documents_128

namespace {

using namespace sinter::hopper_test;
using sinter::emulator::Launch;
using sinter::emulator::Order;

// Runs the three kernels of an instance; `parts` blocks share a head's key tiles.
#define RUN_BACKWARD(INSTANCE, DATA, WANT, BLOCKS, PARTS, ORDER)                                 \
  do {                                                                                           \
    using namespace device::INSTANCE;                                                            \
    using B = HopperBackward;                                                                    \
    Data& d = DATA;                                                                              \
    set_forward(d, WANT);                                                                        \
    const auto p = params_of<FlashParams>(d);                                                    \
    const auto tiles = static_cast<size_t>(p.batch * p.heads * hopper_query_tiles(p));           \
    std::vector<device::float4> rows(tiles*B::kRowBytes / 16), sums(tiles*B::kSumBytes / 8);     \
    std::memset(rows.data(), 0xff, rows.size() * 16);                                            \
    std::memset(sums.data(), 0xff, sums.size() * 16);                                            \
    std::vector<uint32_t> turns(tiles, 77);                                                      \
    float *const r = &rows.data()->x, *const s = &sums.data()->x;                                \
    const auto q = map_of(d.q, kTileM, B::Q::kSpan), dy = map_of(d.dy, kTileM, B::Q::kSpan);     \
    const auto k = map_of(d.k, kTileN, B::K::kSpan), v = map_of(d.v, kTileN, B::K::kSpan);       \
    const auto dk = map_of(d.dk, 64, B::Out::kSpan), dv = map_of(d.dv, 64, B::Out::kSpan);       \
    Launch rows_launch{static_cast<unsigned>(tiles), kPrepareThreads, 0, ORDER, 2, {}};          \
    sinter::emulator::launch(rows_launch, [&] { flash_hopper_prepare(p, r, s, turns.data()); }); \
    Launch main_launch{BLOCKS, kThreads, kSharedBytes, ORDER, BLOCKS, {}};                       \
    sinter::emulator::launch(main_launch, [&] {                                                  \
      flash_hopper_backward(q, k, v, dy, dk, dv, p, r, s, turns.data(), PARTS);                  \
    });                                                                                          \
    rows_launch.block = kFinishThreads;                                                          \
    sinter::emulator::launch(rows_launch, [&] { flash_hopper_finish(p, s); });                   \
  } while (false)

// O and lse as a forward kernel leaves them.
void set_forward(Data& data, const Expected& want) {
  const Problem& p = data.problem;
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < p.heads; ++h)
      for (int s = 0; s < p.queries; ++s)
        for (int i = 0; i < p.value_dim; ++i)
          (*data.o.storage)[static_cast<size_t>(data.o.at(b, h, s) + i)] =
              bits_of(static_cast<float>(want.o[static_cast<size_t>(
                          ((b * p.heads + h) * p.queries + s) * p.value_dim + i)]),
                      p.f16);
  for (size_t i = 0; i < data.lse.size(); ++i) data.lse[i] = static_cast<float>(want.lse[i]);
}
void check(const Data& data, const Expected& want) {
  CHECK(error_of(data.dq, want.dq, data.problem.f16) < 6e-3);
  CHECK(error_of(data.dk, want.dk, data.problem.f16) < 6e-3);
  CHECK(error_of(data.dv, want.dv, data.problem.f16) < 6e-3);
}

}  // namespace

TEST_CASE("Hopper backward, causal, head size 64, into a packed projection") {
  for (int size : {1, 63, 65, 128, 257}) {
    CAPTURE(size);
    Problem problem;
    problem.queries = problem.keys = size;
    problem.causal = true;
    problem.packed = true;
    problem.heads = 4;
    problem.kv_heads = 2;
    Data data = make_data(problem);
    const Expected want = expect(data);
    RUN_BACKWARD(hopper_back_causal_64, data, want, 2, 1, Order::Shuffled);
    check(data, want);
  }
}

TEST_CASE("Hopper backward, all keys, head size 128") {
  for (int size : {1, 64, 130, 257}) {
    CAPTURE(size);
    Problem problem;
    problem.queries = problem.keys = size;
    problem.dim = problem.value_dim = 128;
    problem.heads = 2;
    problem.kv_heads = 1;
    Data data = make_data(problem);
    const Expected want = expect(data);
    RUN_BACKWARD(hopper_back_full_128, data, want, 1, 1, Order::Forward);
    check(data, want);
  }
}

TEST_CASE("Hopper backward, causal with more or fewer queries than keys") {
  for (int queries : {40, 300}) {
    CAPTURE(queries);
    Problem problem;
    problem.queries = queries;
    problem.keys = 170;
    problem.causal = true;
    problem.garbage = true;
    Data data = make_data(problem);
    const Expected want = expect(data);
    RUN_BACKWARD(hopper_back_causal_64, data, want, 1, 1, Order::Reverse);
    check(data, want);
  }
}

TEST_CASE("Hopper backward, heads shared by blocks that take turns, has the same bits each time") {
  for (int parts : {2, 3}) {
    CAPTURE(parts);
    Problem problem;
    problem.queries = problem.keys = 700;
    problem.heads = 2;
    problem.causal = true;
    Data data = make_data(problem);
    const Expected want = expect(data);
    std::vector<uint16_t> first;
    for (Order order : {Order::Forward, Order::Shuffled}) {
      RUN_BACKWARD(hopper_back_causal_64, data, want, 4, parts, order);
      check(data, want);
      if (first.empty()) first = data.dq_storage;
      CHECK(first == data.dq_storage);
    }
  }
  Problem problem;
  problem.queries = 200;
  problem.keys = 500;
  problem.dim = problem.value_dim = 128;
  Data data = make_data(problem);
  const Expected want = expect(data);
  RUN_BACKWARD(hopper_back_full_128, data, want, 4, 4, Order::Forward);
  check(data, want);
}

TEST_CASE("Hopper backward, sums in the order of arrival") {
  Problem problem;
  problem.queries = problem.keys = 260;
  problem.dim = problem.value_dim = 128;
  problem.causal = true;
  Data data = make_data(problem);
  const Expected want = expect(data);
  RUN_BACKWARD(hopper_back_added_128, data, want, 3, 3, Order::Forward);
  check(data, want);
}

TEST_CASE("Hopper backward, window, softcap, slopes, lengths and dropout, f16") {
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
    const Expected want = expect(data);
    RUN_BACKWARD(hopper_back_options_64, data, want, 2, 1, Order::Shuffled);
    check(data, want);
  }
}

TEST_CASE("Hopper backward, packed documents, odd head and value sizes") {
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
  const Expected want = expect(data);
  RUN_BACKWARD(hopper_back_documents_128, data, want, 2, 2, Order::Forward);
  check(data, want);
}

TEST_CASE("Hopper backward, enormous scores") {
  Problem problem;
  problem.queries = problem.keys = 1;
  problem.causal = true;
  Data data = make_data(problem);
  const auto set = [](const Tensor& t, int d, float value) {
    (*t.storage)[static_cast<size_t>(t.at(0, 0, 0) + d)] = bits_of(value, false);
  };
  for (int d = 0; d < problem.dim; ++d) {
    set(data.q, d, 49920);
    set(data.k, d, 49920);
    set(data.v, d, static_cast<float>(d + 1));
    set(data.dy, d, 1);
  }
  const Expected want = expect(data);
  RUN_BACKWARD(hopper_back_causal_64, data, want, 1, 1, Order::Forward);
  CHECK(error_of(data.dq, want.dq, false) == 0);
  CHECK(error_of(data.dk, want.dk, false) == 0);
}
