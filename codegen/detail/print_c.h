#pragma once
// What CUDA C and host C++ have in common: one walker over loops. A target supplies the function's
// head, its loops and what only it has; everything else is written here, once.
//
// Scalars are `const T vN = …`, loops `iN`, arrays `aN`, buffers have their canonical names. bf16
// and f16 scalars are floats that hold rounded values. Index arithmetic is 32 bits wide wherever
// the ranges allow it, else 64. Functions `sn_*` and conversions come from the target's prelude.

#include <sinter/codegen/loops.h>

#include <string>
#include <string_view>

namespace sinter::detail {

class CPrinter {
 public:
  CPrinter(const LoopProgram& program, std::string& out) : p_(program), out_(out) {}
  virtual ~CPrinter() = default;
  void print();

 protected:
  // "extern "C" void NAME(…) {" and what has to come before the outermost loop.
  virtual void head() = 0;
  // Everything about one loop, body included.
  virtual void loop(const For& s) = 0;
  virtual void alloc(const Alloc& s) = 0;
  virtual void lane_reduce(const LaneReduce& s) = 0;
  virtual void barrier() = 0;
  // What a random number gets its words from: sn_fresh(), or a variable that head() declared.
  virtual std::string random_source(const Random& s) const = 0;
  // The number at LoopProgram::sites[site], as the launch gives it.
  virtual std::string site_text(int site) const = 0;

  void block(const Block& body);
  void line(std::string_view text);
  void open(std::string_view text);  // a line that ends in " {"; what follows is indented
  void close();
  // for (int iN = BEGIN; iN < END; ++iN) { body }
  void counted_loop(const For& s, std::string_view begin, std::string_view end);

  std::string_view value_type(DType type) const;    // of a scalar: float for bf16
  std::string_view storage_type(DType type) const;  // of an element in memory
  std::string_view type_of(Var v) const { return value_type(dtype(v)); }
  DType dtype(Var v) const;
  // "float aN[64]"
  std::string array_text(const Alloc& s) const;
  // A call of an intrinsic on values of `type`, without outer parentheses.
  std::string call(Fn fn, DType type, std::string_view a, std::string_view b = {},
                   std::string_view c = {}) const;
  bool outermost(const For& s) const;
  // "int" or "int64_t".
  static std::string_view counter_type(int64_t extent);

  const LoopProgram& p_;

 private:
  struct Writer;
  enum class Width : uint8_t { Narrow, Wide };

  static Width width_of(const IndexExpr& e);
  std::string index(const IndexExpr& e) const { return index(e, width_of(e)); }
  std::string index(const IndexExpr& e, Width width) const;
  std::string atom(const IndexAtom& a, Width width) const;
  std::string guard(const Guard& g) const;
  std::string cast(std::string_view value, DType from, DType to) const;
  static std::string literal(DType type, Cell value);
  std::string loaded(DType type, std::string_view element) const;
  std::string stored(DType type, std::string_view value) const;
  void define(Var v, std::string_view value, std::string_view comment = {});

  std::string& out_;
  int depth_ = 0;
  std::vector<Space> array_space_;
  std::vector<DType> array_type_;
  std::vector<bool> array_packed_;
};

// "0x1.8p+1f": the text of a float or double, exact, whatever the locale and the compiler's
// rounding of decimals.
std::string c_literal(double value, bool single);

}  // namespace sinter::detail
