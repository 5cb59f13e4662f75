#include <fmt/format.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/index_expr.h>

#include <algorithm>
#include <numeric>

namespace sinter {
namespace {

using AtomPtr = std::shared_ptr<const IndexAtom>;

int compare(const IndexExpr& a, const IndexExpr& b);

int compare(const IndexAtom& a, const IndexAtom& b) {
  if (&a == &b) return 0;
  if (a.kind != b.kind) return a.kind < b.kind ? -1 : 1;
  if (a.id != b.id) return a.id < b.id ? -1 : 1;
  if (a.divisor != b.divisor) return a.divisor < b.divisor ? -1 : 1;
  if (!a.of) return 0;
  return compare(*a.of, *b.of);
}

int compare(const IndexExpr& a, const IndexExpr& b) {
  if (a.constant() != b.constant()) return a.constant() < b.constant() ? -1 : 1;
  if (a.terms().size() != b.terms().size()) return a.terms().size() < b.terms().size() ? -1 : 1;
  for (size_t i = 0; i < a.terms().size(); ++i) {
    const auto &x = a.terms()[i], &y = b.terms()[i];
    if (x.coefficient != y.coefficient) return x.coefficient < y.coefficient ? -1 : 1;
    if (int c = compare(*x.atom, *y.atom)) return c;
  }
  return 0;
}

int64_t floor_div(int64_t a, int64_t k) {
  return a >= 0 ? a / k : -((-a + k - 1) / k);
}

// 0 when the expression is not exactly one atom.
AtomPtr single_atom(const IndexExpr& e) {
  if (e.constant() == 0 && e.terms().size() == 1 && e.terms()[0].coefficient == 1)
    return e.terms()[0].atom;
  return nullptr;
}

}  // namespace

void IndexExpr::add_term(int64_t coefficient, const AtomPtr& atom) {
  if (coefficient == 0) return;
  auto at = terms_.begin();
  for (; at != terms_.end(); ++at) {
    int c = compare(*at->atom, *atom);
    if (c == 0) {
      at->coefficient += coefficient;
      if (at->coefficient == 0) terms_.erase(at);
      return;
    }
    if (c > 0) break;
  }
  terms_.insert(at, {coefficient, atom});
}

namespace {

IndexExpr scaled_atom(const AtomPtr& atom, int64_t k);

// c*mod(e,k) + c*k*floordiv(e,k) is c*e.
IndexExpr recombine(IndexExpr e) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const IndexExpr::Term& t : e.terms()) {
      if (t.atom->kind != IndexAtom::Mod) continue;
      IndexExpr quotient = floordiv(*t.atom->of, t.atom->divisor);
      AtomPtr q = single_atom(quotient);
      if (!q) continue;
      int64_t want = t.coefficient * t.atom->divisor;
      for (const IndexExpr::Term& d : e.terms()) {
        if (d.coefficient != want || compare(*d.atom, *q) != 0) continue;
        IndexExpr whole = *t.atom->of * t.coefficient;
        e = e - scaled_atom(t.atom, t.coefficient) - scaled_atom(d.atom, want) + whole;
        changed = true;
        break;
      }
      if (changed) break;
    }
  }
  return e;
}

}  // namespace

IndexExpr operator+(const IndexExpr& a, const IndexExpr& b) {
  IndexExpr out = a;
  out.constant_ += b.constant_;
  for (const IndexExpr::Term& t : b.terms_) out.add_term(t.coefficient, t.atom);
  bool has_mod = std::any_of(out.terms_.begin(), out.terms_.end(), [](const IndexExpr::Term& t) {
    return t.atom->kind == IndexAtom::Mod;
  });
  return has_mod && out.terms_.size() > 1 ? recombine(std::move(out)) : out;
}

IndexExpr operator*(const IndexExpr& a, int64_t k) {
  if (k == 0) return 0;
  IndexExpr out = a;
  out.constant_ *= k;
  for (IndexExpr::Term& t : out.terms_) t.coefficient *= k;
  return out;
}

IndexExpr operator-(const IndexExpr& a, const IndexExpr& b) {
  IndexExpr out = a;
  out.constant_ -= b.constant_;
  for (const IndexExpr::Term& t : b.terms_) out.add_term(-t.coefficient, t.atom);
  return out;
}

bool operator==(const IndexExpr& a, const IndexExpr& b) {
  return compare(a, b) == 0;
}

namespace {

IndexExpr scaled_atom(const AtomPtr& atom, int64_t k) {
  return IndexExpr::atom(*atom) * k;
}

}  // namespace

int64_t IndexExpr::low() const {
  int64_t v = constant_;
  for (const Term& t : terms_)
    v += t.coefficient * (t.coefficient > 0 ? t.atom->low : t.atom->high);
  return v;
}

int64_t IndexExpr::high() const {
  int64_t v = constant_;
  for (const Term& t : terms_)
    v += t.coefficient * (t.coefficient > 0 ? t.atom->high : t.atom->low);
  return v;
}

bool IndexExpr::multiple_of(int64_t n) const {
  if (constant_ % n != 0) return false;
  return std::all_of(terms_.begin(), terms_.end(),
                     [n](const Term& t) { return t.coefficient % n == 0; });
}

IndexExpr IndexExpr::atom(IndexAtom a) {
  IndexExpr e;
  e.add_term(1, std::make_shared<const IndexAtom>(std::move(a)));
  return e;
}

IndexExpr IndexExpr::axis(int id, int64_t extent) {
  IndexAtom a{IndexAtom::Axis};
  a.id = id;
  a.high = std::max<int64_t>(extent - 1, 0);
  // An axis of one place is always 0.
  return extent > 1 ? atom(std::move(a)) : IndexExpr(0);
}

IndexExpr IndexExpr::gathered(int id, int64_t low, int64_t high) {
  IndexAtom a{IndexAtom::Gathered};
  a.id = id;
  a.low = low;
  a.high = high - 1;
  return atom(std::move(a));
}

namespace {

IndexExpr div_or_mod_atom(IndexAtom::Kind kind, const IndexExpr& of, int64_t k) {
  IndexAtom a{kind};
  a.divisor = k;
  a.of = std::make_shared<const IndexExpr>(of);
  if (kind == IndexAtom::Div) {
    a.low = floor_div(of.low(), k);
    a.high = floor_div(of.high(), k);
  } else {
    a.low = 0;
    a.high = std::min(k - 1, of.low() >= 0 ? of.high() : k - 1);
  }
  return IndexExpr::atom(std::move(a));
}

// An expression g * high + low with low in 0..g-1, for a divisor g of k.
struct Split {
  int64_t g = 1;
  IndexExpr high, low;
};

Split split_by(const IndexExpr& e, int64_t g) {
  Split s;
  s.g = g;
  s.high = IndexExpr(floor_div(e.constant(), g));
  s.low = IndexExpr(e.constant() - s.high.constant() * g);
  for (const IndexExpr::Term& t : e.terms()) {
    if (t.coefficient % g == 0)
      s.high = s.high + scaled_atom(t.atom, t.coefficient / g);
    else
      s.low = s.low + scaled_atom(t.atom, t.coefficient);
  }
  return s;
}

// The split with the largest g below k among the divisors that coefficients share with k; g is 1
// when there is none.
Split split(const IndexExpr& e, int64_t k) {
  Split best;
  auto consider = [&](int64_t g) {
    if (g <= best.g || g >= k) return;
    Split s = split_by(e, g);
    if (s.low.low() >= 0 && s.low.high() < g) best = std::move(s);
  };
  int64_t common = k;
  for (const IndexExpr::Term& t : e.terms()) {
    common = std::gcd(common, t.coefficient);
    consider(std::gcd(k, t.coefficient));
  }
  consider(common);
  return best;
}

}  // namespace

IndexExpr floordiv(const IndexExpr& a, int64_t k) {
  SINTER_CHECK(k > 0, "floordiv by {}", k);
  if (k == 1) return a;
  // Multiples of k leave the division.
  IndexExpr whole, rest;
  whole.constant_ = floor_div(a.constant_, k);
  rest.constant_ = a.constant_ - whole.constant_ * k;
  for (const IndexExpr::Term& t : a.terms_) {
    if (t.coefficient % k == 0)
      whole.add_term(t.coefficient / k, t.atom);
    else
      rest.add_term(t.coefficient, t.atom);
  }
  int64_t lo = floor_div(rest.low(), k), hi = floor_div(rest.high(), k);
  if (lo == hi) return whole + IndexExpr(lo);
  if (AtomPtr atom = single_atom(rest); atom && atom->kind == IndexAtom::Div)
    return whole + floordiv(*atom->of, atom->divisor * k);
  if (Split s = split(rest, k); s.g > 1) return whole + floordiv(s.high, k / s.g);
  return whole + div_or_mod_atom(IndexAtom::Div, rest, k);
}

IndexExpr mod(const IndexExpr& a, int64_t k) {
  SINTER_CHECK(k > 0, "mod by {}", k);
  if (k == 1) return 0;
  IndexExpr rest;
  rest.constant_ = a.constant_ - floor_div(a.constant_, k) * k;
  for (const IndexExpr::Term& t : a.terms_)
    if (t.coefficient % k != 0) rest.add_term(t.coefficient, t.atom);
  int64_t lo = floor_div(rest.low(), k), hi = floor_div(rest.high(), k);
  if (lo == hi) return rest - IndexExpr(lo * k);
  if (AtomPtr atom = single_atom(rest);
      atom && atom->kind == IndexAtom::Mod && atom->divisor % k == 0)
    return mod(*atom->of, k);
  if (Split s = split(rest, k); s.g > 1) return mod(s.high, k / s.g) * s.g + s.low;
  return div_or_mod_atom(IndexAtom::Mod, rest, k);
}

void IndexExpr::collect_axes(std::vector<int>& ids) const {
  for (const Term& t : terms_) {
    if (t.atom->kind == IndexAtom::Axis) {
      if (std::find(ids.begin(), ids.end(), t.atom->id) == ids.end()) ids.push_back(t.atom->id);
    } else if (t.atom->of) {
      t.atom->of->collect_axes(ids);
    }
  }
}

void IndexExpr::collect_gathered(std::vector<int>& ids) const {
  for (const Term& t : terms_) {
    if (t.atom->kind == IndexAtom::Gathered) {
      if (std::find(ids.begin(), ids.end(), t.atom->id) == ids.end()) ids.push_back(t.atom->id);
    } else if (t.atom->of) {
      t.atom->of->collect_gathered(ids);
    }
  }
}

IndexExpr IndexExpr::substitute(const std::function<IndexExpr(const IndexAtom&)>& leaf) const {
  IndexExpr out(constant_);
  for (const Term& t : terms_) {
    switch (t.atom->kind) {
      case IndexAtom::Axis:
      case IndexAtom::Gathered:
        out = out + leaf(*t.atom) * t.coefficient;
        break;
      case IndexAtom::Div:
        out = out + floordiv(t.atom->of->substitute(leaf), t.atom->divisor) * t.coefficient;
        break;
      case IndexAtom::Mod:
        out = out + mod(t.atom->of->substitute(leaf), t.atom->divisor) * t.coefficient;
        break;
    }
  }
  return out;
}

std::string IndexExpr::str(const std::function<std::string(const IndexAtom&)>& name) const {
  std::string out;
  for (const Term& t : terms_) {
    std::string atom;
    if (t.atom->of) {
      std::string inner = t.atom->of->str(name);
      bool simple = t.atom->of->terms().size() == 1 && t.atom->of->constant() == 0 &&
                    t.atom->of->terms()[0].coefficient == 1;
      if (!simple) inner = "(" + inner + ")";
      atom = fmt::format("({} {} {})", inner, t.atom->kind == IndexAtom::Div ? "/" : "%",
                         t.atom->divisor);
    } else {
      atom = name(*t.atom);
    }
    int64_t c = t.coefficient;
    if (!out.empty())
      out += c < 0 ? " - " : " + ";
    else if (c < 0)
      out += "-";
    int64_t magnitude = c < 0 ? -c : c;
    out += magnitude == 1 ? atom : fmt::format("{}*{}", magnitude, atom);
  }
  if (out.empty()) return fmt::format("{}", constant_);
  if (constant_ > 0) out += fmt::format(" + {}", constant_);
  if (constant_ < 0) out += fmt::format(" - {}", -constant_);
  return out;
}

uint64_t IndexExpr::hash() const {
  uint64_t h = static_cast<uint64_t>(constant_) * 0x9e3779b97f4a7c15ULL;
  for (const Term& t : terms_) {
    uint64_t a = static_cast<uint64_t>(t.atom->kind) * 31 + static_cast<uint64_t>(t.atom->id);
    a = a * 1000003 + static_cast<uint64_t>(t.atom->divisor);
    if (t.atom->of) a = a * 1000003 + t.atom->of->hash();
    h = (h ^ a) * 0xff51afd7ed558ccdULL + static_cast<uint64_t>(t.coefficient);
  }
  return h;
}

void Guard::add(const IndexExpr& e, int64_t low, int64_t high) {
  if (e.low() >= low && e.high() < high) return;
  if (e.high() < low || e.low() >= high) never = true;
  GuardTerm term{e, low, high};
  if (std::find(terms.begin(), terms.end(), term) == terms.end()) terms.push_back(std::move(term));
}

void Guard::add(const Guard& other) {
  never = never || other.never;
  for (const GuardTerm& t : other.terms)
    if (std::find(terms.begin(), terms.end(), t) == terms.end()) terms.push_back(t);
}

IndexExpr linearize(const std::vector<IndexExpr>& at, const std::vector<int64_t>& shape) {
  SINTER_CHECK(at.size() == shape.size(), "linearize: {} indices for rank {}", at.size(),
               shape.size());
  IndexExpr out;
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    out = out + at[i] * step;
    step *= shape[i];
  }
  return out;
}

std::vector<IndexExpr> delinearize(const IndexExpr& linear, const std::vector<int64_t>& shape) {
  std::vector<IndexExpr> at(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    int64_t extent = std::max<int64_t>(shape[i], 1);
    at[i] = floordiv(linear, step);
    // The outermost axis needs no remainder: the linear index is in range.
    if (i > 0) at[i] = mod(at[i], extent);
    step *= extent;
  }
  return at;
}

}  // namespace sinter
