#pragma once
// Sums of products over any axes, all made of matmul: dot_general, einsum, outer, linear.
//
// Operands share one float type. Each product adds up as matmul does: in f32 for bf16 and f16,
// rounded once. An einsum of more than two operands contracts from the left and rounds after each.

#include <sinter/ir/graph.h>

namespace sinter {

struct DotGeneralAttrs {
  std::vector<int64_t> a_batch, b_batch, a_contract, b_contract;
  static constexpr auto fields() {
    return std::tuple{
        field("a_batch", &DotGeneralAttrs::a_batch, "axes of a that go along with b_batch"),
        field("b_batch", &DotGeneralAttrs::b_batch, "axes of b that go along with a_batch"),
        field("a_contract", &DotGeneralAttrs::a_contract, "axes of a that are summed over"),
        field("b_contract", &DotGeneralAttrs::b_contract, "axes of b that are summed over")};
  }
};
struct EinsumAttrs {
  std::string equation;
  static constexpr auto fields() {
    return std::tuple{field("equation", &EinsumAttrs::equation,
                            "the labels of each operand's axes and, after ->, of the result's")};
  }
};

// The batch axes, then what is left of a's axes, then of b's (XLA's DotGeneral).
Value dot_general(Value a, Value b, DotGeneralAttrs attrs,
                  SourceLocation loc = SourceLocation::here());
// As in numpy: "ij,jk->ik". A label names one extent; one that the result lacks is summed over; a
// label twice in an operand takes its diagonal. Without "->" the result has the labels that occur
// once, in alphabetical order. Labels are letters; an ellipsis is refused.
Value einsum(std::string equation, std::vector<Value> operands,
             SourceLocation loc = SourceLocation::here());
// a [m] times b [n]: [m, n].
Value outer(Value a, Value b, SourceLocation loc = SourceLocation::here());
// x [..., inputs] times w [inputs, outputs], plus bias [outputs] where given.
Value linear(Value x, Value w, Value bias = {}, SourceLocation loc = SourceLocation::here());

}  // namespace sinter
