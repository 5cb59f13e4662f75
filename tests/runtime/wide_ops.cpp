// Ops of more operands than a kernel takes arguments.

#include <doctest/doctest.h>
#include <sinter/ir/numeric.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/pass.h>
#include <sinter/runtime/reference.h>

#include <cstring>
#include <functional>

using namespace sinter;

namespace {

constexpr int kWide = 1000;

// One op of kWide operands, expanded, against the op itself, bit for bit.
void check_expanded(DType type, const std::function<Value(const std::vector<Value>&)>& build) {
  Module module;
  Graph& graph = module.add_graph("g");
  std::vector<Value> values;
  std::vector<Tensor> inputs;
  for (int i = 0; i < kWide; ++i) {
    TensorType of{type, {2, 3}};
    values.push_back(graph.add_input(fmt::format("x{}", i), of));
    inputs.push_back(is_float(type) ? fill(of, i) : fill_mod(of, i, 1000));
  }
  graph.add_output("y", build(values));
  Tensor before = Reference().run(graph, inputs)[0];
  PassManager manager;
  manager.run(module, parse_pipeline("expand"));
  CHECK(graph.size() > 2);
  for (Op& op : graph) CHECK(op.operands().size() <= 448);
  Tensor after = Reference().run(graph, inputs)[0];
  REQUIRE(after.type() == before.type());
  CHECK(std::memcmp(before.data(), after.data(), static_cast<size_t>(before.type().bytes())) == 0);
}

}  // namespace

TEST_CASE("expand: a sum of hundreds of terms is several, and rounds once") {
  for (DType type : {DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32}) {
    CAPTURE(to_string(type));
    check_expanded(type, [](const std::vector<Value>& x) { return add_n(x); });
  }
}

TEST_CASE("expand: a concat of hundreds of values is a tree") {
  for (int64_t axis : {0, 1})
    check_expanded(DType::BF16, [axis](const std::vector<Value>& x) { return concat(x, axis); });
}
