#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/op_cost.h>

#include <algorithm>

namespace sinter::detail {
namespace {

constexpr int kCheapNodes = 8;  // scalar operations that cost less than a memory access
// Scalar operations that take as long as to write and read an element of f32, and those of a call.
constexpr int kKeptNodes = 40, kCallNodes = 10;

// What an element is made of; empty for an op that is not elementwise.
std::vector<ExprNode> nodes_of(const Op& op) {
  if (op.def().kind != OpKind::Pointwise || !op.def().scalar) return {};
  std::vector<DType> types;
  for (Value v : op.operands()) types.push_back(v.dtype());
  return op.def().scalar(types, op.raw_attrs().get()).nodes;
}

}  // namespace

bool is_cheap(const Op& op) {
  std::vector<ExprNode> nodes = nodes_of(op);
  int count = 0;
  for (const ExprNode& n : nodes) {
    const Intrinsic& row = intrinsic(n.fn);
    // Rows of the table without integer form and with a function's text are transcendental.
    if (row.text.starts_with("sn_") && row.integer == nullptr) return false;
    count += row.arity > 0;
  }
  return !nodes.empty() && count <= kCheapNodes;
}

bool is_cheaper_than_kept(const Op& op) {
  std::vector<ExprNode> nodes = nodes_of(op);
  int cost = 0;
  for (const ExprNode& n : nodes) {
    const Intrinsic& row = intrinsic(n.fn);
    if (row.arity > 0) cost += row.costly ? kCallNodes : 1;
  }
  return !nodes.empty() && cost <= kKeptNodes;
}

bool has_division(const Op& op) {
  std::vector<ExprNode> nodes = nodes_of(op);
  return std::any_of(nodes.begin(), nodes.end(), [](const ExprNode& n) {
    return n.fn == Fn::Div || n.fn == Fn::Sqrt || n.fn == Fn::Rsqrt;
  });
}

}  // namespace sinter::detail
