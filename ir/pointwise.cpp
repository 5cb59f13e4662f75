#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/source.h>
#include <sinter/ir/pointwise.h>

#include <algorithm>

namespace sinter {
namespace {

bool in_domain(DType type, Domain domain) {
  switch (domain) {
    case Domain::Float:
      return is_float(type);
    case Domain::Integer:
      return !is_float(type) && type != DType::Bool;
    case Domain::Numeric:
      return type != DType::Bool;
    case Domain::Bool:
      return type == DType::Bool;
    case Domain::Any:
      return true;
  }
  return false;
}

std::string_view domain_text(Domain domain) {
  switch (domain) {
    case Domain::Float:
      return "a float type";
    case Domain::Integer:
      return "an integer type";
    case Domain::Numeric:
      return "a float or integer type";
    case Domain::Bool:
      return "bool";
    case Domain::Any:
      return "any type";
  }
  return "";
}

}  // namespace

PointwiseBuilder::PointwiseBuilder(std::string_view name, std::string_view doc,
                                   std::vector<std::string_view> operands, Domain domain, Body body)
    : name_(name),
      doc_(doc),
      operands_(std::move(operands)),
      domain_(domain),
      body_(std::move(body)),
      schema_(make_schema<NoAttrs>()),
      bool_operand_(operands_.size()),
      bounded_(operands_.size()),
      partials_(operands_.size()) {}

PointwiseBuilder& PointwiseBuilder::gives_bool() {
  return gives_bool_ = true, *this;
}
PointwiseBuilder& PointwiseBuilder::bool_operand(size_t i) {
  return bool_operand_[i] = true, *this;
}
PointwiseBuilder& PointwiseBuilder::variadic_last() {
  return variadic_ = true, *this;
}
PointwiseBuilder& PointwiseBuilder::partial(size_t i, Partial p) {
  return partials_[i] = std::move(p), *this;
}
PointwiseBuilder& PointwiseBuilder::bounded(size_t i) {
  return bounded_[i] = true, *this;
}
PointwiseBuilder& PointwiseBuilder::not_differentiable(std::string_view reason) {
  return refusal_ = reason, *this;
}
PointwiseBuilder& PointwiseBuilder::vjp(std::function<Grads(const VjpContext&)> rule) {
  return vjp_ = std::move(rule), *this;
}
PointwiseBuilder& PointwiseBuilder::jvp(std::function<std::vector<Value>(const JvpContext&)> rule) {
  return jvp_ = std::move(rule), *this;
}
PointwiseBuilder& PointwiseBuilder::jvp(Jvp answer) {
  return jvp_answer_ = answer, *this;
}
PointwiseBuilder& PointwiseBuilder::flops(double n) {
  return flops_ = n, *this;
}
PointwiseBuilder& PointwiseBuilder::sample_range(double low, double high, double gap) {
  low_ = low;
  high_ = high;
  gap_ = gap;
  return *this;
}
PointwiseBuilder& PointwiseBuilder::sample_attrs(AttrMap attrs) {
  return sample_attrs_.push_back(std::move(attrs)), *this;
}
PointwiseBuilder& PointwiseBuilder::also_check(
    std::function<std::optional<std::string>(const void*)> check) {
  return check_ = std::move(check), *this;
}

Expr PointwiseBuilder::slope(size_t i, PointwiseArgs x, Expr y, const void* attrs) const {
  // Operands past the last one named repeat it.
  size_t spec = std::min(i, operands_.size() - 1);
  if (partials_[spec]) return partials_[spec](x, y, attrs);
  ScalarBuilder b;
  std::vector<Expr> params;
  for (Expr e : x) params.push_back(b.param(e.type()));
  Expr value = core(params, attrs);
  ScalarFn d = differentiate(b.finish({&value, 1}), static_cast<int>(i));
  if (d.results.empty()) return {};
  std::vector<Expr> args(x.begin(), x.end());
  args.push_back(y);
  return x[0].builder()->inline_fn(d, args)[0];
}

std::vector<DType> PointwiseBuilder::example_types() const {
  std::vector<DType> types;
  for (bool b : bool_operand_) types.push_back(b ? DType::Bool : DType::F64);
  return types;
}

std::optional<OpDef> PointwiseBuilder::derivative(size_t i) const {
  if (i >= operands_.size() || bool_operand_[i] || gives_bool_ || variadic_) return std::nullopt;
  // Which operands, and whether the result, the partial reads; under any of the sample attributes.
  size_t n = operands_.size();
  std::vector<bool> used(n + 1, false);
  bool nonzero = false;
  std::vector<AttrMap> trials = sample_attrs_;
  trials.push_back({});
  for (const AttrMap& trial : trials) {
    std::shared_ptr<void> attrs = schema_.make();
    for (size_t k = 0; k < schema_.items.size(); ++k)
      if (auto it = trial.find(schema_.items[k].name); it != trial.end())
        schema_.items[k].set(attrs.get(), k, it->second);
    ScalarBuilder b;
    std::vector<Expr> x;
    for (DType type : example_types()) x.push_back(b.param(type));
    Expr y = b.param(DType::F64);
    Expr d = slope(i, x, y, attrs.get());
    if (!d.valid()) continue;
    nonzero = true;
    ScalarFn fn = b.finish({&d, 1});
    for (size_t k = 0; k <= n; ++k) used[k] = used[k] || fn.uses_param(static_cast<int>(k));
  }
  if (!nonzero) return std::nullopt;
  std::vector<std::string_view> names;
  std::vector<size_t> from;  // base operand of each operand; n: the result
  for (size_t k = 0; k <= n; ++k) {
    if (!used[k]) continue;
    names.push_back(k < n ? operands_[k] : "y");
    from.push_back(k);
  }
  if (from.empty()) {  // a constant slope still needs a shape
    names.push_back(operands_[i]);
    from.push_back(i);
  }
  PointwiseBuilder base = *this;
  PointwiseBuilder d(fmt::format("{}_d{}", name_, i),
                     fmt::format("the derivative of {} by {}", name_, operands_[i]), names,
                     Domain::Float, [base, i, n, from](PointwiseArgs given, const void* attrs) {
                       DType type = given[0].type();
                       for (Expr e : given)
                         if (e.type() != DType::Bool) type = e.type();
                       std::vector<Expr> x(n);
                       ScalarBuilder& b = *given[0].builder();
                       Expr y = b.literal(type, 0.0);
                       for (size_t k = 0; k < n; ++k)
                         x[k] = base.bool_operand_[k] ? b.literal_integer(DType::Bool, 0)
                                                      : b.literal(type, 0.0);
                       for (size_t k = 0; k < from.size(); ++k)
                         (from[k] < n ? x[from[k]] : y) = given[k];
                       Expr slope = base.slope(i, x, y, attrs);
                       return slope.valid() ? slope : b.literal(type, 0.0);
                     });
  for (size_t k = 0; k < from.size(); ++k)
    d.bool_operand_[k] = from[k] < n && bool_operand_[from[k]];
  d.schema_ = schema_;
  d.flops_ = 2 * flops_;
  d.base_ = base_.empty() ? name_ : base_;
  d.bounded_result_ = bounded_[i];
  d.sample_attrs_ = sample_attrs_;
  d.low_ = low_;
  d.high_ = high_;
  d.gap_ = gap_;
  return d.build();
}

PointwiseBuilder::Partially PointwiseBuilder::partial_of(const Op& op, size_t i) const {
  ScalarBuilder b;
  std::vector<Expr> x;
  for (Value v : op.operands()) x.push_back(b.param(compute_type(v.dtype())));
  Expr y = b.param(compute_type(op.result().dtype()));
  Expr d = slope(i, x, y, op.raw_attrs().get());
  if (!d.valid()) return {};
  const ExprNode& n = d.get();
  if (n.fn == Fn::Literal) return {n.literal.f, {}};
  // For bf16 and f16 in f32, so that the product with it rounds but once.
  auto operand = [&](size_t k) { return detail::widen(op.operand(k)); };
  auto result = [&] {
    if (!detail::is_narrow(op.result())) return op.result();
    OpInit init;
    init.attrs = op.raw_attrs();
    for (size_t k = 0; k < op.operands().size(); ++k) init.operands.push_back(operand(k));
    init.loc = op.loc();
    return op.graph().create(op.def(), std::move(init)).result();
  };
  if (n.fn == Fn::Param) {
    auto k = static_cast<size_t>(n.param);
    return {0, k < op.operands().size() ? op.operand(k) : result()};
  }
  const OpDef& def = OpRegistry::get().at(fmt::format("{}_d{}", name_, i));
  OpInit init;
  init.attrs = op.raw_attrs();
  for (const OperandSpec& spec : def.operands) {
    auto at = std::find(operands_.begin(), operands_.end(), spec.name);
    init.operands.push_back(
        at == operands_.end() ? result() : operand(static_cast<size_t>(at - operands_.begin())));
  }
  init.loc = op.loc();
  return {0, op.graph().create(def, std::move(init)).result()};
}

namespace {

// A cotangent or tangent times a partial, in the wider of their types; null for 0. `chosen`: a
// partial of 0 says that the operand was not chosen, and takes nothing of a tangent that is not a
// number.
Value times(Value t, double constant, Value partial, bool chosen = false) {
  if (partial && partial.dtype() != t.dtype()) {
    t = detail::widen(t);
    partial = detail::widen(partial);
  }
  if (partial) return chosen ? zero_mul(t, partial) : grad_mul(t, partial);
  if (constant == 0.0) return {};
  if (constant == 1.0) return t;
  if (constant == -1.0) return neg(t);
  return mul(t, full_like(t, constant));
}

}  // namespace

Grads PointwiseBuilder::generic_vjp(const VjpContext& c) const {
  Value dy = c.grad();
  Grads grads(c.op().operands().size());
  if (!dy || !is_float(dy.dtype())) return grads;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!c.needs(i) || !is_float(c.operand(i).dtype())) continue;
    Partially p = partial_of(c.op(), i);
    grads[i] = times(dy, p.constant, p.value);
    if (grads[i]) grads[i] = cast(grads[i], dy.dtype());
  }
  return grads;
}

std::vector<Value> PointwiseBuilder::generic_jvp(const JvpContext& c) const {
  std::vector<Value> terms;
  for (size_t i = 0; i < c.op().operands().size(); ++i) {
    if (!c.tangent(i)) continue;
    Partially p = partial_of(c.op(), i);
    bool bounded = bounded_[std::min(i, bounded_.size() - 1)];
    if (Value term = times(c.tangent(i), p.constant, p.value, bounded)) terms.push_back(term);
  }
  if (terms.empty()) return {Value()};
  DType type = c.op().result().dtype();
  if (terms.size() == 1) return {cast(terms[0], type)};
  for (Value& term : terms) term = detail::widen(term);
  return {cast(terms.size() == 2 ? add(terms[0], terms[1]) : add_n(std::move(terms)), type)};
}

std::vector<Sample> PointwiseBuilder::make_samples() const {
  std::vector<Sample> out;
  std::vector<DType> types;
  for (DType t :
       {DType::F32, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U32, DType::Bool})
    if (in_domain(t, domain_)) types.push_back(t);
  std::vector<AttrMap> trials = sample_attrs_;
  if (trials.empty()) trials.push_back({});
  const std::vector<Shape> shapes = {{2, 3}, {}, {5}, {2, 1, 3}, {0, 4}, {1, 2, 3, 2}};
  size_t arity = variadic_ ? operands_.size() + 2 : operands_.size();
  for (size_t t = 0; t < types.size(); ++t)
    for (const AttrMap& attrs : trials)
      for (size_t s = 0; s < (t == 0 ? shapes.size() : 1); ++s) {
        Sample sample;
        for (size_t i = 0; i < arity; ++i) {
          bool is_bool = bool_operand_[std::min(i, operands_.size() - 1)];
          sample.operands.push_back({is_bool ? DType::Bool : types[t], shapes[s]});
        }
        sample.attrs = attrs;
        sample.low = low_;
        sample.high = high_;
        sample.gap = gap_;
        out.push_back(std::move(sample));
      }
  return out;
}

OpDef PointwiseBuilder::build() const {
  PointwiseBuilder self = *this;
  OpDef def;
  def.name = name_;
  def.doc = doc_;
  def.kind = OpKind::Pointwise;
  def.schema = schema_;
  def.base = base_;
  def.bounded = bounded_result_;
  for (size_t i = 0; i < operands_.size(); ++i)
    def.operands.push_back(variadic_ && i + 1 == operands_.size() ? variadic(operands_[i])
                                                                  : required(operands_[i]));
  def.infer = [self](const InferContext& c) -> Inferred {
    size_t last = self.operands_.size() - 1;
    std::optional<size_t> typed;  // the operand that sets the dtype
    for (size_t i = 0; i < c.num_operands(); ++i) {
      if (c.shape(i) != c.shape(0))
        return c.error("{} and {} have different shapes", c.describe(0), c.describe(i));
      if (self.bool_operand_[std::min(i, last)]) {
        if (c.type(i).dtype != DType::Bool) return c.error("{} must be bool", c.describe(i));
        continue;
      }
      if (!in_domain(c.type(i).dtype, self.domain_))
        return c.error("{} must have {}", c.describe(i), domain_text(self.domain_));
      if (!typed)
        typed = i;
      else if (c.type(i).dtype != c.type(*typed).dtype)
        return c.error("{} and {} have different element types", c.describe(*typed), c.describe(i));
    }
    if (self.check_)
      if (auto message = self.check_(&c.attrs<char>())) return c.error_text(*message);
    DType type = self.gives_bool_ || !typed ? DType::Bool : c.type(*typed).dtype;
    return std::vector<TensorType>{{type, c.shape(0)}};
  };
  def.scalar = [self](std::span<const DType> operands, const void* attrs) {
    ScalarBuilder b;
    std::vector<Expr> x;
    for (DType type : operands) x.push_back(b.param(type));
    std::vector<Expr> wide;
    for (Expr e : x) wide.push_back(cast(e, compute_type(e.type())));
    Expr y = self.core(wide, attrs);
    DType result = DType::Bool;
    size_t last = self.operands_.size() - 1;
    if (!self.gives_bool_)
      for (size_t i = 0; i < operands.size(); ++i)
        if (!self.bool_operand_[std::min(i, last)]) result = operands[i];
    y = cast(y, result);
    return b.finish({&y, 1});
  };
  def.evaluate = [scalar = def.scalar](EvaluateContext& c) {
    std::vector<DType> types;
    std::vector<const Cell*> args;
    for (const ReferenceTensor* t : c.operands) {
      types.push_back(t->type.dtype);
      args.push_back(t->data.data());
    }
    Cell* out = c.results[0].data.data();
    sinter::evaluate(scalar(types, c.op.raw_attrs().get()),
                     static_cast<int64_t>(c.results[0].data.size()), args, {&out, 1});
  };
  def.body = [scalar = def.scalar](const Op& op, size_t, std::span<const IndexExpr> at,
                                   BodyBuilder& b) {
    std::vector<DType> types;
    std::vector<BodyNode> args;
    for (size_t i = 0; i < op.operands().size(); ++i) {
      types.push_back(op.operand(i).dtype());
      args.push_back(b.operand(i, {at.begin(), at.end()}));
    }
    return b.scalar(scalar(types, op.raw_attrs().get()), args);
  };
  def.cost = [n = flops_](const Op& op) { return Cost::bytes_moved(op, n); };
  def.samples = [self] { return self.make_samples(); };
  if (!refusal_.empty())
    def.vjp_refusal = refusal_;
  else if (vjp_)
    def.vjp = vjp_;
  else
    def.vjp = [self](const VjpContext& c) { return self.generic_vjp(c); };
  if (jvp_answer_)
    set_jvp(def, *jvp_answer_);
  else if (jvp_)
    def.jvp = jvp_;
  else if (!refusal_.empty())
    def.jvp_refusal = refusal_;
  else
    def.jvp = [self](const JvpContext& c) { return self.generic_jvp(c); };
  SINTER_CHECK(!vjp_ || jvp_ || jvp_answer_, "{} states its VJP, and must state its JVP too",
               name_);
  set_batch(def, Batch::shift_axes);
  def.derivative = [self](size_t i) { return self.derivative(i); };
  return def;
}

}  // namespace sinter
