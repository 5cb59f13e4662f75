// Batching of every op of the registry, against a loop over the examples.

#include <sinter/ir/ops.h>
#include <sinter/passes/vmap.h>
#include <sinter/tests/ops/trial.h>
#include <sinter/tests/support.h>

#include <algorithm>

namespace sinter::test {
namespace {

using Cells = std::vector<ReferenceTensor>;

// The rows of `parts`, one behind the other.
ReferenceTensor stacked(std::span<const ReferenceTensor> parts, const TensorType& type) {
  ReferenceTensor all{type, {}};
  for (const ReferenceTensor& part : parts)
    all.data.insert(all.data.end(), part.data.begin(), part.data.end());
  return all;
}

// Holds the graph, batched in the inputs for which `batched` says so, against a loop.
void check_batch(const Trial& trial, const std::vector<bool>& batched, int64_t size) {
  const Graph& graph = *trial.graph;
  std::vector<Cells> examples;
  for (int64_t n = 0; n < std::max<int64_t>(size, 1); ++n)
    examples.push_back(draw(graph, trial.sample, 41 + static_cast<uint64_t>(n)));
  std::vector<std::string> names;
  for (size_t i = 0; i < batched.size(); ++i)
    if (batched[i]) names.push_back(graph.inputs()[i].name());
  CAPTURE(fmt::format("{} of {}", fmt::join(names, ", "), size));
  auto module = trial.module->clone();
  Graph& many = vmap(*module->find("g"), "many", names, size);
  Cells inputs;
  for (size_t i = 0; i < batched.size(); ++i) {
    if (!batched[i]) {
      inputs.push_back(examples[0][i]);
      continue;
    }
    Cells column;
    for (int64_t n = 0; n < size; ++n) column.push_back(examples[static_cast<size_t>(n)][i]);
    inputs.push_back(stacked(column, many.inputs()[i].type()));
  }
  Cells given = Reference({.f64 = true}).run_cells(many, inputs);
  std::vector<Cells> loop(given.size());
  for (int64_t n = 0; n < size; ++n) {
    Cells one = examples[0];
    for (size_t i = 0; i < batched.size(); ++i)
      if (batched[i]) one[i] = examples[static_cast<size_t>(n)][i];
    Cells results = Reference({.f64 = true}).run_cells(graph, one);
    for (size_t k = 0; k < results.size(); ++k) loop[k].push_back(std::move(results[k]));
  }
  for (size_t k = 0; k < given.size(); ++k) {
    CAPTURE(k);
    ReferenceTensor right = stacked(loop[k], given[k].type);
    REQUIRE(right.data.size() == given[k].data.size());
    size_t where = 0;
    CHECK(difference(given[k], right, where) <= 1e-12);
  }
}

}  // namespace

TEST_CASE("every op batched agrees with a loop over the examples") {
  for_each_variant([](Trial& trial, Variant variant) {
    if (variant == Variant::Wide) return;
    CAPTURE(trial.name);
    size_t count = trial.graph->inputs().size();
    if (count == 0) return;
    try {
      for (uint64_t seed : {41, 42})
        Reference({.f64 = true}).run_cells(*trial.graph, draw(*trial.graph, trial.sample, seed));
    } catch (const Error&) {
      if (variant == Variant::Own) throw;
      return;  // a variant may draw what the op does not take when executed
    }
    const OpDef& def = trial.op->def();
    if (!def.batch && !def.batch_answer) {
      std::string message;
      std::string name = trial.graph->inputs()[0].name();
      try {
        vmap(*trial.graph, "many", std::vector{name}, 2);
      } catch (const Error& e) {
        message = e.what();
      }
      CAPTURE(message);
      CHECK(message.find(def.name + " at trial.cpp:7") != std::string::npos);
      CHECK(message.find(def.batch_refusal) != std::string::npos);
      CHECK(trial.module->find("many") == nullptr);
      return;
    }
    std::vector<bool> all(count, true);
    check_batch(trial, all, 2);
    if (variant != Variant::Own) return;
    check_batch(trial, all, 1);
    check_batch(trial, all, 0);
    if (count == 1) return;
    for (size_t i = 0; i < count; ++i) {
      std::vector<bool> one(count, false);
      one[i] = true;
      check_batch(trial, one, 2);
    }
  });
}

}  // namespace sinter::test
