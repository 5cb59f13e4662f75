#pragma once
// How a graph asks for an optimizer's update: the contract between minimize() and the pass
// `optimizer`.
//
// Attributes of the graph:
//
//   loss = "l"              an output or a value: what autodiff differentiates
//   wrt = ["w", "b"]        inputs: the parameters
//   optimizer = "adamw"     the rule (ir/ops/optimizer.h) of every parameter that no other rule
//                           claims; without it the gradients stay outputs `grad_NAME`
//   lr = "lr"               a float scalar of the graph, by name; where there is no such value, the
//                           pass adds an input lr: f32[]
//   beta1 = 0.9, …          attributes of the rule's op, by their names, with its defaults
//   RULE = ["b"]            parameters that the rule of this name updates instead: adamw = ["b"]
//   RULE.lr, RULE.beta1, …  its learning rate, else that of the graph; its op's attributes
//   no_decay = ["b"]        parameters whose weight_decay is 0
//   gradients = "accumulated"   they are not results of autodiff here but the states that the pass
//                           accumulate wrote (see accumulate.h)
//   divisor = "n"           a float scalar of the graph, by name: gradients are divided by it first
//                           (a count of targets)
//   loss_scale = "s"        a state s: f32[] by which the loss was multiplied: gradients are
//                           divided by it too, and it adapts: halved after a step that is not
//                           finite, and doubled after growth_interval = 2000 finite ones in a row,
//                           which the state s.good: i32[] counts. Needs `skipped`. It starts
//                           at 65536
//   clip = 1.0              all gradients are then scaled down together to at most this 2-norm
//   keep_gradients = true   the outputs `grad_NAME`, not clipped, stay beside the update
//   grad_norm = "g"         an output of that name: the 2-norm of all gradients together before
//                           they are clipped, f32[]
//   skipped = "s"           a step whose gradients are not all finite, or whose norm is beyond f32,
//                           changes no parameter, state or count of updates; the state
//                           skipped: i32[] counts such steps, and an output of that name tells it
//
// autodiff takes `loss` away, the optimizer all others. For each parameter NAME the pass reads the
// output `grad_NAME` that autodiff made (and removes it), and adds
//
//   state  RULE.STATE.NAME    for each state of the rule: adamw.m.NAME, adamw.v.NAME
//   state  RULE.t: i32[]      where the rule counts: how many updates have been applied
//
// to the module where they are missing, inputs of those names to the graph, which read them, and
// outputs NAME, RULE.STATE.NAME and RULE.t, which are their next values. NAME itself is declared a
// state too where it is not. The graph `init` of the module, if there is one, gets outputs of zeros
// for the states that it does not set yet.

#include <string>
#include <string_view>

namespace sinter {

// "adamw.m.w"
inline std::string optimizer_state(std::string_view rule, std::string_view state,
                                   std::string_view parameter) {
  return std::string(rule) + "." + std::string(state) + "." + std::string(parameter);
}
inline constexpr double kInitialLossScale = 65536;

// "adamw.t"
inline std::string optimizer_count(std::string_view rule) {
  return std::string(rule) + ".t";
}

}  // namespace sinter
