#pragma once
// Bits of integers (i32, i64, u32), and exclusive or of bools.
//
// Operands are broadcast to a common shape; a C++ number takes the other operand's dtype.

#include <sinter/ir/ops/operand.h>

namespace sinter {

Value logical_xor(Operand a, Operand b);  // of bools
Value bitwise_and(Operand a, Operand b);
Value bitwise_or(Operand a, Operand b);
Value bitwise_xor(Operand a, Operand b);
Value bitwise_not(Value x, SourceLocation loc = SourceLocation::here());
// By a number of bits that is negative or not below the width: all bits are lost, and a right shift
// of a signed number leaves its sign.
Value shift_left(Operand a, Operand b);
Value shift_right(Operand a, Operand b);

}  // namespace sinter
