// Forward mode where a formula taken at its word would give NaN, or one of several slopes.

#include <sinter/tests/ops/case.h>

namespace sinter::test {
namespace {

// A case whose results are values and their tangents along `direction` by `wrt`.
struct ForwardCase : Case {
  Value direction(Shape shape, const Doubles& values) { return input(std::move(shape), values); }
  void output_with_tangents(Value y, const std::vector<Value>& wrt,
                            const std::vector<Value>& directions) {
    output(y);
    // An expansion in place gives the value a new handle, which the output follows.
    Value t = tangents(graph, {&y, 1}, wrt, directions)[0];
    output(t);
  }
};

}  // namespace

TEST_CASE("forward mode: the norm of zeros has the tangent 0") {
  ForwardCase c;
  Value x = c.input({2, 2}, {0, 0, 3, -4}), v = c.direction({2, 2}, {1, 2, 1, 0});
  c.output_with_tangents(norm(x, {1}), {x}, {v});
  c.run([](const std::vector<Tensor>& r) {
    check_near(r[0], {0, 5});
    check_near(r[1], {0, 0.6});
  });
}

TEST_CASE("forward mode: logsumexp and softmax of -inf") {
  ForwardCase c;
  Value x = c.input({3, 2}, {-kInf, -kInf, -kInf, 1, 0, 0});
  Value v = c.direction({3, 2}, {1, 2, 3, 4, 5, 7});
  c.output_with_tangents(logsumexp(x, {1}), {x}, {v});
  c.output_with_tangents(softmax(x), {x}, {v});
  c.run([](const std::vector<Tensor>& r) {
    check_near(r[0], {-kInf, 1, std::log(2.0)});
    check_near(r[1], {0, 4, 6});
    check_near(r[2], {0, 0, 0, 1, 0.5, 0.5});
    check_near(r[3], {0, 0, 0, 0, -0.5, 0.5});
  });
}

TEST_CASE("forward mode: the side of where that was not chosen leaves nothing") {
  ForwardCase c;
  Value x = c.input({3}, {4, -1, 0}), v = c.direction({3}, {1, 1, 1});
  c.output_with_tangents(where(gt(x, 0.0), sqrt(x), 0.0), {x}, {v});
  c.run([](const std::vector<Tensor>& r) { check_near(r[1], {0.25, 0, 0}); });
}

TEST_CASE("forward mode: kinks and ties") {
  ForwardCase c;
  Value x = c.input({4}, {0, 2, 2, -1}), v = c.direction({4}, {8, 1, 3, 9});
  c.output_with_tangents(relu(x), {x}, {v});
  c.output_with_tangents(max(x), {x}, {v});
  c.output_with_tangents(maximum(x, reshape(slice_axis(x, 0, 2, 3), {1})), {x}, {v});
  c.output_with_tangents(stop_gradient(x) * x, {x}, {v});
  c.run([](const std::vector<Tensor>& r) {
    check_near(r[1], {0, 1, 3, 0});
    check_near(r[3], {2});
    check_near(r[5], {3, 2, 3, 3});
    check_near(r[7], {0, 2, 6, -9});
  });
}

TEST_CASE("forward mode: attention where no key is seen, with garbage there") {
  ForwardCase c;
  const Shape rows{1, 1, 2, 1};
  Value q = c.input(rows, {kNaN, 1}), k = c.input(rows, {1, kNaN}), v = c.input(rows, {2, kNaN});
  // The first query sees nothing; the second sees the first key.
  Value see = c.integers({2, 2}, {0, 0, 1, 0});
  std::vector<Value> wrt{q, k, v}, along;
  for (int i = 0; i < 3; ++i) along.push_back(c.direction(rows, {1, 3}));
  c.output_with_tangents(attention(q, k, v, ne(see, 0)), wrt, along);
  c.run([](const std::vector<Tensor>& r) {
    check_near(r[0], {0, 2});
    check_near(r[1], {0, 1});
  });
}

TEST_CASE("forward mode: cross-entropy with ignored rows of garbage, and with none that counts") {
  ForwardCase c;
  Value z = c.input({2, 2}, {0, 0, kNaN, kInf}), v = c.direction({2, 2}, {1, 5, 1, 1});
  Value t = c.integers({2}, {0, -100}), none = c.integers({2}, {-100, -100});
  c.output_with_tangents(cross_entropy(z, t).loss, {z}, {v});
  c.output_with_tangents(cross_entropy(z, none).loss, {z}, {v});
  c.run([](const std::vector<Tensor>& r) {
    check_near(r[0], {std::log(2.0)});
    check_near(r[1], {2});
    check_near(r[2], {0});
    check_near(r[3], {0});
  });
}

}  // namespace sinter::test
