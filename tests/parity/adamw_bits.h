#pragma once
// Five steps of AdamW from given gradients on two devices: every bit of p, m, v and t the same.

#include <doctest/doctest.h>
#include <sinter/frontends/dsl/optimizer.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/optimizer.h>
#include <sinter/runtime/executable.h>

#include <cmath>
#include <map>

namespace sinter::test {

// The states of a matrix, a vector and a scalar after five steps; gradients between 1e-12 and 1e4.
inline std::map<std::string, Tensor> adamw_states(DeviceKind device) {
  const std::map<std::string, Shape> shapes{{"w", {67, 65}}, {"b", {1031}}, {"s", {}}};
  Model model;
  const Scope step = model.graph("step", Mode::Training);
  Value loss;
  for (const auto& [name, shape] : shapes) {
    const Value p = step.parameter(name, shape, init::normal(0.5));
    const Value term = sum(p * step.input("g." + name, f32(shape)));
    loss = loss ? loss + term : term;
  }
  minimize(loss, step.parameters(), AdamW{.beta2 = 0.95, .weight_decay = 0.1});
  CompileOptions options;
  options.device = device;
  auto session = make_session(compile(model.module(), options));

  uint64_t state = 88172645463325252ULL;
  auto draw = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<double>(state >> 11) * 0x1p-53;
  };
  auto tensor = [&](const Shape& shape, auto&& value) {
    Tensor t(f32(shape));
    for (int64_t i = 0; i < t.size(); ++i) t.as<float>()[i] = static_cast<float>(value());
    return t;
  };
  for (const auto& [name, shape] : shapes)
    session->set_state(name, tensor(shape, [&] { return 4 * draw() - 2; }));
  for (int i = 0; i < 5; ++i) {
    Bindings inputs{{"lr", Tensor::scalar(1e-3f * static_cast<float>(i + 1))}};
    for (const auto& [name, shape] : shapes)
      inputs.emplace("g." + name, tensor(shape, [&] {
                       const double size = std::pow(10.0, 16 * draw() - 12);
                       return draw() < 0.05 ? 0.0 : draw() < 0.5 ? size : -size;
                     }));
    session->run("step", inputs);
  }
  std::map<std::string, Tensor> states;
  for (const State& s : session->executable().module().states)
    states.emplace(s.name, session->state(s.name));
  return states;
}

inline void check_adamw_bits(DeviceKind a, DeviceKind b) {
  const auto left = adamw_states(a), right = adamw_states(b);
  REQUIRE(left.size() == 10);
  for (const auto& entry : left) {
    const std::string& name = entry.first;
    CAPTURE(name);
    CHECK(entry.second.same_bits(right.at(name)));
  }
}

}  // namespace sinter::test
