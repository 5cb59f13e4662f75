// Whether the checkers of derivatives see faults: every rule of the registry, reverse and forward,
// is made wrong in four ways for each operand, and each of these mutants must fail on some trial of
// its op. What changes no derivative on any trial (of a slope that is zero, or an operand without
// one) is counted apart.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/derivative_check.h>
#include <sinter/tests/ops/directional.h>
#include <sinter/tests/support.h>

#include <algorithm>

namespace sinter::test {
namespace {

enum class Fault : uint8_t { Dropped, Negated, Scaled, Shifted };
constexpr Fault kFaults[] = {Fault::Dropped, Fault::Negated, Fault::Scaled, Fault::Shifted};

std::string_view to_string(Fault fault) {
  switch (fault) {
    case Fault::Dropped:
      return "dropped";
    case Fault::Negated:
      return "negated";
    case Fault::Scaled:
      return "scaled by 1.001";
    case Fault::Shifted:
      return "shifted by 0.001";
  }
  return "";
}

Value made_wrong(Value right, Value operand, Fault fault) {
  switch (fault) {
    case Fault::Dropped:
      return {};
    case Fault::Negated:
      return right ? neg(right) : right;
    case Fault::Scaled:
      return right ? mul(right, full_like(right, 1.001)) : right;
    case Fault::Shifted:
      return right ? add(right, full_like(right, 0.001)) : full_like(operand, 0.001);
  }
  return {};
}

// The op with a fault in its rule for one operand.
OpDef mutant_of(const OpDef& def, size_t operand, Fault fault) {
  OpDef mutant = def;
  mutant.vjp = [right = def.vjp, operand, fault](const VjpContext& c) {
    Grads grads = right(c);
    if (operand < grads.size() && c.needs(operand))
      grads[operand] = made_wrong(grads[operand], c.operand(operand), fault);
    return grads;
  };
  return mutant;
}

// A sample with what its gradients should be, and whether the op's own are zero.
struct Question {
  Sample sample;
  std::vector<ReferenceTensor> inputs;
  Slopes slopes;
  std::vector<double> largest;  // by operand; negative: no float, or absent
};

std::vector<Question> questions(const OpDef& def) {
  std::vector<Question> all;
  for (const Sample& sample : def.samples()) {
    Trial trial = make_trial(def, sample, all.size());
    size_t count = trial.graph->inputs().size();
    Question q{sample, {}, {}, std::vector<double>(sample.operands.size(), -1)};
    Value scalar = make_scalar(trial, q.inputs, 2);
    if (!scalar) continue;
    q.slopes = central_slopes(*trial.graph, count, q.inputs);
    if (!q.slopes.any()) continue;
    std::vector<double> largest;
    auto off = mismatches(*trial.graph, scalar, q.slopes, q.inputs, kFirstOrder, &largest);
    CAPTURE(trial.name);
    CHECK(off.empty());
    for (size_t i = 0; i < q.slopes.at.size(); ++i)
      for (size_t k = 0; k < trial.op->operands().size(); ++k)
        if (trial.op->operand(k) == trial.graph->inputs()[q.slopes.at[i]])
          if (!q.slopes.right[i].data.empty()) q.largest[k] = largest[i];
    all.push_back(std::move(q));
  }
  return all;
}

bool is_killed(const OpDef& mutant, const std::vector<Question>& questions, size_t operand) {
  for (const Question& q : questions) {
    if (operand >= q.largest.size() || q.largest[operand] < 0) continue;
    Trial trial = make_trial(mutant, q.sample, 0);
    std::vector<ReferenceTensor> inputs;
    Value scalar = make_scalar(trial, inputs, 2);
    if (!mismatches(*trial.graph, scalar, q.slopes, inputs, kFirstOrder).empty()) return true;
  }
  return false;
}

// ---- Forward mode

// The op with a fault in its rule for one operand's tangent; shifted, in that of one result.
OpDef forward_mutant_of(const OpDef& def, size_t at, Fault fault) {
  OpDef mutant = def;
  mutant.jvp = [right = def.jvp, at, fault](const JvpContext& c) {
    if (fault == Fault::Shifted) {
      std::vector<Value> tangents = right(c);
      if (at < tangents.size() && is_float(c.result(at).dtype()))
        tangents[at] = made_wrong(tangents[at], c.result(at), Fault::Shifted);
      return tangents;
    }
    std::vector<Value> wrong;
    bool any = false;
    for (size_t i = 0; i < c.op().operands().size(); ++i) {
      wrong.push_back(i == at ? made_wrong(c.tangent(i), {}, fault) : c.tangent(i));
      any = any || wrong.back();
    }
    return any ? right(c.with(std::move(wrong))) : std::vector<Value>(c.op().num_results());
  };
  return mutant;
}

// Whether the tangents of the op on a sample are seen to be off. `changed`, if given, receives
// whether they are others than those of `right`.
bool is_off(const OpDef& def, const Sample& sample, const OpDef* right = nullptr,
            bool* changed = nullptr) {
  Trial trial = make_trial(def, sample, 0);
  Setting s(trial, 21);
  if (s.empty()) return false;
  s.primal = std::make_unique<ReferenceProgram>(s.graph, ReferenceOptions{.f64 = true});
  size_t inputs = s.x.size();
  auto v = s.directions("v", s.wrt, 22);
  for (Value t : tangents(s.graph, s.of, s.wrt, v)) s.graph.add_output("", t);
  Cells out = s.run();
  size_t n = s.of.size();
  Cells direction(s.x.begin() + static_cast<int64_t>(inputs), s.x.end());
  if (right != nullptr) {
    Trial again = make_trial(*right, sample, 0);
    Setting r(again, 21);
    auto w = r.directions("v", r.wrt, 22);
    for (Value t : tangents(r.graph, r.of, r.wrt, w)) r.graph.add_output("", t);
    Cells wanted = r.run();
    for (size_t i = n; i < out.size(); ++i)
      for (size_t k = 0; k < out[i].data.size(); ++k)
        *changed = *changed || cell(out[i], k) != cell(wanted[i], k);
  }
  Counts counts;
  return !differences_off(*s.primal, s, inputs, direction, std::span(out).subspan(n, n), kAlong,
                          true, counts)
              .empty();
}

struct Tally {
  int mutants = 0, killed = 0, alike = 0;
  std::string survivors;

  void count(bool seen, bool changed, const std::string& name) {
    if (!changed) {
      ++alike;
      return;
    }
    ++mutants;
    if (seen)
      ++killed;
    else
      survivors += "\n  " + name;
  }
};

}  // namespace

TEST_CASE("a fault in any op's derivative by any operand is seen") {
  Tally tally;
  for (const OpDef* def : all_ops()) {
    if (!def->vjp) continue;
    auto asked = questions(*def);
    size_t operands = 0;
    for (const Question& q : asked) operands = std::max(operands, q.largest.size());
    for (size_t i = 0; i < operands; ++i) {
      double largest = -1;
      for (const Question& q : asked)
        if (i < q.largest.size()) largest = std::max(largest, q.largest[i]);
      if (largest < 0) continue;
      for (Fault fault : kFaults) {
        OpDef mutant = mutant_of(*def, i, fault);
        // Of a slope that is zero everywhere, all but the last are the slope itself.
        bool changed = fault == Fault::Shifted || largest > 0;
        tally.count(changed && is_killed(mutant, asked, i), changed,
                    fmt::format("{} by operand {}, {}", def->name, i, to_string(fault)));
      }
    }
  }
  MESSAGE(tally.mutants, " mutants of reverse rules, ", tally.killed, " killed; ", tally.alike,
          " more would be no change");
  CAPTURE(tally.survivors);
  CHECK(tally.survivors.empty());
  CHECK(tally.mutants > 400);
}

TEST_CASE("a fault in any op's tangent by any operand is seen") {
  Tally tally;
  for (const OpDef* def : all_ops()) {
    if (!def->jvp) continue;
    auto samples = def->samples();
    size_t operands = 0, results = 0;
    for (const Sample& sample : samples) {
      operands = std::max(operands, sample.operands.size());
      results = std::max(results, make_trial(*def, sample, 0).op->num_results());
    }
    for (Fault fault : kFaults) {
      size_t places = fault == Fault::Shifted ? results : operands;
      for (size_t at = 0; at < places; ++at) {
        OpDef mutant = forward_mutant_of(*def, at, fault);
        bool changed = false, seen = false;
        for (const Sample& sample : samples)
          if (!seen) seen = is_off(mutant, sample, def, &changed);
        tally.count(
            seen, changed,
            fmt::format("{} by {} {}, {}", def->name,
                        fault == Fault::Shifted ? "result" : "operand", at, to_string(fault)));
      }
    }
  }
  MESSAGE(tally.mutants, " mutants of forward rules, ", tally.killed, " killed; ", tally.alike,
          " more would be no change");
  CAPTURE(tally.survivors);
  CHECK(tally.survivors.empty());
  CHECK(tally.mutants > 300);
}

}  // namespace sinter::test
