#pragma once
// Trials of the registry: each sample of an op as a graph of its own, with inputs drawn for it.

#include <sinter/ir/op_def.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/ops/samples.h>

#include <functional>
#include <string>
#include <vector>

namespace sinter::test {

struct Trial {
  std::string name;  // "softmax #2 (f32[2,3,4])", for messages
  Sample sample;
  std::unique_ptr<Module> module;
  Graph* graph = nullptr;
  Op* op = nullptr;
};

// A graph @g whose one op is `def` as the sample has it, with inputs x0, x1, … and outputs y0, …
Trial make_trial(const OpDef& def, const Sample& sample, size_t number);
// Calls `body` for every trial of every op; what it throws fails the test, which goes on.
void for_each_trial(const std::function<void(Trial&)>& body);
enum class Variant : uint8_t {
  Own,       // the sample as it is
  Wide,      // drawn from -8 to 8, whatever the op's domain is
  Reshaped,  // an extent made 1 or 0 wherever it stands, or all operands with one axis more in
             // front; what it draws may not be what the op takes when executed
};
// The sample and its variants, the last ones as far as the op's type rule allows.
std::vector<std::pair<Variant, Sample>> variants(const OpDef& def, const Sample& sample);
// Samples of those ranks (of the operand with the most axes, 0 to 4) that none of the op's samples
// and variants has: axes of extent 2 put in front, or taken away, as far as the op's type rule
// allows.
std::vector<Sample> samples_of_other_ranks(const OpDef& def);
// The most axes that an operand has.
size_t rank_of(const Sample& sample);
// Calls `body` for every variant of every trial and for those of other ranks, as for_each_trial.
void for_each_variant(const std::function<void(Trial&, Variant)>& body);

// Values of a graph's inputs, drawn as the sample asks, rounded to each input's type; the same
// for the same `seed`.
std::vector<ReferenceTensor> draw(const Graph& graph, const Sample& sample, uint64_t seed);

// Appends the sum of every float output times an f64 input w0, w1, … of its shape to the graph: a
// scalar (null when no output is a float), with which vector-Jacobian products become gradients.
Value weigh(Graph& graph, const std::string& prefix);

// Draws values for the inputs of `graph` past those already in `inputs`, f64 in [-1, 1].
void draw_weights(const Graph& graph, std::vector<ReferenceTensor>& inputs, uint64_t seed);

// The largest difference, relative to the larger of 1 and the largest element of `right`; NaN and
// infinities must agree. `where` gets the element.
double difference(const ReferenceTensor& given, const ReferenceTensor& right, size_t& where);

// One graph of a module to run.
struct Job {
  std::string graph;
  std::vector<Tensor> inputs;
};
// What runs graphs on host tensors: the reference, and every device that can be used here. Each is
// held against the f64 reference.
struct Executor {
  std::string name;
  bool costly = false;  // compiles with another compiler: takes a sample of the trials
  // The outputs of each job; the module is compiled once.
  std::function<std::vector<std::vector<Tensor>>(const Module&, std::span<const Job>)> run_all;

  std::vector<Tensor> run(const Graph& graph, std::span<const Tensor> inputs) const {
    Job job{graph.name(), {inputs.begin(), inputs.end()}};
    return run_all(graph.module(), {&job, 1})[0];
  }
};
const std::vector<Executor>& executors();

// Copies `graph`, and the graphs it calls, into `module` under the name `name`.
Graph& copy_into(Module& module, const Graph& graph, const std::string& name);

// Calls `body` on a thread with a stack of 512 KiB, and passes on what it throws.
void on_small_stack(const std::function<void()>& body);

}  // namespace sinter::test
