#pragma once
// Pointwise ops: one lambda over typed scalar expressions says everything.
//
//   r.add(pointwise("silu", "x * sigmoid(x)", {"x"}, Domain::Float,
//                   [](PointwiseArgs x) { return x[0] / (1.0 + exp(-x[0])); }));
//
// All operands have one shape; the type rule is: operands of one dtype from the domain, the result
// of the same dtype, unless the op states otherwise. bf16 and f16 operands are widened to f32, and
// the result rounded once. The derivative by operand i becomes an op of its own, NAME_dI, of those
// operands (and the result, if a stated partial reads it) that it uses; VJP and
// JVP multiply it by the cotangent or tangent with grad_mul; the JVP with zero_mul where the
// partial is declared bounded: as in reverse mode, an operand that a maximum, a clamp or a factor
// of 0 leaves out takes part in nothing, though its own tangent be infinite. Batched it is the op
// itself, on operands that all carry the new axis.

#include <sinter/ir/op_def.h>

namespace sinter {

enum class Domain : uint8_t { Float, Integer, Numeric, Bool, Any };

using PointwiseArgs = std::span<const Expr>;

class PointwiseBuilder {
 public:
  using Body = std::function<Expr(PointwiseArgs x, const void* attrs)>;
  using Partial = std::function<Expr(PointwiseArgs x, Expr y, const void* attrs)>;

  PointwiseBuilder(std::string_view name, std::string_view doc,
                   std::vector<std::string_view> operands, Domain domain, Body body);
  // The result is bool (comparisons).
  PointwiseBuilder& gives_bool();
  // This operand is bool whatever the others are (the condition of `where`).
  PointwiseBuilder& bool_operand(size_t i);
  // The last operand may be repeated (add_n).
  PointwiseBuilder& variadic_last();
  // d result / d operand i, for numerical reasons or to read the result.
  PointwiseBuilder& partial(size_t i, Partial p);
  // The partial by operand i is finite for every finite input.
  PointwiseBuilder& bounded(size_t i);
  PointwiseBuilder& not_differentiable(std::string_view reason);
  // A VJP of its own in place of the one made from the partials; the JVP must then be stated too.
  PointwiseBuilder& vjp(std::function<Grads(const VjpContext&)> rule);
  PointwiseBuilder& jvp(std::function<std::vector<Value>(const JvpContext&)> rule);
  PointwiseBuilder& jvp(Jvp answer);
  PointwiseBuilder& flops(double per_element);
  // Where the test harness may draw operands; see Sample.
  PointwiseBuilder& sample_range(double low, double high, double gap = 0);
  // Attribute values of the samples; several calls give several samples.
  PointwiseBuilder& sample_attrs(AttrMap attrs);
  template <typename Attrs>
  PointwiseBuilder& with_attrs() {
    schema_ = make_schema<Attrs>();
    return *this;
  }
  // Extra refusals when the op is built, e.g. for attribute values.
  PointwiseBuilder& also_check(std::function<std::optional<std::string>(const void* attrs)> check);
  OpDef build() const;

 private:
  // The element's function in the compute types of `operands`, unwrapped.
  Expr core(PointwiseArgs x, const void* attrs) const { return body_(x, attrs); }
  // d core / d operand i, with the result for stated partials; invalid when zero everywhere.
  Expr slope(size_t i, PointwiseArgs x, Expr y, const void* attrs) const;
  std::vector<DType> example_types() const;
  std::optional<OpDef> derivative(size_t i) const;
  // The partial by operand i of an op in a graph: a constant, or a value that is built for it.
  struct Partially {
    double constant = 0;
    Value value;  // null: the constant
  };
  Partially partial_of(const Op& op, size_t i) const;
  Grads generic_vjp(const VjpContext& c) const;
  std::vector<Value> generic_jvp(const JvpContext& c) const;
  std::vector<Sample> make_samples() const;

  std::string name_, doc_;
  std::vector<std::string_view> operands_;
  Domain domain_;
  Body body_;
  AttrSchema schema_;
  bool gives_bool_ = false, variadic_ = false;
  std::vector<bool> bool_operand_, bounded_;
  std::vector<Partial> partials_;
  std::string refusal_, base_;
  std::function<Grads(const VjpContext&)> vjp_;
  std::function<std::vector<Value>(const JvpContext&)> jvp_;
  std::optional<Jvp> jvp_answer_;
  bool bounded_result_ = false;
  double flops_ = 1, low_ = -2, high_ = 2, gap_ = 0;
  std::vector<AttrMap> sample_attrs_;
  std::function<std::optional<std::string>(const void*)> check_;
};

template <typename F>
PointwiseBuilder pointwise(std::string_view name, std::string_view doc,
                           std::vector<std::string_view> operands, Domain domain, F body) {
  if constexpr (std::is_invocable_v<F, PointwiseArgs>)
    return {name, doc, std::move(operands), domain,
            [body](PointwiseArgs x, const void*) { return body(x); }};
  else
    return {name, doc, std::move(operands), domain, body};
}
// With attributes: the lambda takes (PointwiseArgs, const Attrs&).
template <typename Attrs, typename F>
PointwiseBuilder pointwise_with(std::string_view name, std::string_view doc,
                                std::vector<std::string_view> operands, Domain domain, F body) {
  PointwiseBuilder b(name, doc, std::move(operands), domain,
                     [body](PointwiseArgs x, const void* attrs) {
                       return body(x, *static_cast<const Attrs*>(attrs));
                     });
  b.with_attrs<Attrs>();
  return b;
}

}  // namespace sinter
