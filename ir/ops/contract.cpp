#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/contract.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/operand.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter {

using detail::sample;

namespace {

bool is_narrow(DType type) {
  return type == DType::BF16 || type == DType::F16;
}

// Rows and columns of a matrix operand as the product sees it.
struct Matrix {
  int64_t rows = 0, columns = 0;
};
Matrix matrix_of(const Shape& shape, bool transposed) {
  Matrix m{shape[shape.size() - 2], shape[shape.size() - 1]};
  if (transposed) std::swap(m.rows, m.columns);
  return m;
}

// The axis of an operand that holds the k of the product.
int64_t inner_axis(int64_t rank, bool is_b, bool transposed) {
  return is_b != transposed ? rank - 2 : rank - 1;
}

MatmulSizes sizes_of(const Shape& a, const Shape& b, const MatmulAttrs& attrs) {
  MatmulSizes s;
  for (size_t i = 0; i + 2 < a.size(); ++i) s.batch *= a[i];
  Matrix left = matrix_of(a, attrs.transpose_a), right = matrix_of(b, attrs.transpose_b);
  s.m = left.rows;
  s.k = left.columns;
  s.n = right.columns;
  return s;
}

// What `compute` says of operands; nullopt for a name that means nothing.
struct ComputeType {
  std::optional<DType> rounds_to;  // none: operands are taken as they are
};
std::optional<ComputeType> compute_named(std::string_view name) {
  if (name.empty() || name == "tf32") return ComputeType{};
  std::optional<DType> type = parse_dtype(name);
  if (type != DType::BF16 && type != DType::F16) return std::nullopt;
  return ComputeType{type};
}

// ---- Evaluation

// A matrix of cells as dense numbers, untransposed.
template <typename T>
void load_matrix(const Cell* cells, int64_t rows, int64_t columns, bool transposed,
                 std::optional<DType> rounds_to, std::vector<T>& out) {
  out.resize(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      Cell cell = transposed ? cells[c * rows + r] : cells[r * columns + c];
      if (rounds_to) cell = canonical(*rounds_to, cell);
      out[static_cast<size_t>(r * columns + c)] = static_cast<T>(cell.f);
    }
}

// row += x * other, in fixed strips that compilers vectorise.
template <typename T>
void add_scaled(T* __restrict row, T x, const T* __restrict other, int64_t count) {
  constexpr int64_t kStrip = 8;
  int64_t i = 0;
  for (; i + kStrip <= count; i += kStrip)
    for (int64_t j = 0; j < kStrip; ++j) row[i + j] += x * other[i + j];
  for (; i < count; ++i) row[i] += x * other[i];
}

// Whether c is a row that is added to every row of the product.
bool adds_row(const Op& op) {
  Value c = op.operand(2);
  return c && c.rank() == 1;
}

// Products are added in rising k from 0, then c, in T; rounded once at the end.
template <typename T>
void evaluate_as(EvaluateContext& ctx) {
  const auto& attrs = ctx.op.attrs<MatmulAttrs>();
  const ReferenceTensor& a = *ctx.operands[0];
  const ReferenceTensor& b = *ctx.operands[1];
  const ReferenceTensor* c = ctx.operands.size() > 2 ? ctx.operands[2] : nullptr;
  ReferenceTensor& y = ctx.results[0];
  MatmulSizes s = sizes_of(a.type.shape, b.type.shape, attrs);
  std::vector<T> left, right, row(static_cast<size_t>(s.n));
  // The f64 reference rounds nothing.
  std::optional<DType> rounds_to;
  if constexpr (std::is_same_v<T, float>) rounds_to = compute_named(attrs.compute)->rounds_to;
  const bool is_row = c != nullptr && c->type.shape.size() == 1;
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    load_matrix(a.data.data() + batch * s.m * s.k, s.m, s.k, attrs.transpose_a, rounds_to, left);
    load_matrix(b.data.data() + batch * s.k * s.n, s.k, s.n, attrs.transpose_b, rounds_to, right);
    for (int64_t i = 0; i < s.m; ++i) {
      std::fill(row.begin(), row.end(), T{0});
      for (int64_t k = 0; k < s.k; ++k)
        add_scaled(row.data(), left[static_cast<size_t>(i * s.k + k)], right.data() + k * s.n, s.n);
      auto at = static_cast<size_t>((batch * s.m + i) * s.n);
      for (size_t j = 0; j < row.size(); ++j) {
        if (c != nullptr)
          row[j] += static_cast<T>(canonical(y.type.dtype, c->data[is_row ? j : at + j]).f);
        Cell cell{};
        cell.f = static_cast<double>(row[j]);
        y.data[at + j] = canonical(y.type.dtype, cell);
      }
    }
  }
}

// ---- The op

Value product(Value a, Value b, Value c, MatmulAttrs attrs, SourceLocation loc);

struct Matmul {
  static constexpr std::string_view name = "matmul";
  static constexpr std::string_view doc =
      "a [...,m,k] times b [...,k,n] over equal leading axes, floats of one dtype or rounded to "
      "`compute`, plus c if given, [...,m,n] or a row [n] that is added to every row (a bias, "
      "which "
      "may be f32 and is rounded to the result's dtype); bf16 and f16 add up in f32, and the "
      "result "
      "is rounded once.";
  static constexpr OperandSpec operands[] = {required("a"), required("b"), optional("c")};
  static constexpr OpKind kind = OpKind::Contract;
  static constexpr Autocast autocast = Autocast::Narrow;
  using Attrs = MatmulAttrs;

  static Inferred infer(const InferContext& c) {
    const Attrs& attrs = c.attrs<Attrs>();
    for (size_t i = 0; i < 2; ++i) {
      if (!is_float(c.type(i).dtype)) return c.error("{} is not of a float type", c.describe(i));
      if (c.rank(i) < 2) return c.error("{} has fewer than 2 axes", c.describe(i));
    }
    if (c.type(0).dtype != c.type(1).dtype && attrs.compute.empty())
      return c.error("the dtypes of {} and {} differ", c.describe(0), c.describe(1));
    auto compute = compute_named(attrs.compute);
    if (!compute)
      return c.error("compute must be \"bf16\", \"f16\" or \"tf32\", not \"{}\"", attrs.compute);
    for (size_t i = 0; i < 2; ++i) {
      DType type = c.type(i).dtype;
      if (attrs.compute == "tf32"
              ? type != DType::F32
              : compute->rounds_to && type != DType::F32 && type != compute->rounds_to)
        return c.error("{} cannot be rounded to {}", c.describe(i), attrs.compute);
    }
    if (c.rank(0) != c.rank(1))
      return c.error("the ranks of {} and {} differ", c.describe(0), c.describe(1));
    const Shape& a = c.shape(0);
    const Shape& b = c.shape(1);
    for (size_t i = 0; i + 2 < a.size(); ++i)
      if (a[i] != b[i])
        return c.error("{} and {} disagree on axis {}: {} and {}", c.describe(0), c.describe(1), i,
                       a[i], b[i]);
    Matrix left = matrix_of(a, attrs.transpose_a), right = matrix_of(b, attrs.transpose_b);
    if (left.columns != right.rows)
      return c.error("axis {} of {} has extent {}, axis {} of {} has {}",
                     inner_axis(c.rank(0), false, attrs.transpose_a), c.describe(0), left.columns,
                     inner_axis(c.rank(1), true, attrs.transpose_b), c.describe(1), right.rows);
    TensorType type = c.type(0);
    type.shape[type.shape.size() - 2] = left.rows;
    type.shape[type.shape.size() - 1] = right.columns;
    if (!attrs.result.empty()) {
      std::optional<DType> result = parse_dtype(attrs.result);
      DType input = compute->rounds_to.value_or(type.dtype);
      if (!result || (*result != input && *result != compute_type(input)))
        return c.error("a product of {} cannot give \"{}\"", to_string(input), attrs.result);
      type.dtype = *result;
    }
    if (c.has(2) && c.type(2) != type) {
      bool row = c.shape(2) == Shape{type.shape.back()} &&
                 (c.type(2).dtype == type.dtype ||
                  (c.type(2).dtype == DType::F32 && is_narrow(type.dtype)));
      if (!row) return c.error("{} is added to a product of type {}", c.describe(2), type.str());
    }
    return std::vector{type};
  }
  // Each of the four transpositions has its own product, without a transpose.
  static Grads vjp(const VjpContext& c) {
    Value a = c.operand(0), b = c.operand(1), dy = c.grad();
    const Attrs& attrs = c.attrs<Attrs>();
    bool ta = attrs.transpose_a, tb = attrs.transpose_b;
    // Gradients are of their operands' types, by products in the type of the forward one.
    auto product = [&](Value x, Value y, bool tx, bool ty, Value operand) {
      Attrs own{tx, ty, attrs.compute, {}};
      if (own.compute.empty() && x.dtype() != y.dtype())
        own.compute = to_string(is_narrow(x.dtype()) ? x.dtype() : y.dtype());
      if (operand.dtype() != x.dtype()) own.result = to_string(operand.dtype());
      return matmul(x, y, std::move(own));
    };
    Grads grads(c.op().operands().size());
    if (c.needs(0)) grads[0] = ta ? product(b, dy, tb, true, a) : product(dy, b, false, !tb, a);
    if (c.needs(1)) grads[1] = tb ? product(dy, a, true, ta, b) : product(a, dy, !ta, false, b);
    if (c.needs(2)) grads[2] = adds_row(c.op()) ? sum_of_rows(dy, c.operand(2).dtype()) : dy;
    return grads;
  }
  // In the row's type: f32 is not rounded on the way.
  static Value sum_of_rows(Value dy, DType type) {
    std::vector<int64_t> axes;
    for (int64_t i = 0; i + 1 < dy.rank(); ++i) axes.push_back(i);
    return sum(dy.dtype() == type ? dy : cast(dy, type), std::move(axes));
  }
  // A row as an operand of the result's type.
  static Value spread(Value row, const TensorType& type) {
    if (row.dtype() != type.dtype) row = cast(row, type.dtype);
    return broadcast_to(row, type.shape);
  }
  // The rows of both products and of c add up in one accumulator where there is more than one.
  static std::vector<Value> jvp(const JvpContext& c) {
    Value total = c.tangent(2);
    if (total && adds_row(c.op())) total = spread(total, c.op().result().type());
    auto add_product = [&](Value a, Value b) {
      total = product(a, b, total, c.attrs<Attrs>(), c.op().loc());
    };
    if (c.tangent(0)) add_product(c.tangent(0), c.operand(1));
    if (c.tangent(1)) add_product(c.operand(0), c.tangent(1));
    return {total};
  }
  static Batched batch(const BatchContext& c) {
    const Attrs& attrs = c.attrs<Attrs>();
    Value a = c.operand(0);
    const Op& op = c.op();
    const bool row = adds_row(op);
    if (!c.only(0) || op.operand(0).rank() != 2 || attrs.transpose_a || (c.operand(2) && !row)) {
      if (!row) return detail::shift_axes(c);
      TensorType type = c.carried_type(op.result().type());
      Value bias = c.operand(2);
      if (c.batched(2)) {
        Shape shape(type.shape.size(), 1);
        shape.front() = type.shape.front();
        shape.back() = type.shape.back();
        bias = reshape(bias, std::move(shape));
      }
      return Batched::all(
          {product(c.carried(0), c.carried(1), spread(bias, type), attrs, op.loc())});
    }
    // One product of the rows of all examples.
    Value rows = reshape(a, {a.dim(0) * a.dim(1), a.dim(2)});
    Value y = product(rows, c.operand(1), c.operand(2), attrs, op.loc());
    return Batched::all({reshape(y, c.carried_type(op.result().type()).shape)});
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    MatmulSizes s = matmul_sizes(op);
    cost.flops = 2.0 * static_cast<double>(s.batch) * static_cast<double>(s.m) *
                 static_cast<double>(s.n) * static_cast<double>(s.k);
    return cost;
  }
  static std::vector<Sample> samples() {
    AttrMap ta{{"transpose_a", true}}, tb{{"transpose_b", true}};
    AttrMap both{{"transpose_a", true}, {"transpose_b", true}};
    return {
        sample({"f32[2,3]", "f32[3,4]"}),
        sample({"f32[3,2]", "f32[3,4]"}, ta),
        sample({"f32[2,3]", "f32[4,3]"}, tb),
        sample({"f32[3,2]", "f32[4,3]"}, both),
        sample({"f32[2,3]", "f32[3,2]", "f32[2,2]"}),
        sample({"f32[2,3,2]", "f32[2,3,4]", "f32[2,2,4]"}, ta),
        sample({"bf16[5,17]", "bf16[17,9]"}),
        sample({"bf16[2,3]", "bf16[4,3]", "bf16[2,4]"}, tb),
        sample({"f32[2,3]", "f32[3,4]", "f32[4]"}),
        sample({"f32[2,3,2]", "f32[2,4,3]", "f32[4]"}, both),
        sample({"bf16[5,3]", "bf16[3,4]", "f32[4]"}),
        sample({"f32[2,2,3,2]", "f32[2,2,5,2]"}, tb),
        sample({"f32[3,5]", "f32[5,4]"}, {{"compute", std::string("bf16")}}),
        sample({"bf16[2,3,5]", "f32[2,4,5]"}, {{"compute", std::string("bf16")},
                                               {"result", std::string("f32")},
                                               {"transpose_b", true}}),
        sample({"f16[5,3]", "f16[5,4]"}, {{"transpose_a", true}, {"result", std::string("f32")}}),
        sample({"f32[3,5]", "f32[5,4]"}, {{"compute", std::string("tf32")}}),
        sample({"f32[1,1]", "f32[1,1]"}),
        sample({"f32[2,0]", "f32[0,3]"}),
        sample({"f32[0,2]", "f32[2,3]"})};
  }
  static void evaluate(EvaluateContext& c) {
    if (c.results[0].type.dtype == DType::F64)
      evaluate_as<double>(c);
    else
      evaluate_as<float>(c);
  }
};

Value product(Value a, Value b, Value c, MatmulAttrs attrs, SourceLocation loc) {
  std::vector<Value> operands{a, b};
  if (c) operands.push_back(c);
  return build_op(a.graph(), "matmul", std::move(operands), attrs, std::move(loc)).result();
}

std::string described(Value v, std::string_view otherwise) {
  return fmt::format("{} ({})", v.name().empty() ? otherwise : v.name(), v.type().str());
}

}  // namespace

MatmulSizes matmul_sizes(const Op& op) {
  return sizes_of(op.operand(0).shape(), op.operand(1).shape(), op.attrs<MatmulAttrs>());
}

DType matmul_compute(const Op& op) {
  return compute_named(op.attrs<MatmulAttrs>().compute)->rounds_to.value_or(op.operand(0).dtype());
}

Value matmul(Value a, Value b, MatmulAttrs attrs, SourceLocation loc) {
  detail::graph_of("matmul", "a", a, loc);
  detail::graph_of("matmul", "b", b, loc);
  return product(a, b, {}, std::move(attrs), std::move(loc));
}

Value matmul(Value a, Value b, bool transpose_a, bool transpose_b, SourceLocation loc) {
  detail::graph_of("matmul", "a", a, loc);
  detail::graph_of("matmul", "b", b, loc);
  MatmulAttrs attrs{transpose_a, transpose_b, {}, {}};
  if (a.rank() < 2 || b.rank() < 2 || a.rank() == b.rank()) {
    bool same = a.rank() == b.rank() && a.rank() >= 2 &&
                std::equal(a.shape().begin(), a.shape().end() - 2, b.shape().begin());
    if (same || a.rank() < 2 || b.rank() < 2) return product(a, b, {}, attrs, std::move(loc));
  }
  // Refused before anything is reshaped, so that the message has the shapes as the user wrote them.
  Matrix left = matrix_of(a.shape(), transpose_a), right = matrix_of(b.shape(), transpose_b);
  if (left.columns != right.rows)
    throw Error(Diagnostic{
        loc, fmt::format("matmul: axis {} of {} has extent {}, axis {} of {} has {}",
                         inner_axis(a.rank(), false, transpose_a), described(a, "a"), left.columns,
                         inner_axis(b.rank(), true, transpose_b), described(b, "b"), right.rows)});
  Shape batch_a(a.shape().begin(), a.shape().end() - 2);
  Shape batch_b(b.shape().begin(), b.shape().end() - 2);
  // A plain matrix on the right: one product of all rows.
  if (batch_b.empty() && !transpose_a) {
    Value rows = reshape(a, {num_elements(batch_a) * left.rows, left.columns}, loc);
    Value y = product(rows, b, {}, attrs, loc);
    Shape shape = batch_a;
    shape.push_back(left.rows);
    shape.push_back(right.columns);
    return reshape(y, std::move(shape), std::move(loc));
  }
  size_t rank = std::max(batch_a.size(), batch_b.size());
  Shape batch(rank, 1);
  for (size_t i = 0; i < rank; ++i) {
    int64_t p = i + batch_a.size() < rank ? 1 : batch_a[i + batch_a.size() - rank];
    int64_t q = i + batch_b.size() < rank ? 1 : batch_b[i + batch_b.size() - rank];
    if (p != q && p != 1 && q != 1)
      throw Error(
          Diagnostic{loc, fmt::format("matmul: {} and {} disagree on leading axis {}: {} and {}",
                                      described(a, "a"), described(b, "b"), i, p, q)});
    batch[i] = p == 1 ? q : p;
  }
  auto expand = [&](Value v) {
    Shape shape = batch;
    shape.insert(shape.end(), v.shape().end() - 2, v.shape().end());
    return broadcast_to(v, shape, loc);
  };
  Value big_a = expand(a), big_b = expand(b);
  return product(big_a, big_b, {}, attrs, std::move(loc));
}

Value matmul_add(Value a, Value b, Value c, MatmulAttrs attrs, SourceLocation loc) {
  detail::graph_of("matmul", "a", a, loc);
  detail::graph_of("matmul", "b", b, loc);
  detail::graph_of("matmul", "c", c, loc);
  return product(a, b, c, std::move(attrs), std::move(loc));
}

void register_contract(OpRegistry& r) {
  r.add<Matmul>();
}

}  // namespace sinter
