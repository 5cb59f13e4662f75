// The kernels of codegen/templates/embedding_backward.cuh on the device emulator, launched as the
// IR launches them.

#include <doctest/doctest.h>
#include <sinter/codegen/template_launch.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/passes/native_embedding.h>
#include <sinter/tests/emulator/ptx.h>

#include <cmath>
#include <random>
#include <vector>

using namespace sinter;
namespace emu = sinter::emulator;

namespace device::narrow {
using Element = bf16;
using Sum = float;
using Id = int32_t;
constexpr int kVector = 8;
constexpr int kRows = 32;
inline Sum to_sum(Element e) {
  return bf16_to_f32(e);
}
inline Element to_element(Sum s) {
  return f32_to_bf16(s);
}
#include <sinter/codegen/templates/embedding_backward.cuh>
}  // namespace device::narrow

namespace device::odd {
using Element = float;
using Sum = float;
using Id = int64_t;
constexpr int kVector = 1;
constexpr int kRows = 32;
inline Sum to_sum(Element e) {
  return e;
}
inline Element to_element(Sum s) {
  return s;
}
#include <sinter/codegen/templates/embedding_backward.cuh>
}  // namespace device::odd

namespace {

// The launches of the op, with their arguments as the kernels take them.
template <typename Element, typename Id, typename Sort, typename Runs, typename Finish>
std::vector<Element> run(const std::vector<Id>& ids, const std::vector<Element>& dy, int64_t vocab,
                         int64_t width, DType element, DType id, Sort sort, Runs runs,
                         Finish finish, emu::Order order) {
  Module module;
  Graph& graph = module.add_graph("main");
  auto count = static_cast<int64_t>(ids.size());
  Value i = graph.add_input("ids", {id, {count}});
  Value g = graph.add_input("dy", {element, {count, width}});
  Op& op = *embedding_backward(i, g, vocab).op();
  op.set_native("sorted");
  EmbeddingScratch scratch = embedding_scratch(op);
  REQUIRE(scratch.rows == 32);

  std::vector<unsigned char> memory(static_cast<size_t>(scratch.bytes), 0xee);
  std::vector<Element> result(static_cast<size_t>(vocab * width));
  std::memset(result.data(), 0xee, result.size() * sizeof(Element));
  auto address = [&](const TemplatePointer& p) -> unsigned char* {
    const void* base = p.of == TemplatePointer::Scratch  ? static_cast<void*>(memory.data())
                       : p.of == TemplatePointer::Result ? static_cast<void*>(result.data())
                       : p.index == 0                    ? static_cast<const void*>(ids.data())
                                                         : dy.data();
    return static_cast<unsigned char*>(const_cast<void*>(base)) + p.offset;
  };
  for (const TemplateAction& action : template_actions(dense_call(op, *Target::named("sm_90a")))) {
    if (auto* fill = std::get_if<TemplateFill>(&action)) {
      std::memset(address(fill->to), 0, static_cast<size_t>(fill->words) * 4);
      continue;
    }
    const auto& launch = std::get<TemplateLaunch>(action);
    auto pointer = [&](size_t k) {
      return static_cast<void*>(address(launch.arguments[k].patches[0].pointer));
    };
    auto number = [&](size_t k) {
      int64_t v = 0;
      const auto& bytes = launch.arguments[k].bytes;
      std::memcpy(&v, bytes.data(), bytes.size());
      return v;
    };
    emu::Launch shape{static_cast<unsigned>(launch.grid),
                      static_cast<unsigned>(launch.kernel.block),
                      static_cast<size_t>(launch.kernel.shared_bytes),
                      order,
                      1,
                      {}};
    if (launch.kernel.symbol == "sinter_sort_ids")
      emu::launch(shape, [&] {
        sort(static_cast<const Id*>(pointer(0)), static_cast<int>(number(1)),
             static_cast<int>(number(2)), static_cast<int>(number(3)),
             static_cast<uint32_t*>(pointer(4)), static_cast<int*>(pointer(5)),
             static_cast<uint32_t*>(pointer(6)), static_cast<int*>(pointer(7)));
      });
    else if (launch.kernel.symbol == "sinter_sum_runs")
      emu::launch(shape, [&] {
        runs(static_cast<const uint32_t*>(pointer(0)), static_cast<const int*>(pointer(1)),
             static_cast<int>(number(2)), static_cast<int>(number(3)),
             static_cast<const Element*>(pointer(4)), number(5), static_cast<int>(number(6)),
             static_cast<Element*>(pointer(7)), static_cast<float*>(pointer(8)),
             static_cast<device::int2*>(pointer(9)));
      });
    else
      emu::launch(shape, [&] {
        finish(static_cast<const device::int2*>(pointer(0)), static_cast<const float*>(pointer(1)),
               number(2), number(3), static_cast<Element*>(pointer(4)));
      });
  }
  return result;
}

// Few distinct ids, so that runs cross blocks, some outside of the table.
template <typename Id>
std::vector<Id> some_ids(size_t count, Id vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Id> ids(count);
  for (Id& id : ids) {
    auto r = random();
    id = r % 3 == 0 ? Id{7} : static_cast<Id>(random() % static_cast<unsigned>(vocab));
    if (r % 41 == 1) id = -1;
    if (r % 41 == 2) id = vocab;
  }
  return ids;
}

}  // namespace

TEST_CASE("embedding_backward.cuh: bf16 in vectors, a vocabulary of two digits") {
  const int64_t vocab = 300, width = 24;
  std::vector<int32_t> ids = some_ids<int32_t>(700, vocab, 1);
  std::vector<device::bf16> dy(ids.size() * width);
  std::vector<double> sum(vocab * width), size(vocab * width);
  for (size_t n = 0; n < ids.size(); ++n)
    for (int64_t c = 0; c < width; ++c) {
      float v = static_cast<float>((n * 31 + static_cast<size_t>(c) * 17) % 101) / 16.0f - 3;
      dy[n * width + static_cast<size_t>(c)] = device::f32_to_bf16(v);
      if (ids[n] < 0 || ids[n] >= vocab) continue;
      auto at = static_cast<size_t>(ids[n] * width + c);
      sum[at] += device::bf16_to_f32(dy[n * width + static_cast<size_t>(c)]);
      size[at] += std::fabs(v);
    }
  for (emu::Order order : {emu::Order::Forward, emu::Order::Reverse}) {
    auto y = run(ids, dy, vocab, width, DType::BF16, DType::I32, device::narrow::sinter_sort_ids,
                 device::narrow::sinter_sum_runs, device::narrow::sinter_finish_rows, order);
    for (size_t i = 0; i < y.size(); ++i) {
      INFO("element ", i);
      CHECK(std::fabs(device::bf16_to_f32(y[i]) - sum[i]) <=
            std::fabs(sum[i]) / 256 + 1e-6 * size[i]);
    }
  }
}

TEST_CASE("embedding_backward.cuh: f32, 64-bit ids, a width of 5, exact sums") {
  // Small integers: every order gives the same sum.
  const int64_t vocab = 40, width = 5;
  for (size_t count : {64, 1030}) {
    std::vector<long long> ids = some_ids<long long>(count, vocab, 2);
    std::vector<float> dy(ids.size() * width), sum(vocab * width);
    for (size_t n = 0; n < ids.size(); ++n)
      for (int64_t c = 0; c < width; ++c) {
        dy[n * width + static_cast<size_t>(c)] =
            static_cast<float>((n + static_cast<size_t>(c)) % 9);
        if (ids[n] >= 0 && ids[n] < vocab)
          sum[static_cast<size_t>(ids[n] * width + c)] += dy[n * width + static_cast<size_t>(c)];
      }
    auto y =
        run(ids, dy, vocab, width, DType::F32, DType::I64, device::odd::sinter_sort_ids,
            device::odd::sinter_sum_runs, device::odd::sinter_finish_rows, emu::Order::Shuffled);
    CHECK(y == sum);
  }
}
