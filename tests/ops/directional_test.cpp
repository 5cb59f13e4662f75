// Derivatives of every op of the registry along a direction, in f64, over samples and their
// variants: forward mode against central differences and against reverse mode, and the second
// derivatives in all four orders of composition against each other.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/directional.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>

namespace sinter::test {
namespace {

void report(const std::vector<Off>& elements) {
  for (const Off& off : elements) {
    CAPTURE(off.output);
    CAPTURE(off.where);
    CHECK(off.here == off.expected);
  }
}

double dot(std::span<const ReferenceTensor> a, std::span<const ReferenceTensor> b) {
  double total = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t k = 0; k < a[i].data.size(); ++k)
      if (cell(a[i], k) != 0 && cell(b[i], k) != 0) total += cell(a[i], k) * cell(b[i], k);
  return total;
}
double size_of_dot(std::span<const ReferenceTensor> a, std::span<const ReferenceTensor> b) {
  double total = 1;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t k = 0; k < a[i].data.size(); ++k)
      if (double t = std::abs(cell(a[i], k) * cell(b[i], k)); std::isfinite(t)) total += t;
  return total;
}

// Whether the op refuses derivatives; then the refusal must name it, its reason and its line.
bool checked_refusal(const Setting& s, const Op& op) {
  const OpDef& def = op.def();
  bool reverse = !def.vjp && def.vjp_refusal != kThroughExpansion.reason;
  bool forward = !def.jvp && !def.jvp_answer;
  CHECK(reverse == forward);
  if (!forward) return false;
  std::string message;
  try {
    tangents(s.graph, s.of, s.wrt, s.wrt);
  } catch (const Error& e) {
    message = e.what();
  }
  CAPTURE(message);
  CHECK(message.find(def.name) != std::string::npos);
  CHECK(message.find(def.jvp_refusal) != std::string::npos);
  CHECK(message.find("trial.cpp:7") != std::string::npos);
  return true;
}

// Whether the op takes the inputs when executed: a variant may draw an index out of range.
bool runs(Setting& s, Variant variant) {
  try {
    s.primal = std::make_unique<ReferenceProgram>(s.graph, ReferenceOptions{.f64 = true});
    s.primal->run_cells(s.x);
    return true;
  } catch (const Error&) {
    if (variant == Variant::Own) throw;
    return false;
  }
}

// Cotangents are 0 where the result is not finite: nothing is asked of such an element.
void mask(Setting& s, size_t inputs, size_t first) {
  Cells y = s.primal->run_cells({s.x.data(), inputs});
  for (size_t i = 0; i < y.size(); ++i)
    for (size_t k = 0; k < y[i].data.size(); ++k)
      if (!std::isfinite(cell(y[i], k))) s.x[first + i].data[k].f = 0;
}

}  // namespace

TEST_CASE("every op's forward mode agrees with central differences and with reverse mode") {
  Counts inside_counts, wide_counts;
  for_each_variant([&](Trial& trial, Variant variant) {
    bool inside = variant != Variant::Wide;  // the op's domain
    CAPTURE(trial.name);
    Setting s(trial, 21);
    if (s.empty() || !runs(s, variant) || checked_refusal(s, *trial.op)) return;
    size_t inputs = s.x.size();
    auto v = s.directions("v", s.wrt, 22);
    size_t weights = s.x.size();
    auto w = s.directions("w", s.of, 23);
    mask(s, inputs, weights);
    // Their order, because an expansion in place replaces the results.
    for (Value t : tangents(s.graph, s.of, s.wrt, v)) s.graph.add_output("", t);
    std::vector<Value> of;
    for (size_t i = 0; i < s.of.size(); ++i) of.push_back(s.graph.outputs()[i].value);
    for (Value g : vjp(s.graph, of, w, s.wrt)) s.graph.add_output("", g);
    Cells out = s.run();
    size_t n = s.of.size(), m = s.wrt.size();
    std::span all(out);
    Cells direction(s.x.begin() + static_cast<int64_t>(inputs),
                    s.x.begin() + static_cast<int64_t>(weights));
    Counts counts;
    report(differences_off(*s.primal, s, inputs, direction, all.subspan(n, n), kAlong, inside,
                           counts));
    Counts& total = inside ? inside_counts : wide_counts;
    total.held += counts.held;
    total.passed_over += counts.passed_over;
    // <J v, w> = <v, w J>
    std::span weight = std::span(s.x).subspan(weights, n);
    double left = dot(all.subspan(n, n), weight), right = dot(all.subspan(2 * n, m), direction);
    double scale =
        size_of_dot(all.subspan(n, n), weight) + size_of_dot(all.subspan(2 * n, m), direction);
    if (std::isfinite(left) || inside) CHECK(std::abs(left - right) <= 1e-10 * scale);
  });
  MESSAGE("elements held against differences: ", inside_counts.held, " inside the domains, ",
          wide_counts.held,
          " from -8 to 8; without a difference to trust: ", inside_counts.passed_over, " and ",
          wide_counts.passed_over);
  CHECK(inside_counts.passed_over * 100 <= inside_counts.held);
  CHECK(wide_counts.passed_over * 4 <= wide_counts.held);
}

// With L(x) = <f(x), w>, reverse mode gives its gradient g(x); its Hessian H times v is the
// derivative of g along v (forward over reverse), the gradient of <g, v> (reverse over reverse),
// and that of <J v, w> (reverse over forward); <H v, v> is the second derivative along v (forward
// over forward).
TEST_CASE("every op's second derivatives agree in every order of composition") {
  for_each_variant([&](Trial& trial, Variant variant) {
    bool inside = variant != Variant::Wide;  // the op's domain
    CAPTURE(trial.name);
    {
      Setting s(trial, 31);
      if (s.empty() || !runs(s, variant) || checked_refusal(s, *trial.op)) return;
    }
    enum { ForwardOverReverse, ReverseOverReverse, ReverseOverForward, ForwardOverForward };
    Cells results[4];
    double along = 0;
    for (int order = 0; order < 4; ++order) {
      CAPTURE(order);
      Trial copy = make_trial(trial.op->def(), trial.sample, 0);
      Setting s(copy, 31);
      runs(s, variant);
      size_t inputs = s.x.size();
      auto v = s.directions("v", s.wrt, 32);
      size_t weights = s.x.size();
      auto w = s.directions("w", s.of, 33);
      mask(s, inputs, weights);
      auto outputs_only = [&](const std::vector<Value>& values) {
        while (!s.graph.outputs().empty()) s.graph.erase_output(0);
        for (Value value : values) s.graph.add_output("", value);
      };
      // Held as outputs, values survive being expanded in place.
      auto held = [&] {
        std::vector<Value> values;
        for (const GraphOutput& o : s.graph.outputs()) values.push_back(o.value);
        return values;
      };
      outputs_only(s.of);
      if (order == ForwardOverReverse || order == ReverseOverReverse)
        outputs_only(vjp(s.graph, s.of, w, s.wrt));
      else
        outputs_only(tangents(s.graph, s.of, s.wrt, v));
      std::unique_ptr<ReferenceProgram> first;
      if (order == ForwardOverReverse)
        first = std::make_unique<ReferenceProgram>(s.graph, ReferenceOptions{.f64 = true});
      switch (order) {
        case ForwardOverReverse:
        case ForwardOverForward:
          outputs_only(tangents(s.graph, held(), s.wrt, v));
          break;
        case ReverseOverReverse:
          outputs_only(vjp(s.graph, held(), v, s.wrt));
          break;
        case ReverseOverForward:
          outputs_only(vjp(s.graph, held(), w, s.wrt));
          break;
      }
      results[order] = s.run();
      std::span direction = std::span(s.x).subspan(inputs, s.wrt.size());
      if (order == ForwardOverReverse) {
        Counts ignored;
        Cells d(direction.begin(), direction.end());
        report(differences_off(*first, s, s.x.size(), d, results[order], 1e-5, inside, ignored));
        along = dot(results[order], direction);
      }
      if (order == ForwardOverForward) {
        std::span weight = std::span(s.x).subspan(weights, s.of.size());
        double twice = dot(results[order], weight);
        double scale = size_of_dot(results[order], weight) +
                       size_of_dot(results[ForwardOverReverse], direction);
        if (inside || std::isfinite(along)) CHECK(std::abs(twice - along) <= 1e-8 * scale);
        continue;
      }
      for (size_t i = 0; i < results[order].size(); ++i) {
        CAPTURE(i);
        size_t where = 0;
        double d = difference(results[order][i], results[ForwardOverReverse][i], where);
        if (inside || std::isfinite(d)) CHECK(d <= 1e-8);
      }
    }
  });
}

}  // namespace sinter::test
