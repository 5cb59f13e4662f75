#pragma once
// What sinter knows of one op, in one place.
//
// An op is either pointwise (one scalar expression; see pointwise.h) or a struct that meets the
// concept OpStruct. There are no defaults for meaning or derivative: a missing part does not
// compile, and a refusal carries its reason. The registry holds one OpDef per op.

#include <sinter/ir/body.h>
#include <sinter/ir/derivative.h>
#include <sinter/ir/graph.h>
#include <sinter/ir/scalar.h>

#include <concepts>
#include <functional>
#include <optional>
#include <variant>

namespace sinter {

struct OperandSpec {
  enum Kind : uint8_t { Required, Optional, Variadic };  // variadic: one or more, last
  std::string_view name;
  Kind kind = Required;
};
constexpr OperandSpec required(std::string_view name) {
  return {name, OperandSpec::Required};
}
constexpr OperandSpec optional(std::string_view name) {
  return {name, OperandSpec::Optional};
}
constexpr OperandSpec variadic(std::string_view name) {
  return {name, OperandSpec::Variadic};
}

// What fusion and scheduling may assume of an op's iteration space.
enum class OpKind : uint8_t {
  Pointwise,  // one element from the elements at the same place
  View,       // an index map
  Source,     // no tensor operands: literals, iota
  Reduce,     // over some axes
  Prefix,     // runs along an axis, with a result at every place
  Gather,     // reads at data-dependent places
  Scatter,    // adds at data-dependent places
  Random,     // by element index
  Contract,   // matmul: a library or a template
  Composite,  // has an expansion, and is gone after `expand`
  Opaque,     // calls a sub-graph
};
std::string_view to_string(OpKind kind);

// What mixed precision makes of an op; see passes/autocast.h. Pointwise ops are all Wide.
enum class Autocast : uint8_t {
  Wide,    // f32 inside and out: an island between contractions
  Narrow,  // a contraction, or a composite of them that sums in f32 inside
  Inside,  // made of contractions, and expanded before they are chosen
};

// The operands and attributes of an op that does not exist yet, for `infer`.
class InferContext {
 public:
  InferContext(const OpDef& def, const void* attrs, std::span<const Value> operands,
               const SourceLocation& loc, const Graph* callee)
      : def_(def), attrs_(attrs), operands_(operands), loc_(loc), callee_(callee) {}
  size_t num_operands() const { return operands_.size(); }
  bool has(size_t i) const { return i < operands_.size() && operands_[i]; }
  const TensorType& type(size_t i) const { return operands_[i].type(); }
  const Shape& shape(size_t i) const { return type(i).shape; }
  int64_t rank(size_t i) const { return type(i).rank(); }
  // "x (f32[2,3])": the operand as messages name it, by the user's name where there is one.
  std::string describe(size_t i) const;
  template <typename T>
  const T& attrs() const {
    return *static_cast<const T*>(attrs_);
  }
  const OpDef& def() const { return def_; }
  // "OP: MESSAGE" at the op's place.
  template <typename... A>
  Diagnostic error(fmt::format_string<A...> text, A&&... args) const {
    return error_text(fmt::format(text, std::forward<A>(args)...));
  }
  Diagnostic error_text(const std::string& message) const;

  // The sub-graph of an op that calls one; null otherwise.
  const Graph* callee() const { return callee_; }

 private:
  const OpDef& def_;
  const void* attrs_;
  std::span<const Value> operands_;
  const SourceLocation& loc_;
  const Graph* callee_;
};

using Inferred = Result<std::vector<TensorType>>;

// An axis in 0..rank-1, or nullopt when out of range.
std::optional<int64_t> normalize_axis(int64_t axis, int64_t rank);
// Sorted, without repeats; nullopt when one is out of range or named twice.
std::optional<std::vector<int64_t>> normalize_axes(const std::vector<int64_t>& axes, int64_t rank);

// Work per execution. FLOPs count a multiply-add as two.
struct Cost {
  double flops = 0;
  double bytes = 0;
  // Every operand read once and every result written once, `flops_per_element` per result element.
  static Cost bytes_moved(const Op& op, double flops_per_element = 1);
};

// One trial of the registry-wide test.
struct Sample {
  std::vector<TensorType> operands;  // a rank of -1 cannot occur; absent optionals: see `absent`
  AttrMap attrs;
  std::optional<TensorType> result;  // for ops whose annotation decides the type
  std::vector<size_t> absent;        // optional operands left out
  // Float operands are drawn from [low, high], at least `gap` apart from 0 and from each other
  // where `gap` > 0 (kinks, ties).
  double low = -2, high = 2, gap = 0;
  int64_t integer_low = 0, integer_high = 4;  // integer operands, high excluded
};

// Host tensors of the reference: dense row-major cells.
struct ReferenceTensor {
  TensorType type;  // float types are f64 when the f64 reference runs
  std::vector<Cell> data;
};
struct EvaluateContext {
  const Op& op;
  std::span<const ReferenceTensor* const> operands;  // null for absent optionals
  std::vector<ReferenceTensor>& results;             // types set, data sized
  // Called for each bad index: the first one reported is thrown by the executor.
  std::function<void(int64_t position, int64_t value, int64_t low, int64_t high)> bad_index;
};

struct OpDef {
  std::string name;
  std::string doc;  // one line: shapes, dtypes, source of the formula
  std::vector<OperandSpec> operands;
  AttrSchema schema;
  OpKind kind = OpKind::Composite;
  bool has_callee = false;
  std::vector<std::string> callee_attrs;  // attributes (strings) that name further sub-graphs
  Autocast autocast = Autocast::Wide;

  std::function<Inferred(const InferContext&)> infer;
  std::function<Grads(const VjpContext&)> vjp;  // null: refused for `vjp_refusal`
  std::string vjp_refusal;
  // Null: done by the pass as `jvp_answer` says, and without one refused for `jvp_refusal`.
  std::function<std::vector<Value>(const JvpContext&)> jvp;
  std::optional<Jvp> jvp_answer;
  std::string jvp_refusal;
  // Null: through the expansion if `batch_answer` says so, else refused for `batch_refusal`.
  std::function<Batched(const BatchContext&)> batch;
  std::optional<Batch> batch_answer;
  std::string batch_refusal;
  std::function<Cost(const Op&)> cost;
  std::function<std::vector<Sample>()> samples;

  // The meaning: exactly one of expand, or evaluate (with body, or a library for Contract).
  std::function<std::vector<Value>(Graph&, const Op&)> expand;
  std::function<void(EvaluateContext&)> evaluate;
  std::function<BodyNode(const Op&, size_t result, std::span<const IndexExpr> at, BodyBuilder&)>
      body;
  // Pointwise only: the element's function for operands of these dtypes.
  std::function<ScalarFn(std::span<const DType> operands, const void* attrs)> scalar;
  // Pointwise only: the op NAME_dI, d result / d operand I; nullopt when zero everywhere.
  std::function<std::optional<OpDef>(size_t operand)> derivative;
  // The result is finite for every finite input, so 0 times it is 0 (derivatives declared bounded).
  bool bounded = false;
  std::string base;  // for a derivative: the op it was made from
};

// The concept of an op given as a struct. Members, all static:
//   name, doc, operands (array of OperandSpec), kind, autocast, Attrs,
//   infer(const InferContext&) -> Inferred
//   vjp(const VjpContext&) -> Grads, or `static constexpr NonDifferentiable vjp{"reason"}`
//   jvp(const JvpContext&) -> std::vector<Value>, or `static constexpr auto jvp = Jvp::…`, or a
//   NonDifferentiable likewise
//   batch(const BatchContext&) -> Batched, or `static constexpr auto batch = Batch::…`, or
//   `static constexpr Unbatchable batch{"reason"}`
//   cost(const Op&) -> Cost, samples() -> std::vector<Sample>
//   and as its meaning either expand(const Op&) -> std::vector<Value> (builds at the insertion
//   point), or evaluate(EvaluateContext&) with, unless kind is Contract or Opaque,
//   body(const Op&, size_t result, std::span<const IndexExpr>, BodyBuilder&) -> BodyNode.
template <typename T>
concept HasVjp = requires(const VjpContext& c) {
  { T::vjp(c) } -> std::same_as<Grads>;
}
|| requires {
  { T::vjp } -> std::convertible_to<NonDifferentiable>;
};
template <typename T>
concept HasJvpRule = requires(const JvpContext& c) {
  { T::jvp(c) } -> std::same_as<std::vector<Value>>;
};
template <typename T>
concept HasJvp = HasJvpRule<T> || requires {
  { T::jvp } -> std::convertible_to<Jvp>;
} || requires {
  { T::jvp } -> std::convertible_to<NonDifferentiable>;
};
template <typename T>
concept HasBatchRule = requires(const BatchContext& c) {
  { T::batch(c) } -> std::same_as<Batched>;
};
template <typename T>
concept HasBatch = HasBatchRule<T> || requires {
  { T::batch } -> std::convertible_to<Batch>;
} || requires {
  { T::batch } -> std::convertible_to<Unbatchable>;
};
template <typename T>
concept HasExpand = requires(const Op& op) {
  { T::expand(op) } -> std::same_as<std::vector<Value>>;
};
template <typename T>
concept HasEvaluate = requires(EvaluateContext& c) {
  T::evaluate(c);
};
template <typename T>
concept HasBody = requires(const Op& op, std::span<const IndexExpr> at, BodyBuilder& b) {
  { T::body(op, size_t{}, at, b) } -> std::same_as<BodyNode>;
};
template <typename T>
concept HasMeaning = (HasExpand<T> && T::kind == OpKind::Composite) ||
                     (HasEvaluate<T> &&
                      (HasBody<T> || T::kind == OpKind::Contract || T::kind == OpKind::Opaque));
template <typename T>
concept OpStruct = requires(const InferContext& i, const Op& op) {
  typename T::Attrs;
  { T::name } -> std::convertible_to<std::string_view>;
  { T::doc } -> std::convertible_to<std::string_view>;
  {std::span<const OperandSpec>(T::operands)};
  { T::kind } -> std::convertible_to<OpKind>;
  { T::autocast } -> std::convertible_to<Autocast>;
  { T::infer(i) } -> std::same_as<Inferred>;
  { T::cost(op) } -> std::same_as<Cost>;
  { T::samples() } -> std::same_as<std::vector<Sample>>;
}
&&HasVjp<T>&& HasJvp<T>&& HasBatch<T>&& HasMeaning<T>;

// The stock answers of an op to forward mode and batching, as its definition holds them.
void set_jvp(OpDef& def, Jvp answer);
void set_batch(OpDef& def, Batch answer);

template <OpStruct T>
OpDef make_def() {
  OpDef def;
  def.name = T::name;
  def.doc = T::doc;
  def.operands.assign(std::begin(T::operands), std::end(T::operands));
  def.schema = make_schema<typename T::Attrs>();
  def.kind = T::kind;
  def.autocast = T::autocast;
  def.infer = &T::infer;
  if constexpr (requires(const VjpContext& c) { T::vjp(c); })
    def.vjp = &T::vjp;
  else
    def.vjp_refusal = NonDifferentiable(T::vjp).reason;
  if constexpr (HasJvpRule<T>) {
    def.jvp = &T::jvp;
  } else if constexpr (requires { Jvp(T::jvp); }) {
    static_assert(T::jvp != Jvp::through_expand || HasExpand<T>, "the op has no expansion");
    static_assert(
        T::jvp != Jvp::through_vjp || requires(const VjpContext& c) { T::vjp(c); },
        "the op has no VJP rule");
    set_jvp(def, T::jvp);
  } else {
    def.jvp_refusal = NonDifferentiable(T::jvp).reason;
  }
  if constexpr (HasBatchRule<T>) {
    def.batch = &T::batch;
  } else if constexpr (requires { Batch(T::batch); }) {
    static_assert(T::batch != Batch::through_expand || HasExpand<T>, "the op has no expansion");
    set_batch(def, T::batch);
  } else {
    def.batch_refusal = Unbatchable(T::batch).reason;
  }
  def.cost = &T::cost;
  def.samples = &T::samples;
  if constexpr (HasExpand<T>) def.expand = [](Graph&, const Op& op) { return T::expand(op); };
  if constexpr (HasEvaluate<T>) def.evaluate = &T::evaluate;
  if constexpr (HasBody<T>) def.body = &T::body;
  return def;
}

// The names of all sub-graphs of an op: its callee, and those that its attributes name.
std::vector<std::string> callees_of(const Op& op);

class OpRegistry {
 public:
  // All ops of sinter, and those that the program has added; thread-safe. An op is added before the
  // first graph that uses it is made or read.
  static OpRegistry& get();
  // Null when there is none. Derivatives of pointwise ops (`silu_d0`) are made on first use.
  const OpDef* find(std::string_view name) const;
  // Throws InternalError when there is none.
  const OpDef& at(std::string_view name) const;
  // In order of registration, derived ops left out.
  std::vector<const OpDef*> all() const;

  // Throws Error when there is an op of that name.
  void add(OpDef def);
  template <OpStruct T>
  void add() {
    add(make_def<T>());
  }

  OpRegistry();
  ~OpRegistry();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Makes an op at the insertion point of its operands' graph (or of `graph` when there are none).
template <typename Attrs = NoAttrs>
Op& build_op(Graph& graph, std::string_view name, std::vector<Value> operands, Attrs attrs,
             SourceLocation loc) {
  OpInit init;
  init.attrs = std::make_shared<Attrs>(std::move(attrs));
  init.operands = std::move(operands);
  init.loc = std::move(loc);
  return graph.create(OpRegistry::get().at(name), std::move(init));
}

}  // namespace sinter
