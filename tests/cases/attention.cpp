// Attention as a program runs it: the same bits every time.

#include <doctest/doctest.h>
#include <sinter/frontends/dsl/program.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/cases/devices.h>

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace sinter;

namespace {

// Values without a pattern that rounding could hide behind.
Tensor waves(const Shape& shape, double pace) {
  std::vector<double> values(static_cast<size_t>(num_elements(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(pace * static_cast<double>(i));
  return Tensor::from_doubles({DType::F32, shape}, values);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.type().bytes())) == 0;
}

}  // namespace

TEST_CASE("AT-10 gradients are the same bits in every run") {
  constexpr int64_t kLength = 1000, kRows = 50, kWidth = 8;
  Module module;
  Graph& graph = module.add_graph("g");
  auto input = [&](const char* name, Shape shape) {
    return graph.add_input(name, {DType::F32, std::move(shape)});
  };
  Value q = input("q", {1, 2, kLength, kWidth}), k = input("k", {1, 1, kLength, kWidth}),
        v = input("v", {1, 1, kLength, kWidth}), table = input("table", {kRows, kWidth}),
        dy = input("dy", {1, 2, kLength, kWidth});
  Value ids = graph.add_input("ids", {DType::I32, {kLength}});
  Value loss = sum(attention(q, k, v, {}, {.causal = true}) * dy);
  loss = loss +
         sum(square(embedding(table, ids)) * reshape(slice_axis(dy, 1, 0, 1), {kLength, kWidth}));
  std::vector<Value> wrt{q, k, v, table};
  std::vector<Value> found = gradients(graph, loss, wrt);
  for (size_t i = 0; i < wrt.size(); ++i) graph.add_output("d_" + wrt[i].name(), found[i]);

  std::vector<int32_t> rows;
  for (int64_t i = 0; i < kLength; ++i) rows.push_back(static_cast<int32_t>(i * i % kRows));
  Bindings in{{"q", waves(q.shape(), 0.37)},      {"k", waves(k.shape(), 0.73)},
              {"v", waves(v.shape(), 1.31)},      {"dy", waves(dy.shape(), 0.11)},
              {"table", waves(table.shape(), 2)}, {"ids", Tensor::from<int32_t>({kLength}, rows)}};
  for (DeviceKind device : {DeviceKind::Cpu, DeviceKind::Cuda}) {
    std::vector<DeviceKind> here = test::devices_here();
    if (std::find(here.begin(), here.end(), device) == here.end()) continue;
    CAPTURE(to_string(device));
    CompileOptions options;
    options.device = device;
    auto session = make_session(compile(module, options));
    Bindings first = session->run("g", in);
    CHECK(first.size() == 4);
    for (int run = 1; run < 30; ++run)
      for (const auto& [name, value] : session->run("g", in))
        CHECK(same_bits(value, first.at(name)));
  }
}
