// What holds for every op of the registry: text, refusals, and executors against the reference.
// There is no list of exceptions; samples drive it all.

#include <sinter/ir/ops/contract.h>
#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>

namespace sinter::test {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The message of the Error that `body` throws; "" when it throws none.
template <typename F>
std::string refusal(F body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// An op like the trial's, in a fresh graph, on operands of these types.
void create_with(const Trial& trial, const std::vector<TensorType>& types) {
  auto module = trial.module->clone();
  Graph& graph = module->add_graph("fresh");
  OpInit init;
  init.attrs = trial_attrs(trial.op->def(), trial.sample);
  init.callee = trial.op->callee();
  for (size_t i = 0; i < types.size(); ++i) {
    bool absent = i < trial.op->operands().size() && !trial.op->operand(i);
    init.operands.push_back(absent ? Value() : graph.add_input(fmt::format("a{}", i), types[i]));
  }
  graph.create(trial.op->def(), std::move(init));
}

// `text` with `insert` among the attributes of the trial's op.
std::string with_attribute(const std::string& text, const Trial& trial, const std::string& insert) {
  size_t graph = text.find("graph @g(");
  size_t op = text.find(" = " + trial.op->def().name, graph);
  if (trial.op->num_results() == 0) op = text.find(trial.op->def().name, graph);
  size_t end = text.find('\n', op);
  size_t colon = text.rfind(" : ", end);
  std::string out = text;
  if (out[colon - 1] == '}')
    out.insert(colon - 1, ", " + insert);
  else
    out.insert(colon, " {" + insert + "}");
  return out;
}

}  // namespace

TEST_CASE("every op has a one-line description and samples of several ranks") {
  for (const OpDef* def : all_ops()) {
    CAPTURE(def->name);
    CHECK(!def->doc.empty());
    CHECK(!contains(def->doc, "\n"));
    CHECK((def->vjp != nullptr) != !def->vjp_refusal.empty());
    CHECK((def->expand != nullptr) != (def->evaluate != nullptr));
    CHECK(def->samples().size() >= 2);
  }
}

TEST_CASE("every op round-trips through text") {
  for_each_trial([](Trial& trial) {
    CAPTURE(trial.name);
    verify(*trial.module);
    for (bool locations : {false, true}) {
      std::string text = print(*trial.module, {locations});
      CAPTURE(text);
      auto read = parse_module(text, "trial.sir");
      CHECK(print(*read, {locations}) == text);
      const Op& op = *read->find("g")->front();
      CHECK(op.def().schema.equal(op.raw_attrs().get(), trial.op->raw_attrs().get()));
      if (locations) CHECK(op.loc() == trial.op->loc());
    }
  });
}

TEST_CASE("every op refuses a wrong number of operands") {
  for_each_trial([](Trial& trial) {
    CAPTURE(trial.name);
    const OpDef& def = trial.op->def();
    std::vector<TensorType> types = trial.sample.operands;
    bool is_variadic = !def.operands.empty() && def.operands.back().kind == OperandSpec::Variadic;
    if (!is_variadic) {
      types.resize(def.operands.size() + 1, TensorType{DType::F32, {2}});
      std::string message = refusal([&] { create_with(trial, types); });
      CHECK(contains(message, def.name + ": takes"));
      CHECK(contains(message, fmt::format("got {}", types.size())));
    }
    size_t needed = 0;
    for (const OperandSpec& spec : def.operands) needed += spec.kind != OperandSpec::Optional;
    if (needed == 0) return;
    types.resize(needed - 1);
    std::string message = refusal([&] { create_with(trial, types); });
    CHECK(contains(message, def.name + ": "));
    CHECK(contains(message, " takes "));
  });
}

TEST_CASE("every op refuses operands of a wrong type") {
  for (const OpDef* def : all_ops()) {
    CAPTURE(def->name);
    Trial trial = make_trial(*def, def->samples()[0], 0);
    size_t refused = 0, tried = 0;
    for (size_t i = 0; i < trial.sample.operands.size(); ++i) {
      if (!trial.op->operand(i)) continue;
      const TensorType& right = trial.sample.operands[i];
      TensorType longer = right, other_dtype = right, boolean{DType::Bool, right.shape};
      longer.shape.push_back(7);
      other_dtype.dtype = right.dtype == DType::F32 ? DType::U32 : DType::F32;
      for (const TensorType& wrong : {longer, other_dtype, boolean}) {
        if (wrong == right) continue;
        auto types = trial.sample.operands;
        types[i] = wrong;
        ++tried;
        std::string message = refusal([&] { create_with(trial, types); });
        if (message.empty()) continue;
        ++refused;
        CAPTURE(message);
        CHECK(contains(message, def->name + ": "));
        // Which operand, or the types that do not go together.
        bool names_one = false;
        for (const TensorType& type : types) names_one = names_one || contains(message, type.str());
        CHECK(names_one);
      }
    }
    // An op of one operand may take any type, if it hands that type on.
    bool takes_any = tried > 0 && refused == 0 && trial.sample.operands.size() == 1 &&
                     trial.op->result().type() == trial.sample.operands[0];
    CHECK((tried == 0 || refused > 0 || takes_any));
  }
}

TEST_CASE("every op refuses unknown attributes and wrong result types") {
  for_each_trial([](Trial& trial) {
    CAPTURE(trial.name);
    const OpDef& def = trial.op->def();
    std::string text = print(*trial.module);
    CAPTURE(text);
    std::string message =
        refusal([&] { parse_module(with_attribute(text, trial, "no_such = 1"), "t.sir"); });
    CHECK(contains(message, "t.sir:"));
    CHECK(contains(message, fmt::format("{} has no attribute 'no_such'", def.name)));

    for (const auto& item : def.schema.items) {
      if (item.is_result_type || trial.sample.attrs.contains(item.name)) continue;
      // No attribute is a list of words unless its default is.
      if (std::holds_alternative<std::vector<std::string>>(item.default_value)) continue;
      std::string wrong = fmt::format("{} = [\"a\", \"b\"]", item.name);
      message = refusal([&] { parse_module(with_attribute(text, trial, wrong), "t.sir"); });
      CAPTURE(wrong);
      CHECK(contains(message, item.name));
    }

    // A result type that the operands do not give.
    if (def.schema.result_type(trial.op->raw_attrs().get()) != nullptr) return;
    std::string type = trial.op->result().type().str();
    size_t at = text.find(" : " + type, text.find("graph @g("));
    REQUIRE(at != std::string::npos);
    text.replace(at, 3 + type.size(), " : f64[17,17]");
    message = refusal([&] { parse_module(text, "t.sir"); });
    CHECK(contains(message, "f64[17,17]"));
    CHECK(contains(message, type));
  });
}

// Relative to the largest element: what one op may lose in a type.
static double tolerance(DType type) {
  switch (type) {
    case DType::F64:
      return 1e-12;
    case DType::F32:
      return 1e-5;
    case DType::F16:
      return 2e-3;
    case DType::BF16:
      return 1.6e-2;
    default:
      return 0;
  }
}

static bool is_narrow(DType type) {
  return compute_type(type) != type;
}

// Trials gathered in one module, so that a compiler starts once for many kernels.
struct Bundle {
  Module module;
  std::vector<Job> jobs;
  std::vector<std::vector<ReferenceTensor>> right;
  std::vector<std::string> names;
  std::vector<bool> narrow;  // bf16 or f16 takes part

  void add(const std::string& name, const Graph& graph, std::span<const ReferenceTensor> inputs) {
    Job job{fmt::format("g{}", jobs.size()), {}};
    bool any = false;
    for (const auto& t : inputs) job.inputs.push_back(from_cells(t));
    for (Value v : graph.inputs()) any = any || is_narrow(v.dtype());
    for (Op& op : graph)
      for (size_t i = 0; i < op.num_results(); ++i) any = any || is_narrow(op.result(i).dtype());
    // Operands of a product may be rounded on reading.
    for (Op& op : graph)
      if (op.def().kind == OpKind::Contract)
        any = any || is_narrow(matmul_compute(op)) || op.attrs<MatmulAttrs>().compute == "tf32";
    copy_into(module, graph, job.graph);
    right.push_back(Reference({.f64 = true}).run_cells(graph, inputs));
    jobs.push_back(std::move(job));
    names.push_back(name);
    narrow.push_back(any);
  }

  void check(size_t i, const std::vector<Tensor>& given) const {
    CAPTURE(names[i]);
    const Graph& graph = *module.find(jobs[i].graph);
    REQUIRE(given.size() == right[i].size());
    for (size_t k = 0; k < given.size(); ++k) {
      CAPTURE(graph.outputs()[k].name);
      REQUIRE(given[k].type() == graph.outputs()[k].value.type());
      size_t where = 0;
      double d = difference(to_cells(given[k], given[k].dtype()), right[i][k], where);
      CAPTURE(where);
      // What is narrow may pass through narrow values inside (an embedding gradient, say).
      double allowed = tolerance(given[k].dtype());
      if (narrow[i] && is_float(given[k].dtype())) allowed = tolerance(DType::BF16);
      CHECK(d <= allowed);
    }
  }

  void run(const Executor& executor) const {
    CAPTURE(executor.name);
    std::vector<std::vector<Tensor>> results;
    try {
      results = executor.run_all(module, jobs);
    } catch (const std::exception& e) {
      std::string message = e.what();
      FAIL_CHECK(message);
    }
    for (size_t i = 0; i < results.size(); ++i) check(i, results[i]);
    if (!results.empty()) return;
    // Which one it was.
    for (size_t i = 0; i < jobs.size(); ++i) {
      Module alone;
      Graph& graph = copy_into(alone, *module.find(jobs[i].graph), "alone");
      try {
        check(i, executor.run(graph, jobs[i].inputs));
      } catch (const std::exception& e) {
        std::string message = names[i] + ": " + e.what();
        FAIL_CHECK(message);
      }
    }
  }
};

// Runs every bundle of what `make` adds for each trial; costly executors take two trials an op.
static void run_in_bundles(const std::function<void(Bundle&, Trial&)>& make) {
  for (const Executor& executor : executors()) {
    auto bundle = std::make_unique<Bundle>();
    std::string op;
    int of_op = 0;
    for_each_trial([&](Trial& trial) {
      of_op = trial.op->def().name == op ? of_op + 1 : 0;
      op = trial.op->def().name;
      if (executor.costly && of_op > 1) return;
      make(*bundle, trial);
      if (bundle->jobs.size() < 64) return;
      bundle->run(executor);
      bundle = std::make_unique<Bundle>();
    });
    if (!bundle->jobs.empty()) bundle->run(executor);
  }
}

TEST_CASE("every op on every executor agrees with the f64 reference") {
  run_in_bundles([](Bundle& bundle, Trial& trial) {
    bundle.add(trial.name, *trial.graph, draw(*trial.graph, trial.sample, 1));
  });
}

TEST_CASE("gradients of every op on every executor agree with the f64 reference") {
  run_in_bundles([](Bundle& bundle, Trial& trial) {
    const OpDef& def = trial.op->def();
    if (!def.vjp && def.vjp_refusal != kThroughExpansion.reason) return;
    auto inputs = draw(*trial.graph, trial.sample, 9);
    std::vector<Value> wrt;
    for (Value v : trial.graph->inputs())
      if (is_float(v.dtype())) wrt.push_back(v);
    Value scalar = weigh(*trial.graph, "w");
    if (!scalar || wrt.empty()) return;
    draw_weights(*trial.graph, inputs, 10);
    auto grads = gradients(*trial.graph, scalar, wrt);
    while (!trial.graph->outputs().empty()) trial.graph->erase_output(0);
    for (Value g : grads) trial.graph->add_output("", g);
    bundle.add(trial.name, *trial.graph, inputs);
  });
}

TEST_CASE("every pointwise op keeps f32 accuracy over the whole exponent range") {
  for (const OpDef* def : all_ops()) {
    if (def->kind != OpKind::Pointwise || !def->scalar || def->operands.size() != 1) continue;
    std::vector<AttrMap> done;
    for (const Sample& sample : def->samples()) {
      if (std::find(done.begin(), done.end(), sample.attrs) != done.end()) continue;
      done.push_back(sample.attrs);
      if (sample.operands.size() != 1 || sample.operands[0].dtype != DType::F32) continue;
      CAPTURE(def->name);
      auto attrs = trial_attrs(*def, sample);
      std::vector<DType> types{DType::F32};
      ScalarFn narrow = def->scalar(types, attrs.get());
      if (narrow.result_type() != DType::F32) continue;
      ScalarFn wide = narrow;
      wide.params[0] = DType::F64;
      for (ExprNode& node : wide.nodes)
        if (is_float(node.type)) node.type = DType::F64;
      std::vector<Cell> x;
      for (int e = -125; e <= 127; ++e)
        for (double mantissa : {1.0, 1.25, 1.7109375})
          for (double sign : {1.0, -1.0}) {
            Cell cell{};
            cell.f = sign * std::ldexp(mantissa, e);
            x.push_back(cell);
          }
      std::vector<Cell> y32(x.size()), y64(x.size());
      const Cell* in = x.data();
      Cell *out32 = y32.data(), *out64 = y64.data();
      auto count = static_cast<int64_t>(x.size());
      evaluate(narrow, count, {&in, 1}, {&out32, 1});
      evaluate(wide, count, {&in, 1}, {&out64, 1});
      for (size_t i = 0; i < x.size(); ++i) {
        double given = y32[i].f, right = y64[i].f;
        CAPTURE(x[i].f);
        CAPTURE(given);
        CAPTURE(right);
        if (std::isnan(right)) {
          CHECK(std::isnan(given));
        } else if (std::abs(right) > 3.4e38) {
          CHECK((std::isinf(given) && given * right > 0));
        } else {
          CHECK(std::abs(given - right) <= 1e-5 * std::abs(right) + 2e-37);
        }
      }
    }
  }
}

}  // namespace sinter::test
