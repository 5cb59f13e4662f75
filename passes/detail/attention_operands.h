#pragma once
// What q, k and v of an attention are, behind what was made of them for products. New ops go to the
// insertion point.

#include <sinter/ir/graph.h>

namespace sinter::detail {

// The value times `f`, taken out of v where it is a product with a constant, behind views; v itself
// otherwise. New ops go to the insertion point.
Value without_scale(Value v, double& f);
// The same value as [batch, heads, rows, columns], from the last two axes of v and those in front
// of them; `turned`: they are columns and rows.
Value as_rank_4(Value v, Shape shape, bool turned);
// [batch, heads, …] without the repetition of each head, if there is one: [batch, heads / n, …].
Value without_repeat(Value v);
// `v` in `type` without rounding: itself, what it was cast from, or a cast of it; null if there is
// none.
Value exactly_in(Value v, DType type);

}  // namespace sinter::detail
