#pragma once
// What is added to attention's scores, or chosen in their place, read as a mask or a bias: bands
// of diagonals from comparisons of counters or from triangles, other conditions as they are, and
// distances times a slope of each head. Nothing is built or changed here.

#include <sinter/ir/graph.h>

#include <optional>
#include <string_view>
#include <vector>

namespace sinter::detail {

// Whether the op keeps elements in order: reshape, squeeze, unsqueeze.
bool is_reshape(const Op& op);
// Those, broadcast and permute.
bool is_view(const Op& op);
// The op that makes `v`, if it is of this name.
const Op* made_by(Value v, std::string_view name);

// What an axis of a value counts.
enum class Role : uint8_t { Other, Head, Query, Key };
using Roles = std::vector<Role>;

// A value behind views, outermost first; `outer` is the same with the views applied, where there is
// such a value.
struct Seen {
  Value value;
  Roles roles;
  std::vector<const Op*> views;
  Value outer;
  int depth = 0;  // how far from where the reading began: it ends somewhere
};
// The value with its views applied.
Value with_views(const Seen& s);
// `v` itself, seen from the outside.
inline Seen seen(Value v, Roles roles) {
  return {v, std::move(roles), {}, v, 0};
}

// low <= key - query <= high.
struct Band {
  static constexpr int64_t kFree = int64_t{1} << 40;
  int64_t low = -kFree, high = kFree;
};
Band intersection(const Band& a, const Band& b);
// Whether every query sees a key.
bool sees_everywhere(const Band& band, int64_t queries, int64_t keys);

// A condition that is no band, or its opposite.
struct Condition {
  Seen seen;
  bool negated = false;
};
// The keys seen: what lies in the band and meets every condition.
struct Visible {
  Band band;
  std::vector<Condition> conditions;
};

// Adds that `condition`, a bool, holds (or does not).
void add_condition(const Seen& condition, bool negated, Visible& out);

// The number that every element is, through casts and views.
std::optional<double> constant_of(Value v);

// A mask that is added: `value` where a key is not seen, 0 elsewhere.
struct AddedMask {
  Visible visible;
  double value = 0;
};
// `term` times `factor`, as a mask: where it takes two values, 0 and one below `far`.
std::optional<AddedMask> added_mask(const Seen& term, double factor, double far);

// A slope of each head times a distance.
struct Slopes {
  Value slopes;       // with as many elements as there are heads, or one
  double factor = 1;  // the term is factor * slopes * (key - query + offset), or its |…|
  double offset = 0;
  bool absolute = false;
};
std::optional<Slopes> slopes_of(const Seen& term, double factor);

}  // namespace sinter::detail
