#include <sinter/ir/diagnostic.h>
#include <sinter/ir/numeric.h>
#include <sinter/ir/scalar.h>

#include <algorithm>
#include <limits>

namespace sinter {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccdULL;
}

uint64_t hash_of(const ExprNode& n) {
  uint64_t h = mix(static_cast<uint64_t>(n.fn), static_cast<uint64_t>(n.type));
  for (int a : n.args) h = mix(h, static_cast<uint64_t>(static_cast<int64_t>(a)));
  h = mix(h, static_cast<uint64_t>(static_cast<int64_t>(n.param)));
  return mix(h, static_cast<uint64_t>(n.literal.i));
}

bool is_literal(const ExprNode& n, double value) {
  if (n.fn != Fn::Literal) return false;
  return is_float(n.type) ? n.literal.f == value : static_cast<double>(n.literal.i) == value;
}

}  // namespace

bool ExprNode::same_as(const ExprNode& o) const {
  return fn == o.fn && type == o.type && args == o.args && param == o.param &&
         literal.i == o.literal.i;
}

bool ScalarFn::uses_param(int i) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const ExprNode& n) { return n.fn == Fn::Param && n.param == i; });
}

DType Expr::type() const {
  return get().type;
}
const ExprNode& Expr::get() const {
  return builder_->node(node_);
}

void ScalarBuilder::grow_index() {
  size_t capacity = index_.empty() ? 32 : index_.size() * 2;
  index_.assign(capacity, {0, -1});
  mask_ = capacity - 1;
  for (size_t i = 0; i < fn_.nodes.size(); ++i) {
    uint64_t h = hash_of(fn_.nodes[i]);
    size_t at = h & mask_;
    while (index_[at].second >= 0) at = (at + 1) & mask_;
    index_[at] = {h, static_cast<int>(i)};
  }
}

Expr ScalarBuilder::add(ExprNode node) {
  if (fn_.nodes.size() * 2 >= index_.size()) grow_index();
  uint64_t h = hash_of(node);
  size_t at = h & mask_;
  for (; index_[at].second >= 0; at = (at + 1) & mask_)
    if (index_[at].first == h && this->node(index_[at].second).same_as(node))
      return {this, index_[at].second};
  int id = static_cast<int>(fn_.nodes.size());
  index_[at] = {h, id};
  fn_.nodes.push_back(node);
  return {this, id};
}

Expr ScalarBuilder::param(DType type) {
  ExprNode n;
  n.fn = Fn::Param;
  n.type = type;
  n.param = static_cast<int>(fn_.params.size());
  fn_.params.push_back(type);
  return add(n);
}

Expr ScalarBuilder::literal(DType type, double value) {
  if (!is_float(type)) return literal_integer(type, static_cast<int64_t>(value));
  ExprNode n;
  n.type = type;
  n.literal.f = value;
  return add(n);
}

Expr ScalarBuilder::literal_integer(DType type, int64_t value) {
  if (is_float(type)) return literal(type, static_cast<double>(value));
  ExprNode n;
  n.type = type;
  n.literal.i = value;
  n.literal = canonical(type, n.literal);
  return add(n);
}

Expr ScalarBuilder::cast(Expr x, DType type) {
  if (x.type() == type) return x;
  const ExprNode& n = x.get();
  // A float literal is exact in f64, so a wider or equal compute type keeps it unrounded.
  if (n.fn == Fn::Literal && n.type == DType::Bool) return literal_integer(type, n.literal.i);
  ExprNode c;
  c.fn = Fn::Cast;
  c.type = type;
  c.args[0] = x.node();
  return add(c);
}

Expr ScalarBuilder::call(Fn fn, std::span<const Expr> args) {
  const Intrinsic& row = intrinsic(fn);
  SINTER_CHECK(static_cast<int>(args.size()) == row.arity, "{} takes {} arguments, got {}",
               row.name, row.arity, args.size());
  // Identities that hold for every float, NaN and signed zero included.
  if (fn == Fn::Mul) {
    if (is_literal(args[0].get(), 1.0)) return args[1];
    if (is_literal(args[1].get(), 1.0)) return args[0];
  }
  // Exact for floats, so that constant slopes of -1 are seen as such.
  if (fn == Fn::Neg && args[0].get().fn == Fn::Literal && is_float(args[0].type()))
    return literal(args[0].type(), -args[0].get().literal.f);
  if (fn == Fn::Select) {
    const ExprNode& c = args[0].get();
    if (c.fn == Fn::Literal) return args[c.literal.i ? 1 : 2];
    if (args[1].node() == args[2].node()) return args[1];
  }
  ExprNode n;
  n.fn = fn;
  n.type = row.gives_bool ? DType::Bool : args.back().type();
  for (size_t i = 0; i < args.size(); ++i) n.args[i] = args[i].node();
  size_t first = fn == Fn::Select ? 1 : 0;
  for (size_t i = first; i < args.size(); ++i)
    SINTER_CHECK(args[i].type() == args.back().type(), "{}: operand types {} and {} differ",
                 row.name, to_string(args[i].type()), to_string(args.back().type()));
  return add(n);
}

std::vector<Expr> ScalarBuilder::inline_fn(const ScalarFn& fn, std::span<const Expr> args) {
  SINTER_CHECK(args.size() == fn.params.size(), "inlining takes {} arguments, got {}",
               fn.params.size(), args.size());
  std::vector<Expr> at(fn.nodes.size());
  for (size_t i = 0; i < fn.nodes.size(); ++i) {
    ExprNode n = fn.nodes[i];
    if (n.fn == Fn::Param) {
      at[i] = args[static_cast<size_t>(n.param)];
      continue;
    }
    for (int& a : n.args)
      if (a >= 0) a = at[static_cast<size_t>(a)].node();
    at[i] = add(n);
  }
  std::vector<Expr> results;
  for (int r : fn.results) results.push_back(at[static_cast<size_t>(r)]);
  return results;
}

ScalarFn ScalarBuilder::finish(std::span<const Expr> results) {
  // Keeps parameters and what the results reach; numbering stays topological.
  std::vector<bool> live(fn_.nodes.size(), false);
  for (Expr r : results) live[static_cast<size_t>(r.node())] = true;
  for (size_t i = fn_.nodes.size(); i-- > 0;) {
    if (!live[i]) continue;
    for (int a : fn_.nodes[i].args)
      if (a >= 0) live[static_cast<size_t>(a)] = true;
  }
  ScalarFn out;
  out.params = fn_.params;
  std::vector<int> renumbered(fn_.nodes.size(), -1);
  for (size_t i = 0; i < fn_.nodes.size(); ++i) {
    if (!live[i]) continue;
    ExprNode n = fn_.nodes[i];
    for (int& a : n.args)
      if (a >= 0) a = renumbered[static_cast<size_t>(a)];
    renumbered[i] = static_cast<int>(out.nodes.size());
    out.nodes.push_back(n);
  }
  for (Expr r : results) out.results.push_back(renumbered[static_cast<size_t>(r.node())]);
  return out;
}

namespace {

Expr as_expr(const ExprArg& a, Expr like) {
  if (a.expr.valid()) return a.expr;
  return like.builder()->literal(like.type(), a.number);
}

Expr binary(Fn fn, const ExprArg& a, const ExprArg& b) {
  Expr like = a.expr.valid() ? a.expr : b.expr;
  SINTER_CHECK(like.valid(), "a scalar operator needs one Expr");
  Expr args[] = {as_expr(a, like), as_expr(b, like)};
  return like.builder()->call(fn, args);
}

Expr unary(Fn fn, Expr a) {
  return a.builder()->call(fn, {&a, 1});
}

}  // namespace

Expr operator+(ExprArg a, ExprArg b) {
  return binary(Fn::Add, a, b);
}
Expr operator-(ExprArg a, ExprArg b) {
  return binary(Fn::Sub, a, b);
}
Expr operator*(ExprArg a, ExprArg b) {
  return binary(Fn::Mul, a, b);
}
Expr operator/(ExprArg a, ExprArg b) {
  return binary(Fn::Div, a, b);
}
Expr operator-(Expr a) {
  return unary(Fn::Neg, a);
}
Expr operator==(ExprArg a, ExprArg b) {
  return binary(Fn::Eq, a, b);
}
Expr operator!=(ExprArg a, ExprArg b) {
  return binary(Fn::Ne, a, b);
}
Expr operator<(ExprArg a, ExprArg b) {
  return binary(Fn::Lt, a, b);
}
Expr operator<=(ExprArg a, ExprArg b) {
  return binary(Fn::Le, a, b);
}
Expr operator>(ExprArg a, ExprArg b) {
  return binary(Fn::Gt, a, b);
}
Expr operator>=(ExprArg a, ExprArg b) {
  return binary(Fn::Ge, a, b);
}
Expr operator&&(Expr a, Expr b) {
  return binary(Fn::And, a, b);
}
Expr operator||(Expr a, Expr b) {
  return binary(Fn::Or, a, b);
}
Expr operator!(Expr a) {
  return unary(Fn::Not, a);
}
Expr abs(Expr a) {
  return unary(Fn::Abs, a);
}
Expr exp(Expr a) {
  return unary(Fn::Exp, a);
}
Expr exp2(Expr a) {
  return unary(Fn::Exp2, a);
}
Expr expm1(Expr a) {
  return unary(Fn::Expm1, a);
}
Expr log(Expr a) {
  return unary(Fn::Log, a);
}
Expr log2(Expr a) {
  return unary(Fn::Log2, a);
}
Expr log1p(Expr a) {
  return unary(Fn::Log1p, a);
}
Expr sqrt(Expr a) {
  return unary(Fn::Sqrt, a);
}
Expr rsqrt(Expr a) {
  return unary(Fn::Rsqrt, a);
}
Expr inv1p(Expr a) {
  return unary(Fn::Inv1p, a);
}
Expr cbrt(Expr a) {
  return unary(Fn::Cbrt, a);
}
Expr sin(Expr a) {
  return unary(Fn::Sin, a);
}
Expr cos(Expr a) {
  return unary(Fn::Cos, a);
}
Expr tan(Expr a) {
  return unary(Fn::Tan, a);
}
Expr sinh(Expr a) {
  return unary(Fn::Sinh, a);
}
Expr cosh(Expr a) {
  return unary(Fn::Cosh, a);
}
Expr tanh(Expr a) {
  return unary(Fn::Tanh, a);
}
Expr asin(Expr a) {
  return unary(Fn::Asin, a);
}
Expr acos(Expr a) {
  return unary(Fn::Acos, a);
}
Expr atan(Expr a) {
  return unary(Fn::Atan, a);
}
Expr erf(Expr a) {
  return unary(Fn::Erf, a);
}
Expr erfc(Expr a) {
  return unary(Fn::Erfc, a);
}
Expr erfc_inv(Expr a) {
  return unary(Fn::ErfcInv, a);
}
Expr norm_cdf(Expr a) {
  return unary(Fn::NormCdf, a);
}
Expr floor(Expr a) {
  return unary(Fn::Floor, a);
}
Expr ceil(Expr a) {
  return unary(Fn::Ceil, a);
}
Expr round(Expr a) {
  return unary(Fn::Round, a);
}
Expr trunc(Expr a) {
  return unary(Fn::Trunc, a);
}
Expr max(ExprArg a, ExprArg b) {
  return binary(Fn::Max, a, b);
}
Expr min(ExprArg a, ExprArg b) {
  return binary(Fn::Min, a, b);
}
Expr pow(ExprArg a, ExprArg b) {
  return binary(Fn::Pow, a, b);
}
Expr atan2(ExprArg a, ExprArg b) {
  return binary(Fn::Atan2, a, b);
}
Expr hypot(ExprArg a, ExprArg b) {
  return binary(Fn::Hypot, a, b);
}
Expr rem(ExprArg a, ExprArg b) {
  return binary(Fn::Rem, a, b);
}

Expr fma(Expr a, ExprArg b, ExprArg c) {
  Expr args[] = {a, as_expr(b, a), as_expr(c, a)};
  return a.builder()->call(Fn::Fma, args);
}

Expr select(Expr c, ExprArg a, ExprArg b) {
  // Two numbers take the type of the condition's operands.
  Expr like = a.expr.valid() ? a.expr : b.expr;
  if (!like.valid()) {
    SINTER_CHECK(c.get().args[0] >= 0, "select of two numbers needs a typed condition");
    like = Expr(c.builder(), c.get().args[0]);
  }
  Expr args[] = {c, as_expr(a, like), as_expr(b, like)};
  return c.builder()->call(Fn::Select, args);
}

Expr cast(Expr a, DType type) {
  return a.builder()->cast(a, type);
}

Cell canonical(DType type, Cell v) {
  switch (type) {
    case DType::F64:
      break;
    case DType::F32:
      v.f = static_cast<double>(static_cast<float>(v.f));
      break;
    case DType::BF16:
      v.f = static_cast<double>(bf16_to_f32(f64_to_bf16(v.f)));
      break;
    case DType::F16:
      v.f = static_cast<double>(f16_to_f32(f64_to_f16(v.f)));
      break;
    case DType::I32:
      v.i = static_cast<int32_t>(static_cast<uint32_t>(v.i));
      break;
    case DType::U32:
      v.i = static_cast<uint32_t>(v.i);
      break;
    case DType::I64:
      break;
    case DType::Bool:
      v.i = v.i != 0;
      break;
  }
  return v;
}

Cell identity_element(Fn combine, DType type) {
  Cell cell{};  // zero, as an integer and as a float
  const bool largest = combine == Fn::Min;
  switch (combine) {
    case Fn::Add:
      return cell;
    case Fn::Mul:
      if (is_float(type))
        cell.f = 1.0;
      else
        cell.i = 1;
      return cell;
    case Fn::Max:
    case Fn::Min:
      break;
    default:
      SINTER_CHECK(false, "a fold by {} has no identity", intrinsic(combine).name);
  }
  auto ends = [&]<typename T>(T) {
    cell.i =
        largest ? int64_t{std::numeric_limits<T>::max()} : int64_t{std::numeric_limits<T>::min()};
  };
  if (is_float(type)) {
    const double infinity = std::numeric_limits<double>::infinity();
    cell.f = largest ? infinity : -infinity;
  } else if (type == DType::Bool) {
    ends(bool{});
  } else if (type == DType::I32) {
    ends(int32_t{});
  } else if (type == DType::U32) {
    ends(uint32_t{});
  } else {
    ends(int64_t{});
  }
  return cell;
}

Cell convert(Cell v, DType from, DType to) {
  Cell out;
  if (is_float(to)) {
    // An integer beyond 2^53 rounds once, to its own type, not to f64 first.
    if (is_float(from))
      out.f = v.f;
    else
      out.f = to == DType::F64 ? static_cast<double>(v.i) : int64_to_odd_double(v.i);
    return canonical(to, out);
  }
  if (to == DType::Bool) {
    out.i = is_float(from) ? v.f != 0.0 : v.i != 0;
    return out;
  }
  if (is_float(from)) {
    out.i = to == DType::I32   ? float_to_int<int32_t>(v.f)
            : to == DType::U32 ? float_to_int<uint32_t>(v.f)
                               : float_to_int<int64_t>(v.f);
    return out;
  }
  out.i = v.i;
  return canonical(to, out);
}

void evaluate(const ScalarFn& fn, int64_t count, std::span<const Cell* const> args,
              std::span<Cell* const> results) {
  constexpr int64_t kBlock = 256;
  std::vector<Cell> storage(fn.nodes.size() * static_cast<size_t>(kBlock));
  auto block = [&](int node) { return storage.data() + static_cast<int64_t>(node) * kBlock; };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t n = std::min(kBlock, count - begin);
    for (size_t k = 0; k < fn.nodes.size(); ++k) {
      const ExprNode& node = fn.nodes[k];
      Cell* out = block(static_cast<int>(k));
      const Cell* in[3] = {};
      for (size_t a = 0; a < 3; ++a)
        if (node.args[a] >= 0) in[a] = block(node.args[a]);
      switch (node.fn) {
        case Fn::Param:
          std::copy_n(args[static_cast<size_t>(node.param)] + begin, n, out);
          continue;
        case Fn::Literal:
          std::fill_n(out, n, canonical(node.type, node.literal));
          continue;
        case Fn::Cast: {
          DType from = fn.nodes[static_cast<size_t>(node.args[0])].type;
          for (int64_t i = 0; i < n; ++i) out[i] = convert(in[0][i], from, node.type);
          continue;
        }
        case Fn::Select:
          for (int64_t i = 0; i < n; ++i) out[i] = in[0][i].i ? in[1][i] : in[2][i];
          continue;
        default:
          break;
      }
      const Intrinsic& row = intrinsic(node.fn);
      DType type = fn.nodes[static_cast<size_t>(node.args[0])].type;
      auto arg_f = [&](int a, int64_t i) { return in[a] ? in[a][i].f : 0.0; };
      auto arg_i = [&](int a, int64_t i) { return in[a] ? in[a][i].i : int64_t{0}; };
      if (type == DType::F64) {
        SINTER_CHECK(row.f64 != nullptr, "{} is not defined for f64", row.name);
        for (int64_t i = 0; i < n; ++i) {
          double v = row.f64(arg_f(0, i), arg_f(1, i), arg_f(2, i));
          if (row.gives_bool)
            out[i].i = v != 0.0;
          else
            out[i].f = v;
        }
      } else if (type == DType::F32) {
        SINTER_CHECK(row.f32 != nullptr, "{} is not defined for f32", row.name);
        for (int64_t i = 0; i < n; ++i) {
          float v = row.f32(static_cast<float>(arg_f(0, i)), static_cast<float>(arg_f(1, i)),
                            static_cast<float>(arg_f(2, i)));
          if (row.gives_bool)
            out[i].i = v != 0.0F;
          else
            out[i].f = static_cast<double>(v);
        }
      } else {
        SINTER_CHECK(!is_float(type) && row.integer != nullptr, "{} is not defined for {}",
                     row.name, to_string(type));
        for (int64_t i = 0; i < n; ++i) {
          out[i].i = row.integer(arg_i(0, i), arg_i(1, i), arg_i(2, i));
          out[i] = canonical(node.type, out[i]);
        }
      }
    }
    for (size_t r = 0; r < fn.results.size(); ++r)
      std::copy_n(block(fn.results[r]), n, results[r] + begin);
  }
}

ScalarFn differentiate(const ScalarFn& fn, int param) {
  ScalarBuilder b;
  std::vector<Expr> params;
  for (DType type : fn.params) params.push_back(b.param(type));
  SINTER_CHECK(fn.results.size() == 1, "differentiate takes a function of one result");
  b.param(fn.result_type());  // the result, which a stated partial may read
  std::vector<Expr> value(fn.nodes.size()), slope(fn.nodes.size());
  for (size_t k = 0; k < fn.nodes.size(); ++k) {
    const ExprNode& n = fn.nodes[k];
    if (n.fn == Fn::Param) {
      value[k] = params[static_cast<size_t>(n.param)];
      if (n.param == param) slope[k] = b.literal(n.type, 1.0);
      continue;
    }
    if (n.fn == Fn::Literal) {
      value[k] = is_float(n.type) ? b.literal(n.type, n.literal.f)
                                  : b.literal_integer(n.type, n.literal.i);
      continue;
    }
    if (n.fn == Fn::Cast) {
      auto a = static_cast<size_t>(n.args[0]);
      value[k] = b.cast(value[a], n.type);
      if (slope[a].valid() && is_float(n.type) && is_float(value[a].type()))
        slope[k] =
            is_literal(slope[a].get(), 1.0) ? b.literal(n.type, 1.0) : b.cast(slope[a], n.type);
      continue;
    }
    std::vector<Expr> args;
    for (int a : n.args)
      if (a >= 0) args.push_back(value[static_cast<size_t>(a)]);
    value[k] = b.call(n.fn, args);
    if (!is_float(n.type)) continue;
    if (n.fn == Fn::Select) {
      // Only the chosen side's slope counts, whatever the other side's is.
      Expr s1 = slope[static_cast<size_t>(n.args[1])], s2 = slope[static_cast<size_t>(n.args[2])];
      if (!s1.valid() && !s2.valid()) continue;
      Expr zero = b.literal(n.type, 0.0);
      slope[k] = select(args[0], s1.valid() ? s1 : zero, s2.valid() ? s2 : zero);
      continue;
    }
    const Intrinsic& row = intrinsic(n.fn);
    if (row.partial == nullptr) continue;
    for (size_t a = 0; a < args.size(); ++a) {
      Expr s = slope[static_cast<size_t>(n.args[a])];
      if (!s.valid()) continue;
      Expr term = row.partial(static_cast<int>(a), args, value[k]) * s;
      slope[k] = slope[k].valid() ? slope[k] + term : term;
    }
  }
  Expr result = slope[static_cast<size_t>(fn.results[0])];
  if (!result.valid()) return {};
  return b.finish({&result, 1});
}

}  // namespace sinter
