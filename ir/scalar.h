#pragma once
// Scalar expressions: what one element of a pointwise op computes.
//
// A ScalarFn is a straight-line program over typed values. It is built once per op from a lambda
// over `Expr`, and everything that needs the op's arithmetic reads it: the reference, the symbolic
// partial derivatives, and the CUDA and host printers. Functions of one element come from one table
// (`intrinsics()`): evaluation in f64, f32 and integers, source text, partial derivatives.
//
// Numerics: a node of type f32 is computed in f32; bf16 and f16 nodes hold rounded values and occur
// only as parameters and results of `cast` and `select`. Integers wrap. max and min keep NaN.
// Float to integer saturates, NaN gives 0.

#include <sinter/ir/type.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter {

enum class Fn : uint8_t {
  Param,
  Literal,
  Cast,
  Add,
  Sub,
  Mul,
  Div,
  Neg,
  Abs,
  Max,
  Min,
  Pow,
  Fma,
  Rem,  // with the sign of the divisor
  Exp,
  Exp2,
  Expm1,
  Log,
  Log2,
  Log1p,
  Sqrt,
  Rsqrt,
  Inv1p,  // 1 / (1 + a) for a from 0 to 1
  Cbrt,
  Hypot,
  Sin,
  Cos,
  Tan,
  Sinh,
  Cosh,
  Tanh,
  Asin,
  Acos,
  Atan,
  Atan2,
  Erf,
  Erfc,
  ErfcInv,
  NormCdf,  // the normal distribution's, erfc(-x / sqrt(2)) / 2
  Floor,
  Ceil,
  Round,  // ties to even
  Trunc,
  BitAnd,
  BitOr,
  BitXor,
  BitNot,
  Shl,
  Shr,
  Eq,
  Ne,
  Lt,
  Le,
  Gt,
  Ge,
  And,
  Or,
  Not,
  Select,
};

// One value of any type: floats (of every width) in `f`, integers and bool in `i`.
union Cell {
  double f;
  int64_t i;
};

struct ExprNode {
  Fn fn = Fn::Literal;
  DType type = DType::F32;
  std::array<int, 3> args{-1, -1, -1};  // earlier nodes; -1 when unused
  int param = -1;                       // Param: which parameter
  Cell literal{};                       // Literal: held unrounded, rounded where executed

  bool same_as(const ExprNode& other) const;
};

struct ScalarFn {
  std::vector<DType> params;
  std::vector<ExprNode> nodes;
  std::vector<int> results;  // nodes

  DType result_type(size_t i = 0) const { return nodes[static_cast<size_t>(results[i])].type; }
  bool uses_param(int i) const;
};

class ScalarBuilder;

// A handle on a node of a ScalarBuilder. Mixed arithmetic with a C++ number takes the Expr's type.
class Expr {
 public:
  Expr() = default;
  Expr(ScalarBuilder* builder, int node) : builder_(builder), node_(node) {}
  ScalarBuilder* builder() const { return builder_; }
  int node() const { return node_; }
  DType type() const;
  const ExprNode& get() const;
  bool valid() const { return builder_ != nullptr; }

 private:
  ScalarBuilder* builder_ = nullptr;
  int node_ = -1;
};

// Builds a ScalarFn; equal nodes are made once.
class ScalarBuilder {
 public:
  Expr param(DType type);
  Expr literal(DType type, double value);
  Expr literal_integer(DType type, int64_t value);
  Expr cast(Expr x, DType type);  // x itself when the type is already right
  Expr call(Fn fn, std::span<const Expr> args);
  // Copies `fn` in, with `args` for its parameters; the results.
  std::vector<Expr> inline_fn(const ScalarFn& fn, std::span<const Expr> args);
  ScalarFn finish(std::span<const Expr> results);
  const ExprNode& node(int i) const { return fn_.nodes[static_cast<size_t>(i)]; }

 private:
  Expr add(ExprNode node);
  ScalarFn fn_;
  std::vector<std::pair<uint64_t, int>> index_;  // hash buckets, open addressing
  size_t mask_ = 0;
  void grow_index();
};

// A C++ number or an Expr, for operators.
struct ExprArg {
  ExprArg(Expr e) : expr(e) {}
  ExprArg(double v) : number(v) {}
  ExprArg(int v) : number(v) {}
  Expr expr;
  double number = 0;
};

Expr operator+(ExprArg a, ExprArg b);
Expr operator-(ExprArg a, ExprArg b);
Expr operator*(ExprArg a, ExprArg b);
Expr operator/(ExprArg a, ExprArg b);
Expr operator-(Expr a);
Expr operator==(ExprArg a, ExprArg b);
Expr operator!=(ExprArg a, ExprArg b);
Expr operator<(ExprArg a, ExprArg b);
Expr operator<=(ExprArg a, ExprArg b);
Expr operator>(ExprArg a, ExprArg b);
Expr operator>=(ExprArg a, ExprArg b);
Expr operator&&(Expr a, Expr b);
Expr operator||(Expr a, Expr b);
Expr operator!(Expr a);
Expr abs(Expr a);
Expr exp(Expr a);
Expr exp2(Expr a);
Expr expm1(Expr a);
Expr log(Expr a);
Expr log2(Expr a);
Expr log1p(Expr a);
Expr sqrt(Expr a);
Expr rsqrt(Expr a);
Expr inv1p(Expr a);
Expr cbrt(Expr a);
Expr sin(Expr a);
Expr cos(Expr a);
Expr tan(Expr a);
Expr sinh(Expr a);
Expr cosh(Expr a);
Expr tanh(Expr a);
Expr asin(Expr a);
Expr acos(Expr a);
Expr atan(Expr a);
Expr erf(Expr a);
Expr erfc(Expr a);
Expr erfc_inv(Expr a);
Expr norm_cdf(Expr a);
Expr floor(Expr a);
Expr ceil(Expr a);
Expr round(Expr a);
Expr trunc(Expr a);
Expr max(ExprArg a, ExprArg b);
Expr min(ExprArg a, ExprArg b);
Expr pow(ExprArg a, ExprArg b);
Expr atan2(ExprArg y, ExprArg x);
Expr hypot(ExprArg a, ExprArg b);
Expr rem(ExprArg a, ExprArg b);
Expr fma(Expr a, ExprArg b, ExprArg c);
// b where c holds, else the other; only the chosen side's value and slope count.
Expr select(Expr c, ExprArg a, ExprArg b);
Expr cast(Expr a, DType type);

// One row of the table of intrinsics.
struct Intrinsic {
  Fn fn;
  std::string_view name;
  int arity;
  bool gives_bool;  // comparisons; otherwise the type of the last operand
  std::string_view
      text;  // C-family source with {0} {1} {2}; names of the form sn_* are in the preludes
  double (*f64)(double, double, double);
  float (*f32)(float, float, float);
  int64_t (*integer)(int64_t, int64_t, int64_t);  // also bool; null where undefined
  // The partial derivative by argument i, given the arguments and the result; null: slope zero
  // everywhere (comparisons, floor).
  Expr (*partial)(int i, std::span<const Expr> args, Expr result);
  // Takes many instructions: better kept than computed again.
  bool costly = false;
};

const Intrinsic& intrinsic(Fn fn);
// Null when there is no such function.
const Intrinsic* find_intrinsic(std::string_view name);

// Rounds or wraps `value` to what `type` can hold; for floats `value.f`, else `value.i`.
Cell canonical(DType type, Cell value);
// What leaves a fold by `combine` (Add, Mul, Max, Min) unchanged: its result for no elements.
Cell identity_element(Fn combine, DType type);
// The conversion that `cast` performs.
Cell convert(Cell value, DType from, DType to);

// Evaluates `fn` for `count` elements: `args[p]` points to `count` cells of parameter p,
// `results[r]` to room for as many.
void evaluate(const ScalarFn& fn, int64_t count, std::span<const Cell* const> args,
              std::span<Cell* const> results);

// d result / d param: a function of the same parameters followed by the result. Empty results
// when the slope is zero everywhere.
ScalarFn differentiate(const ScalarFn& fn, int param);

}  // namespace sinter
