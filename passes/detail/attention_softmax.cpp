#include <sinter/passes/detail/attention_softmax.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/attention_mask.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

namespace sinter::detail {

namespace {

// Ops in a row that are looked through, and ops that a search looks at.
constexpr int kDeepest = 32;
constexpr size_t kWidest = 256;

using OpSet = std::unordered_set<const Op*>;

bool is_last_axis(int64_t axis, Value of) {
  return of.rank() > 0 && normalize_axis(axis, of.rank()) == of.rank() - 1;
}
bool is_over_rows(const Op& reduction) {
  const auto axes = std::get<std::vector<int64_t>>(reduction.attr("axes"));
  return axes.size() == 1 && is_last_axis(axes[0], reduction.operand(0));
}
int64_t rows_of(Value v) {
  const Shape& s = v.shape();
  return num_elements(Shape(s.begin(), s.end() - 1));
}

bool is_float_cast(const Op& op) {
  return op.is("cast") && is_float(op.operand(0).dtype()) && is_float(op.result().dtype());
}
// `v` before casts between floats, which become part of the pattern.
Value before_casts(Value v, OpSet& inside) {
  for (int i = 0; i < kDeepest && v.op() != nullptr && is_float_cast(*v.op()); ++i) {
    inside.insert(v.op());
    v = v.op()->operand(0);
  }
  return v;
}
Value before_casts(Value v) {
  OpSet none;
  return before_casts(v, none);
}

// What lies under a view of a value that has one number for each of `rows` rows, in order, alone or
// repeated along the columns; null where the view is another one.
Value under_row_view(const Op& op, int64_t rows) {
  Value v = op.result();
  if (is_reshape(op)) {
    Value x = op.operand(0);
    bool keeps_columns = x.rank() > 0 && v.rank() > 0 && x.dim(-1) == v.dim(-1);
    return v.type().elements() == rows || keeps_columns ? x : Value();
  }
  if (!op.is("broadcast")) return {};
  Value x = op.operand(0);
  if (x.type().elements() == v.type().elements()) return x;
  Shape from = x.shape(), to = v.shape();
  from.insert(from.begin(), to.size() - from.size(), 1);
  if (from.back() != 1) return {};
  to.back() = 1;
  return from == to ? x : Value();
}

// ---- Numbers of rows

// A `where` that puts a number in the place of others.
struct Guard {
  Value condition;
  bool on_true = false;  // where the number stands
};

// Reads a number of each row: the maximum of scores or the sum of exponentials, through ops that
// leave it what it is.
class RowReader {
 public:
  OpSet inside;  // what was read
  std::string why;
  bool guarded = false;

  // The maximum; null, with `why`, where there is none or something else happens to it.
  const Op* maximum(Value v, int64_t rows) {
    rows_ = rows;
    reduction_ = "max";
    what_ = "the maximum of the scores";
    lowest_ = -std::numeric_limits<double>::infinity();
    return read(v);
  }
  // The sum, or its reciprocal.
  const Op* total(Value v, int64_t rows, bool inverse) {
    rows_ = rows;
    reduction_ = "sum";
    what_ = "the sum of the exponentials";
    inverse_ = inverse;
    return read(v);
  }
  // log of the sum of exponentials.
  const Op* logarithm(Value v, int64_t rows) {
    rows_ = rows;
    reduction_ = "logsumexp";
    what_ = "logsumexp of the scores";
    return read(v);
  }

 private:
  const Op* fail(std::string text) {
    why = std::move(text);
    return nullptr;
  }

  const Op* read(Value v) {
    const Op* found = follow(v, true);
    if (found == nullptr) return nullptr;
    if (inverse_) return fail(fmt::format("{} multiplies", what_));
    if (!is_over_rows(*found))
      return fail(fmt::format("{} is not over the last axis of the scores", what_));
    for (const Guard& g : guards_)
      if (!acts_at(g, found)) return fail(fmt::format("{} is chosen by another condition", what_));
    guarded = !guards_.empty();
    return found;
  }

  const Op* follow(Value v, bool takes_guards) {
    for (int i = 0; i < kDeepest && v.op() != nullptr; ++i) {
      const Op& op = *v.op();
      inside.insert(&op);
      if (op.is(reduction_)) return &op;
      Value next = under_row_view(op, rows_);
      // A condition may not take small sums for 0.
      if (!next && is_float_cast(op) &&
          (takes_guards || size_of(op.operand(0).dtype()) < size_of(v.dtype())))
        next = op.operand(0);
      if (!next && op.is("stop_gradient") && (!takes_guards || reduction_ == "max"))
        next = op.operand(0);
      if (!next && takes_guards && op.is("where")) next = add_guard(op);
      if (!next && takes_guards && inverse_) next = turned(op);
      if (!next && op.is("broadcast"))
        return fail(fmt::format("{} is repeated for other rows", what_));
      if (!next) return fail(fmt::format("{} goes through an op {}", what_, op.name()));
      v = next;
    }
    return fail(fmt::format("{} is not found", what_));
  }

  // Of a reciprocal, what it is of.
  Value turned(const Op& op) {
    bool one_over = op.is("div") && constant_of(op.operand(0)) == 1.0;
    if (!op.is("reciprocal") && !one_over) return {};
    inverse_ = false;
    return op.operand(one_over ? 1 : 0);
  }

  // Takes a where with a number that does no harm to a row of which nothing is seen: there the
  // exponentials are 0 and stay so.
  Value add_guard(const Op& op) {
    for (size_t i : {1, 2}) {
      std::optional<double> c = constant_of(op.operand(i));
      bool harmless =
          c && (reduction_ == "sum" && !inverse_ ? *c != 0 && !std::isnan(*c) : std::isfinite(*c));
      if (!harmless || reduction_ == "logsumexp") continue;
      guards_.push_back({op.operand(0), i == 1});
      return op.operand(3 - i);
    }
    return {};
  }

  // Whether the guard's number stands exactly where nothing is seen: where the maximum is -inf, the
  // sum 0. No row has less.
  bool acts_at(const Guard& g, const Op* found) {
    bool yes = g.on_true;
    Value c = g.condition;
    for (int i = 0; i < kDeepest && c.op() != nullptr; ++i) {
      const Op& op = *c.op();
      inside.insert(&op);
      Value next = under_row_view(op, rows_);
      if (op.is("logical_not")) {
        yes = !yes;
        next = op.operand(0);
      }
      if (next) {
        c = next;
        continue;
      }
      if (op.is("isfinite"))
        return !yes && std::isinf(lowest_) && follow(op.operand(0), false) == found;
      for (size_t side : {0, 1}) {
        static constexpr std::string_view kThere[][2] = {{"eq", "le"}, {"eq", "ge"}};
        static constexpr std::string_view kAway[][2] = {{"ne", "gt"}, {"ne", "lt"}};
        const auto& names = (yes ? kThere : kAway)[side];
        if ((op.is(names[0]) || op.is(names[1])) && constant_of(op.operand(1 - side)) == lowest_)
          return follow(op.operand(side), false) == found;
      }
      return false;
    }
    return false;
  }
  int64_t rows_ = 0;
  std::string_view reduction_, what_;
  bool inverse_ = false;  // until the reciprocal is met
  double lowest_ = 0;     // the row's number where nothing is seen
  std::vector<Guard> guards_;
};

// ---- Searches

// The ops that `v` is made by, up to those that make `end`; whether it was met.
bool makers_of(Value v, Value end, OpSet& makers) {
  std::vector<Value> work{v};
  bool met = false;
  while (!work.empty() && makers.size() < kWidest) {
    Value x = work.back();
    work.pop_back();
    met = met || x == end;
    if (x == end || x.op() == nullptr || !makers.insert(x.op()).second) continue;
    for (Value y : x.op()->operands())
      if (y) work.push_back(y);
  }
  return met;
}
// Whether `v` is made, among other ops, of a reduction of this name of what is made of `of`; means
// are sums.
bool depends_on(Value v, Value of, std::string_view reduction) {
  OpSet makers;
  if (!makers_of(v, of, makers)) return false;
  return std::any_of(makers.begin(), makers.end(), [&](const Op* op) {
    OpSet further;
    bool reduces = op->is(reduction) || (reduction == "sum" && op->is("mean"));
    return reduces && makers_of(op->operand(0), of, further);
  });
}

bool is_exponential(const Op& op) {
  return op.is("exp") || op.is("exp2");
}
// The name of the first op between `v` and exponentials; empty where there are none.
std::string_view between_exponentials(Value v) {
  std::vector<Value> work{v};
  OpSet known;
  const Op* first = before_casts(v).op();
  while (!work.empty() && known.size() < kWidest) {
    const Op* op = work.back().op();
    work.pop_back();
    if (op == nullptr || !known.insert(op).second) continue;
    if (is_exponential(*op)) return first->name();
    if (op->def().kind != OpKind::Pointwise && !is_view(*op) && !op->is("masked_fill") &&
        !op->is("tril") && !op->is("triu") && !op->is("dropout"))
      continue;
    for (Value x : op->operands())
      if (x && x.type().elements() == v.type().elements() && !constant_of(x)) work.push_back(x);
  }
  return {};
}

// ---- Forms

class Division {
 public:
  Division(const Op& op, Value above, Value below, bool inverse)
      : op_(op), above_(above), below_(below), inverse_(inverse) {}

  std::optional<Softmax> run() {
    Value e = numerator();
    if (!e || e.rank() == 0) return std::nullopt;
    out_.probabilities = out_.product != nullptr ? weighted_ : op_.result();
    if (e.op() == nullptr || !is_exponential(*e.op())) {
      std::string_view name = between_exponentials(e);
      if (name.empty() || !depends_on(below_, e, "sum")) return std::nullopt;
      out_.scores = e;
      out_.why = fmt::format("the exponentials go through an op {}", name);
      return out_;
    }
    out_.why = read_total(e);
    if (!out_.why.empty() && !depends_on(below_, e, "sum")) return std::nullopt;
    if (out_.product == nullptr) out_.inside.insert(&op_);
    out_.inside.insert(e.op());
    out_.scores = e.op()->operand(0);
    if (e.op()->is("exp2")) out_.factor = std::log(2.0);
    if (std::string why = read_shift(); out_.why.empty()) out_.why = std::move(why);
    out_.clears_rows = guarded_ && !shifted_;
    return out_;
  }

 private:
  // What is divided, or what the product that is divided is of, before casts.
  Value numerator() {
    const Op* product = above_.op();
    if (product == nullptr || product->def().kind != OpKind::Contract)
      return before_casts(above_, out_.inside);
    out_.product = product;
    weighted_ = product->operand(0);
    while (weighted_.op() != nullptr &&
           (is_reshape(*weighted_.op()) || weighted_.op()->is("dropout") ||
            is_float_cast(*weighted_.op())))
      weighted_ = weighted_.op()->operand(0);
    return weighted_;
  }

  // Reads the sum of `e`; says what it is instead.
  std::string read_total(Value e) {
    RowReader reader;
    const Op* total = reader.total(below_, rows_of(op_.result()), inverse_);
    out_.inside.merge(reader.inside);
    guarded_ = reader.guarded;
    if (total == nullptr) return reader.why;
    bool same =
        before_casts(total->operand(0), out_.inside) == e && rows_of(e) == rows_of(op_.result());
    return same ? "" : "the sum is not that of the exponentials";
  }

  // Reads the maximum that is taken off the scores; says what it is instead.
  std::string read_shift() {
    const Op* less = made_by(out_.scores, "sub");
    if (less == nullptr) return {};
    Value scores = before_casts(less->operand(0));
    RowReader reader;
    const Op* largest = reader.maximum(less->operand(1), rows_of(less->result()));
    if (largest == nullptr || before_casts(largest->operand(0)) != scores)
      return depends_on(less->operand(1), scores, "max") ? reader.why : "";
    before_casts(largest->operand(0), out_.inside);
    out_.inside.merge(reader.inside);
    out_.inside.insert(less);
    out_.scores = less->operand(0);
    shifted_ = true;
    return {};
  }

  const Op& op_;
  Value above_, below_;
  bool inverse_;
  Value weighted_;  // what a product with v has of the exponentials
  bool guarded_ = false, shifted_ = false;
  Softmax out_;
};

// exp of what is less by its logarithm of a sum of exponentials.
std::optional<Softmax> from_logarithm(const Op& op) {
  Softmax out;
  out.probabilities = op.result();
  out.inside.insert(&op);
  Value x = before_casts(op.operand(0), out.inside);
  if (const Op* log = made_by(x, "log_softmax")) {
    out.inside.insert(log);
    out.scores = log->operand(0);
    if (!is_last_axis(std::get<int64_t>(log->attr("axis")), out.scores))
      out.why = "the softmax is not over the last axis of the scores";
    return out;
  }
  const Op* less = made_by(x, "sub");
  if (less == nullptr || x.rank() == 0 ||
      !depends_on(less->operand(1), before_casts(less->operand(0)), "logsumexp"))
    return std::nullopt;
  RowReader reader;
  const Op* log = reader.logarithm(less->operand(1), rows_of(x));
  out.scores = less->operand(0);
  out.inside.merge(reader.inside);
  out.inside.insert(less);
  out.why = reader.why;
  if (log != nullptr && before_casts(log->operand(0), out.inside) != before_casts(out.scores))
    out.why = "the sum is not that of the exponentials";
  return out;
}

}  // namespace

std::optional<Softmax> softmax_ending(const Op& op) {
  if (op.num_results() != 1) return std::nullopt;
  if (op.is("softmax")) {
    Softmax out{op.operand(0), op.result(), nullptr, 1, false, {&op}, {}};
    if (!is_last_axis(std::get<int64_t>(op.attr("axis")), out.scores))
      out.why = "the softmax is not over the last axis of the scores";
    return out;
  }
  if (op.is("exp")) return from_logarithm(op);
  if (op.is("div")) return Division(op, op.operand(0), op.operand(1), false).run();
  if (!op.is("mul")) return std::nullopt;
  for (size_t i : {0, 1})
    if (auto out = Division(op, op.operand(i), op.operand(1 - i), true).run()) return out;
  return std::nullopt;
}

}  // namespace sinter::detail
