// What `where` did not choose leaves nothing, of any order: every op of the registry on operands
// that are NaN, infinite, 0 or out of its domain, behind a mask that is false. Excepted are ops
// that sum products over whole rows: a NaN among what they sum is one of the sum.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/tests/ops/directional.h>
#include <sinter/tests/support.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace sinter::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

// Operand values, by turns: poles, kinks, ends of domains, overflow.
constexpr double kOdd[] = {0, kNan, -1, kInfinity, 1, -kInfinity, 800, -800, 2, 1e200};

void replace_outputs(Graph& graph, const std::vector<Value>& values) {
  while (!graph.outputs().empty()) graph.erase_output(0);
  for (Value v : values) graph.add_output("", v);
}

std::vector<Value> held(const Graph& graph) {
  std::vector<Value> values;
  for (const GraphOutput& o : graph.outputs()) values.push_back(o.value);
  return values;
}

enum class Order : uint8_t {
  Reverse,
  Forward,
  ForwardOverReverse,
  ReverseOverReverse,
  ReverseOverForward,
  ForwardOverForward
};
constexpr Order kOrders[] = {Order::Reverse,
                             Order::Forward,
                             Order::ForwardOverReverse,
                             Order::ReverseOverReverse,
                             Order::ReverseOverForward,
                             Order::ForwardOverForward};
constexpr std::string_view kNames[] = {"reverse",
                                       "forward",
                                       "forward over reverse",
                                       "reverse over reverse",
                                       "reverse over forward",
                                       "forward over forward"};

// The derivatives of that order of the outputs as the graph's outputs; inputs are appended for the
// directions and the cotangents.
void differentiate(Setting& s, Order order) {
  auto v = s.directions("v", s.wrt, 32);
  auto w = s.directions("w", s.of, 33);
  replace_outputs(s.graph, s.of);
  bool reverse = order == Order::Reverse || order == Order::ForwardOverReverse ||
                 order == Order::ReverseOverReverse;
  replace_outputs(s.graph,
                  reverse ? vjp(s.graph, s.of, w, s.wrt) : tangents(s.graph, s.of, s.wrt, v));
  if (order == Order::ForwardOverReverse || order == Order::ForwardOverForward)
    replace_outputs(s.graph, tangents(s.graph, held(s.graph), s.wrt, v));
  if (order == Order::ReverseOverReverse || order == Order::ReverseOverForward)
    replace_outputs(s.graph, vjp(s.graph, held(s.graph), reverse ? v : w, s.wrt));
}

// The trial with its results behind a mask that is false.
Trial masked_trial(const OpDef& def, const Sample& sample, size_t number) {
  Trial trial = make_trial(def, sample, number);
  std::vector<Value> masked;
  for (Value y : held(*trial.graph))
    if (is_float(y.dtype()))
      masked.push_back(where(full(*trial.graph, {DType::Bool, y.shape()}, 0), y, 0.0));
  replace_outputs(*trial.graph, masked);
  return trial;
}

// Contractions, and what norms and softmaxes say of whole rows.
const std::set<std::string_view> kSumsProducts = {
    "matmul",        "dot_general", "einsum",      "linear",
    "conv1d",        "conv2d",      "attention",   "attention_backward",
    "muon",          "softmax",     "log_softmax", "softmax_backward",
    "cross_entropy", "layer_norm",  "rms_norm",    "l2_normalize",
    "batch_norm",    "group_norm",  "custom_vjp"};

}  // namespace

TEST_CASE("AD-01 of every order: nothing comes of what a mask hides, whatever it is") {
  std::map<std::string, std::set<std::string>> leaks;
  size_t held_count = 0, ops = 0;
  for (const OpDef* def : all_ops()) {
    if (!def->vjp && def->vjp_refusal != kThroughExpansion.reason) continue;
    if (kSumsProducts.count(def->name) != 0) continue;
    ++ops;
    auto samples = def->samples();
    for (size_t number = 0; number < samples.size(); ++number)
      for (size_t shift = 0; shift < 3; ++shift)
        for (Order order : kOrders) {
          std::string name(def->name);
          try {
            Trial trial = masked_trial(*def, samples[number], number);
            Setting s(trial, 5);
            if (s.empty()) continue;
            size_t at = 0;
            for (size_t i : s.at)
              for (Cell& c : s.x[i].data)
                c.f = kOdd[(shift * 3 + at++ * (1 + shift)) % std::size(kOdd)];
            differentiate(s, order);
            for (const ReferenceTensor& t : s.run())
              for (const Cell& c : t.data) {
                ++held_count;
                if (c.f != 0) leaks[name].insert(std::string(kNames[static_cast<size_t>(order)]));
              }
          } catch (const Error& e) {
            leaks[name].insert(e.what());
          }
        }
  }
  MESSAGE(held_count, " derivatives of ", ops, " ops behind a mask, in six orders");
  for (const auto& [op, orders] : leaks) {
    std::string text = op + ":";
    for (const std::string& o : orders) text += " " + o + ";";
    FAIL_CHECK(text);
  }
}

}  // namespace sinter::test
