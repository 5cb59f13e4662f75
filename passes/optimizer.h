#pragma once
// How a graph asks for an optimizer's update: the contract between minimize() and the pass
// `optimizer`.
//
// Attributes of the graph:
//
//   loss = "l"              an output or a value: what autodiff differentiates
//   wrt = ["w", "b"]        inputs: the parameters
//   optimizer = "adamw"     the rule; without it the gradients stay outputs `grad_NAME`
//   lr = "lr"               a float scalar of the graph, by name; where there is no such value, the
//                           pass adds an input lr: f32[]
//   beta1, beta2, eps, weight_decay    as the op adamw takes them, with its defaults
//   no_decay = ["b"]        parameters whose weight_decay is 0
//   keep_gradients = true   the outputs `grad_NAME` stay beside the update
//   grad_norm = "g"         an output of that name: the 2-norm of all gradients together, f32[]
//
// autodiff takes `loss` away, the optimizer all others. For each parameter NAME the pass reads the
// output `grad_NAME` that autodiff made (and removes it), and adds
//
//   state  adamw.m.NAME, adamw.v.NAME    of the parameter's type
//   state  adamw.t: i32[]                how many updates have been applied
//
// to the module where they are missing, inputs of those names to the graph, which read them, and
// outputs NAME, adamw.m.NAME, adamw.v.NAME and adamw.t, which are their next values. NAME itself is
// declared a state too where it is not. The graph `init` of the module, if there is one, gets
// outputs of zeros for the states that it does not set yet.

#include <string>
#include <string_view>

namespace sinter {

inline std::string adamw_mean_state(std::string_view parameter) {
  return "adamw.m." + std::string(parameter);
}
inline std::string adamw_square_state(std::string_view parameter) {
  return "adamw.v." + std::string(parameter);
}
inline constexpr std::string_view kAdamWCountState = "adamw.t";

}  // namespace sinter
