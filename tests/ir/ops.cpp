// The functions that build ops: what they refuse and how they say so, and what they insert.

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <functional>
#include <limits>

namespace {

using namespace sinter;

struct Fixture {
  Module module;
  Graph& graph = module.add_graph("g");
  Value input(const std::string& name, std::string_view type) {
    return graph.add_input(name, *parse_tensor_type(type));
  }
};

// The whole text of the Error that `f` throws; "" when it throws none.
std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.diagnostic().message;
  }
  return "";
}

std::vector<std::string> op_names(Graph& graph) {
  std::vector<std::string> names;
  for (Op& op : graph) names.emplace_back(op.name());
  return names;
}
using Names = std::vector<std::string>;
using List = std::vector<int64_t>;

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "TL-01: shape errors name op, operands, shapes, axis and the user's line") {
  Value x = input("x", "f32[2,4]"), y = input("y", "f32[2]");
  Value a = input("a", "f32[2,3]"), b = input("b", "f32[4,5]"), c = input("c", "f32[3,3]");
  Value v = input("v", "f32[12]");
  int line = 0;
  std::string text = refusal([&] { line = __LINE__, x + y; });
  CHECK(text == fmt::format("{}:{}: error: add: shapes of x (f32[2,4]) and y (f32[2]) do not "
                            "broadcast: axis 1 from the right has 4 and 2",
                            __FILE__, line));
  text = refusal([&] { line = __LINE__, matmul(a, b); });
  CHECK(text == fmt::format("{}:{}: error: matmul: axis 1 of a (f32[2,3]) has extent 3, axis 0 of "
                            "b (f32[4,5]) has 4",
                            __FILE__, line));
  text = refusal([&] { line = __LINE__, reshape(v, {5, 2}); });
  CHECK(text == fmt::format("{}:{}: error: reshape: v (f32[12]) has 12 elements, the result "
                            "f32[5,2] has 10",
                            __FILE__, line));
  text = refusal([&] { line = __LINE__, concat({a, c}, 1); });
  CHECK(text == fmt::format("{}:{}: error: concat: a (f32[2,3]) and c (f32[3,3]) disagree on axis "
                            "0: 2 and 3",
                            __FILE__, line));
}

TEST_CASE_FIXTURE(Fixture, "matmul refuses what it cannot multiply, in the user's shapes") {
  Value x = input("x", "f32[2,3,4]"), w = input("w", "f32[5,6]"), h = input("h", "bf16[4,6]");
  CHECK(message([&] { matmul(x, w); }) ==
        "matmul: axis 2 of x (f32[2,3,4]) has extent 4, axis 0 of w (f32[5,6]) has 5");
  CHECK(message([&] { matmul(x, w, false, true); }) ==
        "matmul: axis 2 of x (f32[2,3,4]) has extent 4, axis 1 of w (f32[5,6]) has 6");
  CHECK(message([&] { matmul(x, input("q", "f32[3,4,5]")); }) ==
        "matmul: x (f32[2,3,4]) and q (f32[3,4,5]) disagree on leading axis 0: 2 and 3");
  CHECK(message([&] { matmul(input("p", "f32[3,4]"), h); }) ==
        "matmul: the dtypes of p (f32[3,4]) and h (bf16[4,6]) differ");
  CHECK(message([&] { matmul(input("u", "f32[3]"), w); }) ==
        "matmul: u (f32[3]) has fewer than 2 axes");
  CHECK(message([&] { matmul(input("i", "i32[5,5]"), w); }) ==
        "matmul: i (i32[5,5]) is not of a float type");
  CHECK(message([&] { matmul_add(w, w, w, {.transpose_a = true}); }) ==
        "matmul: w (f32[5,6]) is added to a product of type f32[6,6]");
}

TEST_CASE_FIXTURE(Fixture, "matmul spreads leading axes") {
  Value x = input("x", "f32[2,3,4]"), w = input("w", "f32[4,5]"), q = input("q", "f32[7,1,4,3]");
  CHECK(matmul(x, w).type().str() == "f32[2,3,5]");
  CHECK(op_names(graph) == Names{"reshape", "matmul", "reshape"});
  CHECK(matmul(x, q).type().str() == "f32[7,2,3,3]");
  CHECK(matmul(w, x, true, true).type().str() == "f32[2,5,3]");
  Value one = matmul(x, input("k", "f32[2,6,4]"), false, true);
  CHECK(one.type().str() == "f32[2,3,6]");
  CHECK(one.op()->operand(0) == x);
}

TEST_CASE_FIXTURE(Fixture, "pointwise functions broadcast and take numbers") {
  Value x = input("x", "f32[2,3]"), row = input("row", "f32[3]"), h = input("h", "bf16[2,3]");
  Value n = input("n", "i32[4]");
  CHECK((x + row).op()->operand(1).op()->is("broadcast"));
  CHECK((row * x).type().str() == "f32[2,3]");
  CHECK((1.0 - h).type().str() == "bf16[2,3]");
  Value three = (n * 3).op()->operand(1);
  CHECK(three.op()->is("full"));
  CHECK(three.type().str() == "i32[4]");
  CHECK(message([&] { n + 0.5; }) == "add: the number 0.5 does not fit n (i32[4])");
  CHECK(message([&] { x + h; }).find("have different element types") != std::string::npos);
  CHECK(message([&] { exp(n); }) == "exp: n (i32[4]) must have a float type");
  CHECK(message([&] { where(x, x, x); }) == "where: x (f32[2,3]) must be bool");
  CHECK(message([&] { logical_not(x); }) == "logical_not: x (f32[2,3]) must have bool");
  CHECK(message([&] { exp(Value()); }) == "exp: operand x is not set");
  CHECK(where(gt(x, 0.0), x, 0.0).type().str() == "f32[2,3]");
  CHECK((-x).op()->is("neg"));
  CHECK((-x).op()->loc().line == __LINE__);
  CHECK(cast(x, DType::F32) == x);
  CHECK(cast(x, DType::BF16).type().str() == "bf16[2,3]");
  CHECK(add_n({x}) == x);
  CHECK(message([&] {
          add_n({x, row});
        }) == "add_n: x (f32[2,3]) and row (f32[3]) have different shapes");
  CHECK(message([&] { clamp(x, 1, 0); }) == "clamp: min 1.0 is not at most max 0.0");
  CHECK(message([&] { gelu(x, "fast"); }) ==
        "gelu: approximate is \"none\" or \"tanh\", not \"fast\"");
}

TEST_CASE_FIXTURE(Fixture, "constants take one spelling, and fit their type") {
  auto value = [](Value v) { return v.op()->attrs<FullAttrs>().value.value; };
  CHECK(std::get<double>(value(full(graph, {DType::F32, {2}}, 3))) == 3.0);
  CHECK(std::get<int64_t>(value(full(graph, {DType::I32, {2}}, 3.0))) == 3);
  CHECK(std::get<int64_t>(value(full(graph, {DType::I64, {}}, INT64_MIN))) == INT64_MIN);
  CHECK(message([&] { full(graph, {DType::I32, {}}, 0.5); }) == "full: value 0.5 does not fit i32");
  CHECK(message([&] {
          full(graph, {DType::I32, {}}, int64_t{1} << 31);
        }) == "full: value 2147483648 does not fit i32");
  CHECK(message([&] { full(graph, {DType::U32, {}}, -1); }) == "full: value -1 does not fit u32");
  CHECK(message([&] { full(graph, {DType::Bool, {}}, 2); }) == "full: value 2 does not fit bool");
  CHECK(message([&] {
          iota(graph, {DType::I32, {4}}, 1);
        }) == "iota: axis 1 is out of range for i32[4]");
  CHECK(iota(graph, {DType::I32, {4, 2}}, -1).op()->attrs<IotaAttrs>().axis.value == 1);
}

TEST_CASE_FIXTURE(Fixture, "views take negative axes and refuse what does not fit") {
  Value x = input("x", "f32[2,3,4]");
  CHECK(transpose(x).type().str() == "f32[2,4,3]");
  CHECK(transpose(x, 0, -1).op()->attrs<PermuteAttrs>().axes.value == List{2, 1, 0});
  CHECK(permute(x, {-1, 0, 1}).type().str() == "f32[4,2,3]");
  CHECK(slice_axis(x, -1, 1, -1).type().str() == "f32[2,3,2]");
  CHECK(slice_axis(x, 1, 0, 3, 2).type().str() == "f32[2,2,4]");
  CHECK(slice_axis(x, 1, 0, 3).op()->attrs<SliceAttrs>().stride.empty());
  CHECK(concat({x, x}, -2).type().str() == "f32[2,6,4]");
  CHECK(pad(x, {0, 1, 0}, {2, 0, 0}, 0, {0, 1, 0}).type().str() == "f32[4,6,4]");
  CHECK(reshape(x, {2, 3, 4}) == x);
  CHECK(message([&] {
          permute(x, {0, 0, 1});
        }) == "permute: axes [0, 0, 1] do not name each axis of x (f32[2,3,4]) once");
  CHECK(message([&] { transpose(x, 0, 3); }) ==
        "transpose: axis 3 is out of range for x (f32[2,3,4])");
  CHECK(message([&] { slice_axis(x, 2, 1, 5); }) ==
        "slice: 1..5 is outside axis 2 of x (f32[2,3,4])");
  CHECK(message([&] { slice_axis(x, 0, 0, 2, 0); }) == "slice: stride 0 of axis 0 is not positive");
  CHECK(message([&] { slice(x, {0}, {1}); }) ==
        "slice: start, limit and stride need 3 entries, one for each axis of x (f32[2,3,4])");
  CHECK(message([&] {
          pad(x, {0, -1, 0}, {0, 0, 0});
        }) == "pad: the padding of axis 1 of x (f32[2,3,4]) is negative");
  CHECK(message([&] {
          concat({x, input("h", "bf16[2,3,4]")}, 0);
        }) == "concat: the dtypes of x (f32[2,3,4]) and h (bf16[2,3,4]) differ");
  CHECK(message([&] { concat({x, x}, 3); }) == "concat: axis 3 is out of range for x (f32[2,3,4])");
  CHECK(message([&] {
          broadcast_to(x, {2, 3, 5});
        }) ==
        "broadcast: x (f32[2,3,4]) does not fit f32[2,3,5]: axis 2 has extent 4, the result's axis "
        "2 has 5");
}

TEST_CASE_FIXTURE(Fixture, "reductions spell out their axes") {
  Value x = input("x", "f32[2,3,4]");
  CHECK(sum(x).type().str() == "f32[]");
  CHECK(sum(x).op()->attrs<ReduceAttrs>().axes.value == List{0, 1, 2});
  CHECK(max(x, {-1, 0}).op()->attrs<ReduceAttrs>().axes.value == List{0, 2});
  CHECK(min(x, {1}, true).type().str() == "f32[2,1,4]");
  CHECK(message([&] { sum(x, {3}); }) ==
        "sum: axes [3] do not fit x (f32[2,3,4]): each must be in -3..2 and named once");
  CHECK(message([&] {
          max(x, {1, -2});
        }) == "max: axes [1, -2] do not fit x (f32[2,3,4]): each must be in -3..2 and named once");
  CHECK(message([&] { sum(input("b", "bool[2]")); }) == "sum: b (bool[2]) is not numeric");
}

TEST_CASE_FIXTURE(Fixture, "embedding and index checks") {
  Value table = input("table", "f32[10,4]"), ids = input("ids", "i64[2,3]");
  CHECK(embedding(table, ids).type().str() == "f32[2,3,4]");
  CHECK(message([&] { embedding(table, table); }) ==
        "embedding: table (f32[10,4]) is not i32 or i64");
  CHECK(message([&] { embedding(ids, table); }) ==
        "embedding: table (f32[10,4]) is not i32 or i64");
  CHECK(message([&] { embedding(input("e", "f32[0,4]"), ids); }) ==
        "embedding: e (f32[0,4]) has no rows");
  Op& lookup = *embedding(table, ids).op();
  CHECK(bad_index_message(lookup, 3, 12, 0, 10) ==
        "embedding: index 12 at position 3 is outside 0..9");
  Op& check = *check_index(ids, 0, 4, -100, "cross_entropy: target", "row").op();
  CHECK(bad_index_message(check, 1, 4, 0, 4) == "cross_entropy: target 4 at row 1 is outside 0..3");
  CHECK(message([&] { check_index(ids, 2, 2); }) == "check_index: no index lies in 2..1");
}

TEST_CASE_FIXTURE(Fixture, "random ops get sites of their own") {
  Value seed = input("seed", "u32[2]"), step = input("step", "u32[]"),
        offset = input("offset", "i64[]");
  Value x = input("x", "f32[2,3]");
  CHECK(dropout(x, seed, step, offset, 0) == x);
  CHECK(dropout(x, seed, step, offset, 0.5).op()->attrs<DropoutAttrs>().site == 0);
  CHECK(random_normal(seed, step, offset, x.type()).op()->attrs<RandomAttrs>().site == 1);
  CHECK(dropout(x, seed, step, offset, 1).op()->attrs<DropoutAttrs>().site == 2);
  CHECK(module.next_random_site == 3);
  CHECK(message([&] { dropout(x, seed, step, offset, 1.5); }) ==
        "dropout: p = 1.5 is not in [0, 1]");
  CHECK(message([&] { dropout(x, seed, step, offset, std::nan("")); }) ==
        "dropout: p = nan is not in [0, 1]");
  CHECK(message([&] { dropout(x, step, step, offset, 0.5); }) ==
        "dropout: step (u32[]) must be u32[2]");
  CHECK(message([&] {
          random_uniform(seed, step, offset, {DType::I32, {2}});
        }) == "random_uniform: the result i32[2] is not of a float type");
}

TEST_CASE_FIXTURE(Fixture, "derivatives are the plain ones where the slope is plain") {
  Value x = input("x", "f32[2,3]"), y = input("y", "f32[2,3]"), dy = input("dy", "f32[2,3]");
  Value c = input("c", "bool[2,3]");
  auto grads = [&](Value of) {
    const Op& op = *of.op();
    return op.def().vjp(VjpContext(op, {dy}, std::vector<bool>(op.operands().size(), true)));
  };
  CHECK(grads(x + y)[0] == dy);
  CHECK(grads(x + y)[1] == dy);
  CHECK(grads(add_n({x, y, x}))[2] == dy);
  CHECK(grads(x - y)[0] == dy);
  CHECK(grads(x - y)[1].op()->is("neg"));
  CHECK(grads(-x)[0].op()->is("neg"));
  CHECK(grads(x * y)[0].op()->operand(1) == y);
  Grads chosen = grads(where(c, x, y));
  CHECK_FALSE(chosen[0]);
  CHECK(chosen[1].op()->is("where"));
  CHECK(chosen[1].op()->operand(1) == dy);
  CHECK(chosen[2].op()->operand(2) == dy);
  CHECK_FALSE(grads(stop_gradient(x))[0]);
  CHECK(grads(cast(x, DType::BF16))[0].type().str() == "f32[2,3]");
}

TEST_CASE_FIXTURE(Fixture, "the four transpositions of matmul differentiate without a transpose") {
  for (bool ta : {false, true})
    for (bool tb : {false, true}) {
      Graph& g = module.add_graph(fmt::format("m{}{}", ta, tb));
      Value a = g.add_input("a", {DType::F32, ta ? Shape{3, 2} : Shape{2, 3}});
      Value b = g.add_input("b", {DType::F32, tb ? Shape{4, 3} : Shape{3, 4}});
      Value dy = g.add_input("dy", {DType::F32, {2, 4}});
      const Op& op = *matmul(a, b, ta, tb).op();
      Grads grads = op.def().vjp(VjpContext(op, {dy}, {true, true}));
      CHECK(grads[0].type() == a.type());
      CHECK(grads[1].type() == b.type());
      CHECK(op_names(g) == Names{"matmul", "matmul", "matmul"});
    }
}

TEST_CASE("bounded partials are finite for every finite input, and right in f32") {
  size_t checked = 0;
  for (const OpDef* base : OpRegistry::get().all()) {
    if (!base->derivative) continue;
    for (size_t i = 0; i < base->operands.size(); ++i) {
      const OpDef* def = OpRegistry::get().find(fmt::format("{}_d{}", base->name, i));
      if (def == nullptr || !def->bounded || def->operands.size() != 1) continue;
      for (const Sample& sample : base->samples()) {
        if (sample.operands[0] != TensorType{DType::F32, {}}) continue;
        std::shared_ptr<void> attrs = def->schema.make();
        for (size_t k = 0; k < def->schema.items.size(); ++k)
          if (auto at = sample.attrs.find(def->schema.items[k].name); at != sample.attrs.end())
            def->schema.items[k].set(attrs.get(), k, at->second);
        const DType f32 = DType::F32, f64 = DType::F64;
        ScalarFn narrow = def->scalar({&f32, 1}, attrs.get());
        ScalarFn wide = def->scalar({&f64, 1}, attrs.get());
        for (int exponent = -149; exponent < 128; ++exponent)
          for (double mantissa : {-1.0, -1.375, 1.0, 1.625}) {
            Cell x{}, got{}, right{};
            x.f = std::ldexp(mantissa, exponent);
            x = canonical(f32, x);
            const Cell* in = &x;
            Cell *out_got = &got, *out_right = &right;
            evaluate(narrow, 1, {&in, 1}, {&out_got, 1});
            evaluate(wide, 1, {&in, 1}, {&out_right, 1});
            CAPTURE(def->name);
            CAPTURE(x.f);
            CHECK(std::isfinite(got.f));
            CHECK(std::fabs(got.f - right.f) <= 1e-6 * std::max(1.0, std::fabs(right.f)));
            ++checked;
          }
      }
    }
  }
  CHECK(checked > 5000);
}

TEST_CASE("AD-16: sigmoid, silu and softplus far from zero, in f32") {
  struct Row {
    std::string_view op;
    double at[6];
  };
  const double kAt[] = {-120, -89, -20, 0, 20, 120};
  const Row rows[] = {
      {"sigmoid_d0", {0, 0, 2.061154e-9, 0.25, 2.061154e-9, 0}},
      {"silu", {0, -1.982354e-37, -4.122307e-8, 0, 20, 120}},
      {"silu_d0", {0, 0, -3.916192e-8, 0.5, 1, 1}},
      {"softplus", {0, 0, 2.061154e-9, 0.6931472, 20, 120}},
      {"softplus_d0", {0, 0, 2.061154e-9, 0.5, 1, 1}},
  };
  for (const Row& row : rows) {
    const OpDef& def = OpRegistry::get().at(row.op);
    const DType f32 = DType::F32;
    ScalarFn fn = def.scalar({&f32, 1}, def.schema.make().get());
    for (size_t i = 0; i < 6; ++i) {
      Cell x{}, y{};
      x.f = kAt[i];
      const Cell* in = &x;
      Cell* out = &y;
      evaluate(fn, 1, {&in, 1}, {&out, 1});
      CAPTURE(row.op);
      CAPTURE(kAt[i]);
      CHECK(std::fabs(y.f - row.at[i]) <= 1e-35 + 1e-6 * std::fabs(row.at[i]));
    }
  }
}

TEST_CASE("NU-05: NaN survives relu, maximum, clamp and max") {
  auto run = [](std::string_view name, std::vector<double> args) {
    const OpDef& def = OpRegistry::get().at(name);
    std::vector<DType> types(args.size(), DType::F32);
    std::vector<Cell> cells(args.size());
    std::vector<const Cell*> in;
    for (size_t i = 0; i < args.size(); ++i) cells[i].f = args[i], in.push_back(&cells[i]);
    Cell y{};
    Cell* out = &y;
    evaluate(def.scalar(types, def.schema.make().get()), 1, in, {&out, 1});
    return y.f;
  };
  const double nan = std::nan("");
  CHECK(std::isnan(run("relu", {nan})));
  CHECK(run("relu", {-1}) == 0);
  CHECK(run("relu", {2}) == 2);
  CHECK(std::isnan(run("maximum", {nan, 1})));
  CHECK(std::isnan(run("maximum", {1, nan})));
  CHECK(std::isnan(run("minimum", {nan, 1})));
  CHECK(std::isnan(run("clamp", {nan})));
  CHECK(run("grad_mul", {0, std::numeric_limits<double>::infinity()}) == 0);
  CHECK(run("grad_mul", {0, nan}) == 0);
  CHECK(run("zero_mul", {0, nan}) == 0);
  CHECK(run("zero_mul", {nan, 0}) == 0);
  CHECK(std::isnan(run("zero_mul", {1, nan})));

  Module module;
  Graph& graph = module.add_graph("g");
  Op& op = *max(graph.add_input("x", {DType::F32, {3}})).op();
  ReferenceTensor x{{DType::F32, {3}}, std::vector<Cell>(3)};
  double values[] = {1, nan, 2};
  for (size_t i = 0; i < 3; ++i) x.data[i].f = values[i];
  const ReferenceTensor* operands[] = {&x};
  std::vector<ReferenceTensor> results{{{DType::F32, {}}, std::vector<Cell>(1)}};
  EvaluateContext context{op, operands, results, {}};
  op.def().evaluate(context);
  CHECK(std::isnan(results[0].data[0].f));
}
