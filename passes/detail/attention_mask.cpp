#include <sinter/passes/detail/attention_mask.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>

#include <algorithm>
#include <cmath>

namespace sinter::detail {

namespace {

// Ops in a row that are looked through.
constexpr int kDeepest = 24;

// ---- Views

// The roles of the operand's axes where a reshape moves, adds or removes axes of extent 1 alone.
std::optional<Roles> through_reshape(const Roles& roles, const Shape& outer, const Shape& inner) {
  Roles out(inner.size(), Role::Other);
  size_t at = 0;
  for (size_t i = 0; i < outer.size(); ++i) {
    if (outer[i] == 1) continue;
    while (at < inner.size() && inner[at] == 1) ++at;
    if (at == inner.size() || inner[at] != outer[i]) return std::nullopt;
    out[at++] = roles[i];
  }
  return out;
}

// What lies under a view; nullopt for other ops, and where axes lose their meaning.
std::optional<Seen> under_view(const Seen& s) {
  const Op* op = s.value.op();
  if (op == nullptr) return std::nullopt;
  const Value x = op->operand(0);
  Seen inner{x, {}, s.views, s.outer, s.depth + 1};
  inner.views.push_back(op);
  if (op->is("broadcast")) {
    auto added = static_cast<size_t>(s.value.rank() - x.rank());
    inner.roles.assign(s.roles.begin() + static_cast<int64_t>(added), s.roles.end());
    for (size_t i = 0; i < inner.roles.size(); ++i)
      if (x.shape()[i] == 1) inner.roles[i] = Role::Other;
    return inner;
  }
  if (op->is("permute")) {
    inner.roles.resize(s.roles.size());
    const auto& axes = op->attrs<PermuteAttrs>().axes.value;
    for (size_t i = 0; i < axes.size(); ++i)
      inner.roles[static_cast<size_t>(*normalize_axis(axes[i], x.rank()))] = s.roles[i];
    return inner;
  }
  if (is_reshape(*op)) {
    std::optional<Roles> roles = through_reshape(s.roles, s.value.shape(), x.shape());
    if (!roles) return std::nullopt;
    inner.roles = std::move(*roles);
    return inner;
  }
  return std::nullopt;
}

// An operand of the op at hand, at the same place.
Seen operand_of(const Seen& s, size_t i) {
  Value v = s.value.op()->operand(i);
  return {v, s.roles, s.views, s.views.empty() ? v : Value(), s.depth + 1};
}

// A number in another type, but for the rounding of floats.
double cast_to(DType type, double x) {
  if (type == DType::Bool) return x != 0 ? 1 : 0;
  return is_float(type) ? x : std::trunc(x);
}

// Whether a cast leaves numbers what they are, but for the rounding of floats.
bool keeps_numbers(const Op& cast) {
  DType from = cast.operand(0).dtype(), to = cast.result().dtype();
  return is_float(to) || (is_integer(to) && !is_float(from));
}

// ---- Counters

// q * query + k * key + c
struct Affine {
  double q = 0, k = 0, c = 0;
  friend Affine operator+(Affine a, Affine b) { return {a.q + b.q, a.k + b.k, a.c + b.c}; }
  friend Affine operator*(double f, Affine a) { return {f * a.q, f * a.k, f * a.c}; }
  bool is_constant() const { return q == 0 && k == 0; }
};

// Whether sums of places are exact in the type.
bool counts_exactly(DType type) {
  return type == DType::I32 || type == DType::I64 || type == DType::F32 || type == DType::F64;
}

std::optional<Affine> affine(const Seen& s) {
  const Op* op = s.value.op();
  if (op == nullptr || s.depth > kDeepest || !counts_exactly(s.value.dtype())) return std::nullopt;
  if (auto inner = under_view(s)) return affine(*inner);
  if (op->is("full")) return Affine{0, 0, op->attrs<FullAttrs>().value.as_double()};
  if (op->is("iota")) {
    int64_t axis = *normalize_axis(op->attrs<IotaAttrs>().axis.value, s.value.rank());
    switch (s.roles[static_cast<size_t>(axis)]) {
      case Role::Query:
        return Affine{1, 0, 0};
      case Role::Key:
        return Affine{0, 1, 0};
      default:
        return s.value.dim(axis) == 1 ? std::optional(Affine{}) : std::nullopt;
    }
  }
  auto part = [&](size_t i) { return affine(operand_of(s, i)); };
  if (op->is("cast")) return keeps_numbers(*op) ? part(0) : std::nullopt;
  if (op->is("neg")) {
    auto a = part(0);
    return a ? std::optional(-1.0 * *a) : std::nullopt;
  }
  if (!op->is("add") && !op->is("sub") && !op->is("mul")) return std::nullopt;
  auto a = part(0);
  if (!a) return std::nullopt;
  auto b = part(1);
  if (!b) return std::nullopt;
  if (op->is("add")) return *a + *b;
  if (op->is("sub")) return *a + -1.0 * *b;
  if (a->is_constant()) return a->c * *b;
  if (b->is_constant()) return b->c * *a;
  return std::nullopt;
}

// ---- Comparisons

enum class Compare : uint8_t { Lt, Le, Gt, Ge, Eq, Ne };

std::optional<Compare> comparison(const Op& op) {
  constexpr std::pair<std::string_view, Compare> kAll[] = {
      {"lt", Compare::Lt}, {"le", Compare::Le}, {"gt", Compare::Gt},
      {"ge", Compare::Ge}, {"eq", Compare::Eq}, {"ne", Compare::Ne}};
  for (const auto& [name, compare] : kAll)
    if (op.is(name)) return compare;
  return std::nullopt;
}
Compare opposite(Compare c) {
  constexpr Compare kOpposite[] = {Compare::Ge, Compare::Gt, Compare::Le,
                                   Compare::Lt, Compare::Ne, Compare::Eq};
  return kOpposite[static_cast<size_t>(c)];
}
// b ? a for a ? b.
Compare exchanged(Compare c) {
  constexpr Compare kExchanged[] = {Compare::Gt, Compare::Ge, Compare::Lt,
                                    Compare::Le, Compare::Eq, Compare::Ne};
  return kExchanged[static_cast<size_t>(c)];
}
bool holds(Compare c, double a, double b) {
  switch (c) {
    case Compare::Lt:
      return a < b;
    case Compare::Le:
      return a <= b;
    case Compare::Gt:
      return a > b;
    case Compare::Ge:
      return a >= b;
    case Compare::Eq:
      return a == b;
    default:
      return a != b;
  }
}

// Where d, an affine of (key - query) alone, compares so with 0; nullopt where that is no band.
std::optional<Band> band_where(Affine d, Compare c) {
  if (d.is_constant()) return holds(c, d.c, 0) ? std::optional(Band{}) : std::nullopt;
  if (d.q != -d.k || std::abs(d.c) > 0x1p39) return std::nullopt;
  // key - query ? limit
  double limit = -d.c / d.k;
  if (d.k < 0) c = exchanged(c);
  auto whole = [](double x) { return static_cast<int64_t>(x); };
  switch (c) {
    case Compare::Lt:
      return Band{-Band::kFree, whole(std::ceil(limit)) - 1};
    case Compare::Le:
      return Band{-Band::kFree, whole(std::floor(limit))};
    case Compare::Gt:
      return Band{whole(std::floor(limit)) + 1, Band::kFree};
    case Compare::Ge:
      return Band{whole(std::ceil(limit)), Band::kFree};
    default:
      return std::nullopt;
  }
}

// ---- Values of two kinds

// `yes` where the condition (not) holds, or within the band; `no` elsewhere.
struct Indicator {
  double yes = 1, no = 0;
  std::optional<Band> band;  // one-sided
  Condition condition;
};

std::optional<Band> triangle(const Seen& s, bool lower) {
  const auto rank = static_cast<size_t>(s.value.rank());
  int64_t diagonal = s.value.op()->attrs<TriangleAttrs>().diagonal;
  Role row = s.roles[rank - 2], column = s.roles[rank - 1];
  if (row == Role::Query && column == Role::Key)
    return lower ? Band{-Band::kFree, diagonal} : Band{diagonal, Band::kFree};
  if (row == Role::Key && column == Role::Query)
    return lower ? Band{-diagonal, Band::kFree} : Band{-Band::kFree, -diagonal};
  return std::nullopt;
}

std::optional<Indicator> indicator(const Seen& s) {
  const Op* op = s.value.op();
  if (op == nullptr || s.depth > kDeepest) return std::nullopt;
  if (auto inner = under_view(s)) return indicator(*inner);
  if (op->is("tril") || op->is("triu")) {
    std::optional<double> each = constant_of(op->operand(0));
    std::optional<Band> band = triangle(s, op->is("tril"));
    if (!each || !band) return std::nullopt;
    return Indicator{*each, 0, band, {}};
  }
  if (op->is("where")) {
    auto yes = constant_of(op->operand(1)), no = constant_of(op->operand(2));
    if (!yes || !no) return std::nullopt;
    return Indicator{*yes, *no, {}, {operand_of(s, 0), false}};
  }
  if (op->is("masked_fill")) {
    auto no = constant_of(op->operand(0));
    if (!no) return std::nullopt;
    return Indicator{
        op->attrs<MaskedFillAttrs>().value.as_double(), *no, {}, {operand_of(s, 1), false}};
  }
  auto mapped = [&](size_t i, auto&& f) -> std::optional<Indicator> {
    std::optional<Indicator> x = indicator(operand_of(s, i));
    if (x) {
      x->yes = f(x->yes);
      x->no = f(x->no);
    }
    return x;
  };
  if (op->is("cast")) {
    if (op->operand(0).dtype() == DType::Bool && !indicator(operand_of(s, 0)))
      return Indicator{1, 0, {}, {operand_of(s, 0), false}};
    return mapped(0, [&](double x) { return cast_to(s.value.dtype(), x); });
  }
  if (op->is("neg")) return mapped(0, [](double x) { return -x; });
  if (op->is("log")) return mapped(0, [](double x) { return std::log(x); });
  bool sub = op->is("sub"), div = op->is("div");
  if (!sub && !div && !op->is("add") && !op->is("mul")) return std::nullopt;
  for (size_t i : {0, 1}) {
    std::optional<double> c = constant_of(op->operand(1 - i));
    if (!c) continue;
    if (op->is("add")) return mapped(i, [&](double x) { return x + *c; });
    if (op->is("mul")) return mapped(i, [&](double x) { return x * *c; });
    if (sub) return mapped(i, [&](double x) { return i == 0 ? x - *c : *c - x; });
    return mapped(i, [&](double x) { return i == 0 ? x / *c : *c / x; });
  }
  return std::nullopt;
}

// The opposite of a band with one end.
Band outside(const Band& band) {
  return band.high < Band::kFree ? Band{band.high + 1, Band::kFree}
                                 : Band{-Band::kFree, band.low - 1};
}

// Adds that the indicator is `yes`, or that it is not.
void add_indicator(const Indicator& x, bool yes, Visible& out) {
  if (x.band)
    out.band = intersection(out.band, yes ? *x.band : outside(*x.band));
  else
    add_condition(x.condition.seen, x.condition.negated == yes, out);
}

// |d| within a limit, as two comparisons.
std::optional<Band> band_of_distance(const Seen& side, double limit, Compare c) {
  const Op* op = side.value.op();
  if (op == nullptr) return std::nullopt;
  if (auto inner = under_view(side)) return band_of_distance(*inner, limit, c);
  if (!op->is("abs") || (c != Compare::Lt && c != Compare::Le)) return std::nullopt;
  std::optional<Affine> d = affine(operand_of(side, 0));
  if (!d || d->is_constant()) return std::nullopt;
  auto below = band_where(*d + Affine{0, 0, -limit}, c);
  auto above = band_where(-1.0 * *d + Affine{0, 0, -limit}, c);
  if (!below || !above) return std::nullopt;
  return intersection(*below, *above);
}

// Whether the comparison was understood.
bool add_comparison(const Seen& s, Compare c, Visible& out) {
  const Seen a = operand_of(s, 0), b = operand_of(s, 1);
  std::optional<Affine> x = affine(a), y = affine(b);
  if (x && y) {
    std::optional<Band> band = band_where(*x + -1.0 * *y, c);
    if (band) out.band = intersection(out.band, *band);
    return band.has_value();
  }
  for (bool left : {true, false}) {
    std::optional<double> limit = constant_of((left ? b : a).value);
    if (!limit) continue;
    Compare with = left ? c : exchanged(c);
    if (auto band = band_of_distance(left ? a : b, *limit, with)) {
      out.band = intersection(out.band, *band);
      return true;
    }
    std::optional<Indicator> two = indicator(left ? a : b);
    if (!two) return false;
    bool yes = holds(with, two->yes, *limit), no = holds(with, two->no, *limit);
    if (yes == no) return false;
    add_indicator(*two, yes, out);
    return true;
  }
  return false;
}

// The slopes: nothing but heads is told apart.
bool is_of_heads(const Seen& s) {
  if (auto inner = under_view(s)) return is_of_heads(*inner);
  for (size_t i = 0; i < s.roles.size(); ++i)
    if (s.value.shape()[i] != 1 && s.roles[i] != Role::Head) return false;
  return is_float(s.value.dtype());
}
Value innermost(const Seen& s) {
  auto inner = under_view(s);
  return inner ? innermost(*inner) : s.value;
}

// A distance, |distance|, or neither.
std::optional<Slopes> distance(const Seen& s) {
  const Op* op = s.value.op();
  if (op == nullptr) return std::nullopt;
  if (std::optional<Affine> d = affine(s)) {
    // Distances along a row may be counted from anywhere: softmax sees no difference.
    if (d->k == 0) return std::nullopt;
    return Slopes{{}, d->k, d->q == -d->k ? d->c / d->k : 0, false};
  }
  if (auto inner = under_view(s)) return distance(*inner);
  if (op->is("cast") && keeps_numbers(*op)) return distance(operand_of(s, 0));
  if (!op->is("abs")) return std::nullopt;
  std::optional<Affine> d = affine(operand_of(s, 0));
  if (!d || d->k == 0 || d->q != -d->k) return std::nullopt;
  return Slopes{{}, std::abs(d->k), d->c / d->k, true};
}

}  // namespace

bool is_reshape(const Op& op) {
  return op.is("reshape") || op.is("squeeze") || op.is("unsqueeze");
}
bool is_view(const Op& op) {
  return is_reshape(op) || op.is("broadcast") || op.is("permute");
}

const Op* made_by(Value v, std::string_view name) {
  return v && v.op() != nullptr && v.op()->is(name) ? v.op() : nullptr;
}

Band intersection(const Band& a, const Band& b) {
  return {std::max(a.low, b.low), std::min(a.high, b.high)};
}

bool sees_everywhere(const Band& band, int64_t queries, int64_t keys) {
  return keys > 0 && band.low <= band.high && band.high >= 0 && queries - 1 + band.low <= keys - 1;
}

Value with_views(const Seen& s) {
  if (s.outer) return s.outer;
  // The views may be of another type: of what was made of the value later.
  Value v = s.value;
  for (size_t i = s.views.size(); i-- > 0;) {
    const Op& view = *s.views[i];
    if (view.is("broadcast"))
      v = broadcast_to(v, view.result().shape());
    else if (view.is("permute"))
      v = permute(v, view.attrs<PermuteAttrs>().axes.value);
    else
      v = reshape(v, view.result().shape());
  }
  return v;
}

std::optional<double> constant_of(Value v) {
  const Op* op = v ? v.op() : nullptr;
  if (op == nullptr) return std::nullopt;
  if (op->is("full")) return op->attrs<FullAttrs>().value.as_double();
  if (!is_view(*op) && !op->is("cast")) return std::nullopt;
  std::optional<double> x = constant_of(op->operand(0));
  return x ? std::optional(cast_to(v.dtype(), *x)) : std::nullopt;
}

void add_condition(const Seen& s, bool negated, Visible& out) {
  const Op* op = s.value.op();
  auto keep = [&] { out.conditions.push_back({s, negated}); };
  if (op == nullptr || s.depth > kDeepest) return keep();
  if (op->is("logical_not")) return add_condition(operand_of(s, 0), !negated, out);
  if (op->is(negated ? "logical_or" : "logical_and")) {
    add_condition(operand_of(s, 0), negated, out);
    return add_condition(operand_of(s, 1), negated, out);
  }
  if (std::optional<double> c = constant_of(s.value)) {
    if ((*c != 0) == negated) keep();
    return;
  }
  if (auto inner = under_view(s)) return add_condition(*inner, negated, out);
  if (auto compare = comparison(*op)) {
    if (!add_comparison(s, negated ? opposite(*compare) : *compare, out)) keep();
    return;
  }
  if (std::optional<Indicator> two = indicator(s); two && (two->yes != 0) != (two->no != 0))
    return add_indicator(*two, (two->yes != 0) != negated, out);
  keep();
}

std::optional<AddedMask> added_mask(const Seen& term, double factor, double far) {
  std::optional<Indicator> two = indicator(term);
  if (!two) return std::nullopt;
  double yes = two->yes * factor, no = two->no * factor;
  AddedMask out;
  if (yes == 0 && no <= far) {
    out.value = no;
    add_indicator(*two, true, out.visible);
    return out;
  }
  if (no == 0 && yes <= far) {
    out.value = yes;
    add_indicator(*two, false, out.visible);
    return out;
  }
  return std::nullopt;
}

std::optional<Slopes> slopes_of(const Seen& term, double factor) {
  const Op* op = term.value.op();
  if (op == nullptr || term.depth > kDeepest) return std::nullopt;
  if (auto inner = under_view(term)) return slopes_of(*inner, factor);
  if (op->is("cast") && keeps_numbers(*op)) return slopes_of(operand_of(term, 0), factor);
  if (op->is("neg")) return slopes_of(operand_of(term, 0), -factor);
  if (!op->is("mul")) return std::nullopt;
  for (size_t i : {0, 1}) {
    Seen a = operand_of(term, i), b = operand_of(term, 1 - i);
    if (std::optional<double> c = constant_of(b.value))
      if (auto out = slopes_of(a, factor * *c)) return out;
    if (!is_of_heads(a)) continue;
    if (std::optional<Slopes> d = distance(b)) {
      d->slopes = innermost(a);
      d->factor *= factor;
      return d;
    }
  }
  return std::nullopt;
}

}  // namespace sinter::detail
