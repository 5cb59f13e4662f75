#pragma once
// Describing a model: a module with entry graphs that share parameters.
//
//   Model model;
//   auto network = [](Scope g, Value x) { return nn::linear(g / "out", x, 1); };
//   Scope step = model.graph("step", Mode::Training);
//   Value y = network(step, step.input("x", f32({4, 2})));
//   Scope eval = model.graph("eval");
//   eval.output("y", network(eval, eval.input("x", f32({4, 2}))));
//
// A parameter is declared where it is used, by name. Its first use makes it a state of the module
// and gives it a first value in the graph `init`; every use makes it an input of the graph at hand,
// once. So a model is a function of a scope and its inputs, and means the same in each graph.
// Errors throw sinter::Error with the caller's place.

#include <sinter/ir/graph.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter {

class Model;
class Scope;

inline TensorType f32(Shape shape) {
  return {DType::F32, std::move(shape)};
}
inline TensorType i32(Shape shape) {
  return {DType::I32, std::move(shape)};
}

// Builds the first value of a parameter in the graph `init`.
using Initializer =
    std::function<Value(const Scope& init, const TensorType& type, SourceLocation loc)>;

namespace init {
Initializer constant(double value);
Initializer zeros();
Initializer ones();
Initializer normal(double deviation, double mean = 0);
Initializer uniform(double low, double high);
// Uniform within sqrt(6 / (inputs + outputs)) of 0, for a weight [inputs, outputs] (Glorot and
// Bengio, 2010).
Initializer xavier();
}  // namespace init

enum class Mode : uint8_t {
  Inference,
  Training,      // dropout acts
  TrainingPart,  // the same for a part of the batch; `offset` is the number of parts before it
};

// An entry graph being written, with a prefix for the names of parameters. Cheap to copy; valid
// while its Model lives.
class Scope {
 public:
  // Parameters declared through the result are called "NAME.…" below this scope's own prefix.
  Scope operator/(std::string_view name) const;
  Scope operator/(int64_t number) const;

  // The prefix: "blocks.0.attn"; "" for that of the graph itself.
  std::string name() const;
  // The graph's input of that name; a second call gives the same value. No prefix.
  Value input(std::string_view name, const TensorType& type,
              SourceLocation loc = SourceLocation::here()) const;
  // A parameter (f32) with this scope's prefix; the same value at each use in one graph.
  Value parameter(std::string_view name, Shape shape, const Initializer& initializer,
                  SourceLocation loc = SourceLocation::here()) const;
  // A result of the graph; named like a state, its next value. No prefix.
  void output(std::string name, Value value) const;

  // The inputs of random ops, by convention: u32[2], u32[], i64[].
  Value seed() const;
  Value step() const;
  Value offset() const;
  // Seed, step and offset for a random op on a tensor of that type. In a graph for parts of a batch
  // each part gets the numbers that its elements would have in the whole, whose parts follow one
  // another along the first axis.
  struct Stream {
    Value seed, step, offset;
  };
  Stream stream(const TensorType& type, SourceLocation loc = SourceLocation::here()) const;
  // In a training graph, a share p of x set to 0 and the rest scaled up; elsewhere x itself.
  Value dropout(Value x, double p, SourceLocation loc = SourceLocation::here()) const;

  bool training() const { return mode_ != Mode::Inference; }
  // The parameters that the graph uses so far, in the order of their first use in it.
  std::vector<Value> parameters() const;
  Model& model() const { return *model_; }
  Graph& graph() const { return *graph_; }

 private:
  friend class Model;
  Scope(Model& model, Graph& graph, Mode mode) : model_(&model), graph_(&graph), mode_(mode) {}
  Model* model_;
  Graph* graph_;
  Mode mode_;
  std::string prefix_;
};

class Model {
 public:
  Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // A new entry graph. By convention `step` trains and `eval` judges; `init` is there already.
  Scope graph(std::string name, Mode mode = Mode::Inference);

  const Module& module() const { return module_; }
  Module& module() { return module_; }
  // Names, in the order of declaration.
  const std::vector<std::string>& parameters() const { return parameters_; }
  bool is_parameter(std::string_view name) const;

 private:
  friend class Scope;
  Module module_;
  std::vector<std::string> parameters_;
};

// While it lives, new ops of the graph belong to the recompute segment `name`: the backward pass
// computes their values again instead of keeping them.
class [[nodiscard]] RecomputeScope {
 public:
  RecomputeScope(const Scope& scope, std::string name);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  Graph& graph_;
  std::string saved_;
};
// `auto segment = with_recompute(g, "block");` for the rest of a block.
inline RecomputeScope with_recompute(const Scope& scope, std::string name) {
  return {scope, std::move(name)};
}
// Of the values that the backward pass reads so many bytes are kept, in place of segments: the
// compiler chooses which. Too few are refused when the model is compiled.
void recompute_within(const Scope& scope, int64_t bytes);
// Blocks a segment that make a chain of `blocks` equal ones keep the least: about their root.
int64_t recompute_group(int64_t blocks);

}  // namespace sinter
