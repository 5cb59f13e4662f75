// What expand makes of reductions, by value: splitting and ordering change only the rounding.

#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/pass.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/support.h>

using namespace sinter;

namespace {

// The values of one reduction over the fill rule, whole and as expand splits it for `target`.
// Every partial sum of multiples of 1/32 is exact in f32, so that both agree in bits.
void check_split(const char* op, DType type, Shape shape, std::vector<int64_t> axes,
                 const char* target) {
  std::vector<Cell> results[2];
  bool split = false;
  for (bool expanded : {false, true}) {
    Module module;
    module.target = *Target::named(target);
    Graph& graph = module.add_graph("main");
    Value x = graph.add_input("x", {type, shape});
    ReduceAttrs attrs;
    attrs.axes = {axes};
    graph.add_output("y", build_op(graph, op, {x}, attrs, SourceLocation::here()).result());
    PassManager manager;
    if (expanded) manager.run(module, parse_pipeline("expand,canonicalize,cse,dce"));
    for (const Remark& r : manager.remarks())
      split = split || r.message.find("split") != std::string::npos;
    std::vector<double> data;
    for (int64_t i = 0; i < num_elements(shape); ++i)
      data.push_back(static_cast<double>((37 * i * i + 59 * i + 303) % 97 - 48) / 32);
    Tensor input = Tensor::from_doubles({type, shape}, data);
    results[expanded] = to_cells(Reference().run(graph, {&input, 1})[0], DType::F64).data;
  }
  CAPTURE(op);
  CHECK(split);
  REQUIRE(results[0].size() == results[1].size());
  for (size_t i = 0; i < results[0].size(); ++i) {
    CAPTURE(i);
    CHECK(results[0][i].f == results[1][i].f);
  }
}

}  // namespace

TEST_CASE("expand: split column sums are the same sums") {
  check_split("sum", DType::F32, {4096, 6}, {0}, "sm_90a");
  check_split("sum", DType::F32, {4099, 5}, {0}, "sm_80");
  check_split("max", DType::F32, {4099, 5}, {0}, "sm_90a");
  check_split("sum", DType::F32, {2, 2048, 3}, {0, 1}, "sm_90a");
  check_split("sum", DType::F32, {3, 20000, 2, 5}, {1, 3}, "sm_90a");
}

TEST_CASE("expand: split row sums are the same sums") {
  check_split("sum", DType::F32, {40000}, {}, "sm_90a");
  check_split("sum", DType::F32, {2, 32771}, {1}, "sm_90a");
  check_split("min", DType::F32, {2, 32771}, {1}, "sm_90a");
}

TEST_CASE("expand: NU-03 a split sum of bf16 is rounded once") {
  check_split("sum", DType::BF16, {4096, 3}, {0}, "sm_90a");
  check_split("sum", DType::BF16, {2, 32768}, {1}, "sm_90a");
}
