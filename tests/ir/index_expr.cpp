#include <sinter/ir/index_expr.h>
#include <sinter/tests/support.h>

using namespace sinter;

namespace {

const IndexExpr p = IndexExpr::axis(0, 16), q = IndexExpr::axis(1, 16), r = IndexExpr::axis(2, 6);

// The value at given places of the axes.
int64_t at(const IndexExpr& e, int64_t vp, int64_t vq, int64_t vr) {
  int64_t values[] = {vp, vq, vr};
  return e.substitute([&](const IndexAtom& a) { return IndexExpr(values[a.id]); }).constant();
}

}  // namespace

TEST_CASE("index_expr: what a reshape cannot mix stays apart") {
  // [16,16] read as [2,8,16]: no division sees the last axis.
  auto places = delinearize(p * 16 + q, {2, 8, 16});
  CHECK(places[0] == floordiv(p, 8));
  CHECK(places[1] == mod(p, 8));
  CHECK(places[2] == q);
  CHECK(linearize(places, {2, 8, 16}) == p * 16 + q);
}

TEST_CASE("index_expr: division and remainder have their value everywhere") {
  const IndexExpr cases[] = {p * 16 + q,         p * 12 + r * 2, p * 12 + r * 2 + 1,
                             p * 4 + r * 6,      p * 6 + q + 3,  q * 4 - p + 40,
                             p * 96 + q * 6 + r, r * 10 + q,     p * 8 + mod(q, 8) + 64};
  for (const IndexExpr& e : cases)
    for (int64_t k : {2, 3, 4, 6, 8, 12, 16, 24, 48, 96, 128}) {
      IndexExpr quotient = floordiv(e, k), remainder = mod(e, k);
      for (int64_t i = 0; i < 16; ++i)
        for (int64_t j = 0; j < 16; ++j)
          for (int64_t l = 0; l < 6; ++l) {
            int64_t value = at(e, i, j, l);
            REQUIRE(at(quotient, i, j, l) == value / k);
            REQUIRE(at(remainder, i, j, l) == value % k);
          }
      CHECK((quotient.low() <= 0 || quotient.low() <= e.low() / k));
      CHECK(remainder.high() < k);
    }
}
