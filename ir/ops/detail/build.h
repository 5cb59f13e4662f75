#pragma once
// What the definitions of ops share: checks of builders' arguments, small scalar functions,
// samples.

#include <sinter/ir/op_def.h>

#include <initializer_list>

namespace sinter::detail {

// The graph of a builder's operand; an unset Value is the user's mistake.
Graph& graph_of(std::string_view op, std::string_view operand, Value v, const SourceLocation& loc);

// One operand, one result, no attributes.
Value build_unary(std::string_view op, Value x, SourceLocation loc);

// The element's function of `cast`. Integers reach bf16 and f16 through f32, as compilers do.
ScalarFn cast_fn(DType from, DType to);
BodyNode cast_node(BodyBuilder& b, BodyNode x, DType from, DType to);
// c ? a : b.
BodyNode select_node(BodyBuilder& b, BodyNode c, BodyNode a, BodyNode otherwise, DType type);

// Types given as text.
Sample sample(std::initializer_list<std::string_view> operands, AttrMap attrs = {},
              std::string_view result = {});

// An attribute's number in a type: unrounded for floats, saturated for integers.
Cell number_cell(const Number& number, DType type);
// Whether the type can hold the number: an integer type takes whole numbers in its range, bool 0
// and 1.
bool fits(const Number& number, DType type);

}  // namespace sinter::detail
