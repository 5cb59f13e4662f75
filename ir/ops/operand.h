#pragma once
// The argument of a function that builds a pointwise op: a value or a C++ number, with the place of
// the call. Overloaded operators cannot have default arguments, but the conversion to Operand
// happens at the call, so its default arguments name the user's line.

#include <sinter/ir/graph.h>

#include <initializer_list>

namespace sinter {

struct Operand {
  Operand(Value v, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : value(v), file_(file), line_(line) {}
  Operand(double n, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : number(n), file_(file), line_(line) {}
  Operand(int n, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : number(n), file_(file), line_(line) {}

  Value value;  // null for a number
  double number = 0;
  SourceLocation loc() const { return SourceLocation::here(file_, line_); }

 private:
  const char* file_;
  int line_;
};

// Builds the pointwise op `name`: numbers become `full` constants of the first value's dtype (bool
// operands excepted), and operands are broadcast to their common shape.
Value build_pointwise(std::string_view name, std::initializer_list<Operand> operands);
template <typename Attrs>
Value build_pointwise(std::string_view name, std::initializer_list<Operand> operands, Attrs attrs);
Value build_pointwise_erased(std::string_view name, std::span<const Operand> operands,
                             std::shared_ptr<const void> attrs);

template <typename Attrs>
Value build_pointwise(std::string_view name, std::initializer_list<Operand> operands, Attrs attrs) {
  return build_pointwise_erased(name, {operands.begin(), operands.size()},
                                std::make_shared<Attrs>(std::move(attrs)));
}

// `v` broadcast to `shape`; `v` itself when it has that shape already.
Value broadcast_to(Value v, const Shape& shape, SourceLocation loc = SourceLocation::here());

}  // namespace sinter
