// Whether the checker of derivatives sees faults: every reverse rule of the registry is made wrong
// in four ways for each operand, and each of these mutants must fail on some trial of its op.

#include <sinter/ir/ops.h>
#include <sinter/tests/ops/derivative_check.h>
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

}  // namespace

TEST_CASE("a fault in any op's derivative by any operand is seen") {
  int mutants = 0, killed = 0, alike = 0;
  std::string survivors;
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
        // Of a slope that is zero everywhere, these are the slope itself.
        if (fault != Fault::Shifted && largest == 0) {
          ++alike;
          continue;
        }
        ++mutants;
        OpDef mutant = mutant_of(*def, i, fault);
        if (is_killed(mutant, asked, i))
          ++killed;
        else
          survivors += fmt::format("\n  {} by operand {}, {}", def->name, i, to_string(fault));
      }
    }
  }
  MESSAGE(mutants, " mutants, ", killed, " killed; ", alike, " more would be no change");
  CAPTURE(survivors);
  CHECK(survivors.empty());
  CHECK(mutants > 400);
}

}  // namespace sinter::test
