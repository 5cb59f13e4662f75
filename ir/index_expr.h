#pragma once
// Quasi-affine index expressions: + - ·constant, floordiv and mod by constants, over axes and
// gathered integers.
//
// An expression is kept in a canonical form: a constant plus terms coefficient·atom with distinct
// atoms; an atom is an axis, a gathered integer, or floordiv/mod of another expression. Ranges of
// atoms are known, so that divisions which cannot matter vanish as the expression is built. Equal
// values built the same way compare equal.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sinter {

class IndexExpr;

struct IndexAtom {
  enum Kind : uint8_t { Axis, Gathered, Div, Mod };
  Kind kind;
  int id = 0;                           // Axis, Gathered: which one
  int64_t divisor = 1;                  // Div, Mod
  int64_t low = 0, high = 0;            // inclusive range
  std::shared_ptr<const IndexExpr> of;  // Div, Mod
};

class IndexExpr {
 public:
  struct Term {
    int64_t coefficient;
    std::shared_ptr<const IndexAtom> atom;
  };

  IndexExpr() = default;
  IndexExpr(int64_t constant) : constant_(constant) {}
  // An axis taking 0..extent-1.
  static IndexExpr axis(int id, int64_t extent);
  // An integer computed elsewhere, in low..high-1.
  static IndexExpr gathered(int id, int64_t low, int64_t high);

  int64_t constant() const { return constant_; }
  const std::vector<Term>& terms() const { return terms_; }
  bool is_constant() const { return terms_.empty(); }
  // Inclusive bounds of the value.
  int64_t low() const;
  int64_t high() const;
  // Whether every value is a multiple of n.
  bool multiple_of(int64_t n) const;
  // The axes that occur, below divisions too.
  void collect_axes(std::vector<int>& ids) const;
  void collect_gathered(std::vector<int>& ids) const;
  // e at axis := replacement.
  IndexExpr substitute(const std::function<IndexExpr(const IndexAtom& leaf)>& leaf) const;

  // "3*n + (c / 8)"; names by axis id.
  std::string str(const std::function<std::string(const IndexAtom& leaf)>& name) const;
  uint64_t hash() const;

  friend IndexExpr operator+(const IndexExpr& a, const IndexExpr& b);
  friend IndexExpr operator-(const IndexExpr& a, const IndexExpr& b);
  friend IndexExpr operator*(const IndexExpr& a, int64_t k);
  // Floor division and the remainder in 0..k-1, k > 0.
  friend IndexExpr floordiv(const IndexExpr& a, int64_t k);
  friend IndexExpr mod(const IndexExpr& a, int64_t k);
  friend bool operator==(const IndexExpr& a, const IndexExpr& b);

  static IndexExpr atom(IndexAtom a);  // as it is; the factories above and below simplify

 private:
  void add_term(int64_t coefficient, const std::shared_ptr<const IndexAtom>& atom);
  int64_t constant_ = 0;
  std::vector<Term> terms_;  // ordered
};

// A conjunction of low <= e < high.
struct GuardTerm {
  IndexExpr e;
  int64_t low, high;
  friend bool operator==(const GuardTerm&, const GuardTerm&) = default;
};
struct Guard {
  std::vector<GuardTerm> terms;  // terms that always hold are left out
  bool never = false;            // a term can never hold

  void add(const IndexExpr& e, int64_t low, int64_t high);
  void add(const Guard& other);
  bool always() const { return terms.empty() && !never; }
  friend bool operator==(const Guard&, const Guard&) = default;
};

// Row-major linear index of `at` in `shape`, and back.
IndexExpr linearize(const std::vector<IndexExpr>& at, const std::vector<int64_t>& shape);
std::vector<IndexExpr> delinearize(const IndexExpr& linear, const std::vector<int64_t>& shape);

}  // namespace sinter
