// Reverse mode of every op of the registry against central differences, element by element, in
// f64: over samples and their variants, values from -8 to 8, axes of extents 1 and 0, and every
// rank from 0 to 4 that the op takes. (directional_test.cpp holds forward mode against differences
// and both modes against each other over the same variants.)

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/derivative_check.h>
#include <sinter/tests/ops/directional.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace sinter::test {
namespace {

// d/dx of <y, w> by element `k` of input `i`, with that of twice the step; elements with weight 0
// are not looked at.
struct Slope {
  double near = 0, far = 0;
};
Slope slope_by(const ReferenceProgram& program, Cells& x, size_t i, size_t k,
               std::span<const ReferenceTensor> weights) {
  const double at = cell(x[i], k), step = 1e-5 * std::max(1.0, std::abs(at));
  auto run = [&](double h) {
    x[i].data[k].f = at + h;
    Cells y = program.run_cells(x);
    x[i].data[k].f = at;
    return y;
  };
  auto difference_of = [&](const Cells& above, const Cells& below) {
    double total = 0;
    for (size_t n = 0; n < weights.size(); ++n)
      for (size_t e = 0; e < weights[n].data.size(); ++e)
        if (double w = cell(weights[n], e); w != 0)
          total += w * (cell(above[n], e) - cell(below[n], e));
    return total;
  };
  return {difference_of(run(step), run(-step)) / (2 * step),
          difference_of(run(2 * step), run(-2 * step)) / (4 * step)};
}

struct Tally {
  std::set<std::string> ops[5];  // by rank
  size_t trials = 0, ones = 0, zeros = 0, mixed = 0, wide = 0, held = 0, passed_over = 0,
         wide_held = 0, wide_passed_over = 0;
};

void count(Tally& tally, const Trial& trial, Variant variant) {
  ++tally.trials;
  size_t rank = rank_of(trial.sample);
  if (rank < std::size(tally.ops)) tally.ops[rank].insert(trial.op->def().name);
  const Shape& first = trial.sample.operands.front().shape;
  bool one = false, zero = false, mixed = trial.op->is("broadcast");
  for (const TensorType& type : trial.sample.operands) {
    mixed = mixed || type.shape != first;
    for (int64_t extent : type.shape) one = one || extent == 1, zero = zero || extent == 0;
  }
  tally.mixed += mixed;
  tally.ones += one;
  tally.zeros += zero;
  tally.wide += variant == Variant::Wide;
}

}  // namespace

TEST_CASE(
    "every op's reverse mode agrees with central differences, at every rank and from -8 to 8") {
  Tally tally;
  for_each_variant([&](Trial& trial, Variant variant) {
    CAPTURE(trial.name);
    if (refuses(trial.op->def())) return;
    const bool inside = variant != Variant::Wide;  // the op's domain
    Setting s(trial, 41);
    if (s.empty()) return;
    Cells y;
    try {
      s.primal = std::make_unique<ReferenceProgram>(s.graph, ReferenceOptions{.f64 = true});
      y = s.primal->run_cells(s.x);
    } catch (const Error&) {
      if (variant == Variant::Own) throw;
      return;  // not what the op takes when executed
    }
    count(tally, trial, variant);
    Cells x = s.x;
    s.directions("w", s.of, 42);
    std::vector<Value> cotangents;
    for (size_t i = x.size(); i < s.graph.inputs().size(); ++i)
      cotangents.push_back(s.graph.inputs()[i]);
    for (size_t n = 0; n < y.size(); ++n)  // nothing is asked of what is not finite
      for (size_t e = 0; e < y[n].data.size(); ++e)
        if (!std::isfinite(cell(y[n], e))) s.x[x.size() + n].data[e].f = 0;
    for (Value g : vjp(s.graph, s.of, cotangents, s.wrt)) s.graph.add_output("", g);
    Cells out = s.run();
    std::span<const ReferenceTensor> weights = std::span(s.x).subspan(x.size());
    for (size_t i = 0; i < s.at.size(); ++i) {
      const ReferenceTensor& grad = out[s.of.size() + i];
      REQUIRE(grad.type.shape == s.wrt[i].shape());
      double scale = 1;
      for (const Cell& c : grad.data)
        if (std::isfinite(c.f)) scale = std::max(scale, std::abs(c.f));
      for (size_t k = 0; k < grad.data.size(); ++k) {
        Slope slope = slope_by(*s.primal, x, s.at[i], k, weights);
        double given = cell(grad, k);
        ++(inside ? tally.held : tally.wide_held);
        // At a kink or a pole, or outside the domain, there is no difference to trust.
        if (!std::isfinite(slope.near) || (!inside && !std::isfinite(given)) ||
            !(std::abs(slope.near - slope.far) <= 0.5 * kFirstOrder * scale)) {
          ++(inside ? tally.passed_over : tally.wide_passed_over);
          continue;
        }
        if (std::abs(given - slope.near) <= kFirstOrder * scale) continue;
        CAPTURE(i);
        CAPTURE(k);
        CHECK(given == slope.near);
      }
    }
  });
  std::string ranks;
  for (size_t r = 0; r < std::size(tally.ops); ++r)
    ranks += fmt::format("{}{} at rank {}", r > 0 ? ", " : "", tally.ops[r].size(), r);
  MESSAGE(tally.trials, " trials: ", tally.ones, " with an extent of 1, ", tally.zeros,
          " with one of 0, ", tally.mixed, " with operands of several shapes, ", tally.wide,
          " from -8 to 8; ops: ", ranks);
  MESSAGE("gradients held against differences: ", tally.held, " inside the domains, ",
          tally.wide_held, " from -8 to 8; without a difference to trust: ", tally.passed_over,
          " and ", tally.wide_passed_over);
  CHECK(tally.passed_over * 100 <= tally.held);
  CHECK(tally.wide_passed_over * 4 <= tally.wide_held);
  for (const auto& ops : tally.ops) CHECK(ops.size() >= 100);
}

}  // namespace sinter::test
