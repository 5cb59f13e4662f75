// fuse-attention keeps what a graph means: attention written out at random, in the ways people
// write it, against the op that the pass makes of it, forward and gradients.

#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/passes/pass.h>
#include <sinter/tests/ops/case.h>

#include <memory>

namespace sinter::test {
namespace {

struct Draw {
  uint64_t state;
  int64_t below(int64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(n));
  }
  bool coin() { return below(2) == 1; }
};

enum class Layout : uint8_t { Heads, Rows, Einsum, Merged, Grouped, GroupedRows, Packed, kCount };

// One composed attention, and what the pass ought to find.
struct Written {
  Draw draw;
  Case c;
  std::vector<Value> wrt;
  std::string text;
  Layout layout{};
  int64_t batch = 2, heads = 4, kv_heads = 4, queries = 0, keys = 0, width = 4, value_width = 3;
  bool empty_rows = false;  // some row may see no key
  bool softly = false;      // a where with a finite number
  bool top_left = false;
  bool odd = false;
  int conditions = 0;
  Value cleared;  // a condition without which probabilities may be made 0
  Value y;

  explicit Written(uint64_t seed) : draw{seed * 7919 + 1} { build(); }

  void note(const std::string& what) { text += what + " "; }
  Value number(double x, Value like) { return full_like(like, x); }
  Value input(Shape shape) {
    Value v = c.input(fill({DType::F32, std::move(shape)}, 40 + draw.below(50)));
    wrt.push_back(v);
    return v;
  }

  void build() {
    layout = static_cast<Layout>(draw.below(static_cast<int64_t>(Layout::kCount)));
    note(fmt::format("layout {}", static_cast<int>(layout)));
    queries = 3 + draw.below(3);
    keys = layout == Layout::Packed || draw.coin() ? queries : 2 + draw.below(6);
    if (layout == Layout::Grouped || layout == Layout::GroupedRows || draw.coin())
      kv_heads = draw.coin() ? 2 : 1;
    if (layout == Layout::Packed) value_width = width;
    auto [q, k, v] = operands();
    scale_operands(q, k);
    Value scores = product(q, k);
    scores = scaled(scores);
    if (draw.below(8) == 0) scores = oddly(scores);
    scores = softcapped(scores);
    int64_t extras = draw.below(4);
    for (int64_t i = 0; i < extras; ++i) scores = masked(scores);
    bool matrices = layout != Layout::Einsum && layout != Layout::Merged &&
                    layout != Layout::Grouped && layout != Layout::GroupedRows;
    if (matrices && !empty_rows && draw.below(4) == 0) {
      note("divided at last");
      Value e = exp(scores - max(scores, {-1}, true));
      Value total = sum(e, {-1}, true);
      if (draw.coin()) e = dropped(e);
      y = weighted(e, v) / total;
      c.graph.add_output("y", y);
      return;
    }
    Value p = softmax_of(scores);
    if (cleared && draw.coin()) {
      note("cleared");
      p = draw.coin() ? where(cleared, p, 0.0) : masked_fill(p, logical_not(cleared), 0.0);
    }
    if (draw.below(4) == 0) p = dropped(p);
    if (draw.below(12) == 0) p = odd_probabilities(p);
    y = weighted(p, v);
    c.graph.add_output("y", y);
  }

  struct Qkv {
    Value q, k, v;
  };
  // q [B,H,Sq,D] and so on, or as the layout has it.
  Qkv operands() {
    bool rows = layout == Layout::Rows || layout == Layout::Einsum;
    auto one = [&](int64_t h, int64_t s, int64_t d) {
      return input(rows ? Shape{batch, s, h, d} : Shape{batch, h, s, d});
    };
    if (layout == Layout::Packed) {
      kv_heads = heads;
      Value x = input({batch, queries, 3 * heads * width});
      auto part = [&](int64_t i) {
        Value s = slice_axis(x, -1, i * heads * width, (i + 1) * heads * width);
        return permute(reshape(s, {batch, queries, heads, width}), {0, 2, 1, 3});
      };
      return {part(0), part(1), part(2)};
    }
    Value q = one(heads, queries, width), k = one(kv_heads, keys, width),
          v = one(kv_heads, keys, value_width);
    bool grouped = layout == Layout::Grouped || layout == Layout::GroupedRows;
    if (kv_heads < heads && !grouped) {
      int64_t by_op = kv_heads == 1 ? draw.below(3) : draw.below(2);
      note("repeated keys");
      k = repeated(k, rows ? 2 : 1, by_op);
      v = repeated(v, rows ? 2 : 1, by_op);
    }
    if (layout == Layout::Rows) {
      q = permute(q, {0, 2, 1, 3});
      k = permute(k, {0, 2, 1, 3});
      v = permute(v, {0, 2, 1, 3});
    }
    return {q, k, v};
  }
  Value repeated(Value x, int64_t axis, int64_t by_op) {
    int64_t times = heads / kv_heads;
    if (by_op == 1) return repeat(x, times, axis);
    if (by_op == 2) {
      std::vector<int64_t> counts(4, 1);
      counts[static_cast<size_t>(axis)] = times;
      return tile(x, counts);
    }
    Shape wide = x.shape();
    wide.insert(wide.begin() + axis + 1, times);
    Shape thin = wide;
    thin[static_cast<size_t>(axis) + 1] = 1;
    Shape joined = x.shape();
    joined[static_cast<size_t>(axis)] = heads;
    return reshape(broadcast_to(reshape(x, thin), wide), joined);
  }

  void scale_operands(Value& q, Value& k) {
    if (draw.below(3) == 0) {
      note("scaled q");
      q = draw.coin() ? q * 0.7 : q / 1.5;
    }
    if (draw.below(4) == 0) {
      note("scaled k");
      k = mul(0.9, k);
    }
  }

  Value product(Value q, Value k) {
    int64_t group = heads / kv_heads;
    switch (layout) {
      case Layout::Einsum:
        return einsum("bqhd,bkhd->bhqk", {q, k});
      case Layout::Merged:
        return matmul(reshape(q, {batch * heads, queries, width}),
                      transpose(reshape(k, {batch * heads, keys, width})));
      case Layout::Grouped:
        return matmul(reshape(q, {batch, kv_heads, group, queries, width}),
                      broadcast_to(reshape(k, {batch, kv_heads, 1, keys, width}),
                                   {batch, kv_heads, group, keys, width}),
                      false, true);
      case Layout::GroupedRows: {
        Value s = matmul(reshape(q, {batch, kv_heads, group * queries, width}), k, false, true);
        return reshape(s, {batch, heads, queries, keys});
      }
      default:
        return draw.coin() ? matmul(q, k, false, true) : matmul(q, permute(k, {0, 1, 3, 2}));
    }
  }
  Value scaled(Value s) {
    switch (draw.below(6)) {
      case 4: {
        note("scale of all");
        Value f = draw.coin() ? input({}) : sqrt(exp(input({})));
        return draw.coin() ? s * f : s / (square(f) + 0.5);
      }
      case 3: {
        note("scale of rows");
        Shape rows = s.shape();
        rows.back() = 1;
        for (size_t i = 0; i + 1 < rows.size(); ++i)
          if (draw.coin()) rows[i] = 1;
        Value f = exp(input(rows));
        return draw.coin() ? s * f : s / f;
      }
      case 0:
        return s * 0.5;
      case 1:
        return s / 2.0;
      default:
        return s;
    }
  }
  Value softcapped(Value s) {
    if (draw.below(4) != 0) return s;
    note("softcap");
    return tanh(s / 1.5) * 1.5;
  }

  // What people write now and then, and attention does not have; some of it may be fused still.
  Value oddly(Value s) {
    odd = true;
    switch (draw.below(6)) {
      case 0:
        note("turned round");
        return 0.25 - s;
      case 1:
        note("negative");
        return s * -0.5;
      case 2:
        note("bias before all");
        return s + input({s.dim(-2), s.dim(-1)});
      case 3:
        note("scaled by key");
        return s * input({1, s.dim(-1)});
      case 4:
        note("read twice");
        c.output(sum(square(s)));
        return s;
      default:
        note("masked before all");
        return where(gt(s, 0.0), s, number(-kInf, s));
    }
  }
  Value odd_probabilities(Value p) {
    odd = true;
    switch (draw.below(4)) {
      case 0:
        note("squared");
        return p * p;
      case 1:
        note("a result");
        c.output(p);
        return p;
      case 2:
        note("halved");
        return p * 0.5;
      default:
        note("without some");
        return where(gt(p, 0.1), p, 0.0);
    }
  }

  // iota over queries or keys, of the scores' shape or one that broadcasts to it.
  Value places(Value s, bool of_keys, DType type) {
    if (draw.coin()) return iota(c.graph, {type, s.shape()}, s.rank() - (of_keys ? 1 : 2));
    int64_t n = of_keys ? keys : queries;
    Value i = iota(c.graph, {type, {n}}, 0);
    return broadcast_to(of_keys ? i : reshape(i, {n, 1}), {queries, keys});
  }
  // A bool: which keys are seen.
  Value condition(Value s) {
    int64_t own = keys - queries;
    switch (draw.below(8)) {
      case 6: {
        note("half as far");
        empty_rows = true;
        Value half = cast(cast(places(s, true, DType::I32), DType::F32) * 0.5, DType::I32);
        return le(half, places(s, false, DType::I32));
      }
      case 0:
        note("causal");
        if (keys < queries) empty_rows = true;
        return le(places(s, true, DType::I32),
                  places(s, false, DType::I32) + static_cast<double>(own));
      case 1:
        note("from the top left");
        top_left = true;
        return logical_not(gt(places(s, true, DType::I64) - places(s, false, DType::I64), 0));
      case 2: {
        note("window");
        if (keys < queries) empty_rows = true;
        Value far =
            places(s, false, DType::I32) - places(s, true, DType::I32) + static_cast<double>(own);
        return draw.coin() ? lt(abs(far), 2) : logical_and(ge(far, 0), lt(far, 2));
      }
      case 3: {
        note("triangle");
        if (keys < queries) empty_rows = true;
        Value ones = full(c.graph, {DType::F32, {queries, keys}}, 1);
        return draw.coin() ? ne(tril(ones, own), 0) : logical_not(gt(triu(ones, own + 1), 0.5));
      }
      default: {
        note("mask");
        empty_rows = true;
        auto axes = static_cast<size_t>(1 + draw.below(s.rank() == 4 ? 4 : 2));
        Shape shape(axes, 1);
        const Shape& whole = s.shape();
        for (size_t i = 0; i < shape.size(); ++i)
          if (draw.coin()) shape[i] = whole[whole.size() - shape.size() + i];
        std::vector<bool> cells;
        for (int64_t i = 0; i < num_elements(shape); ++i) cells.push_back(draw.below(3) != 0);
        Value m = c.input(Tensor::from(shape, cells));
        return draw.coin() ? logical_and(m, m) : m;
      }
    }
  }
  Value masked(Value s) {
    switch (draw.below(5)) {
      case 0: {
        note("bias");
        Shape shape(s.shape().end() - 2, s.shape().end());
        if (draw.coin()) shape.insert(shape.begin(), s.dim(-3));
        if (draw.coin()) shape.back() = 1;
        return draw.coin() ? s + input(shape) : s - input(shape);
      }
      case 1: {
        if (s.rank() != 4) return s;
        note("slopes");
        Value far = cast(places(s, true, DType::I32) - places(s, false, DType::I32), DType::F32);
        if (draw.coin()) far = abs(far - static_cast<double>(keys - queries));
        Value slopes = reshape(input({heads}), {heads, 1, 1});
        return draw.coin() ? s - slopes * far : far * neg(slopes) + s;
      }
      default:
        break;
    }
    bool finite = draw.coin();
    double out = finite ? -1e9 : -kInf;
    Value sees = condition(s);
    // All others have the query's own place in common.
    if (++conditions > 1 && top_left) empty_rows = true;
    if (draw.coin()) {
      note(finite ? "softly" : "firmly");
      softly = softly || finite;
      if (conditions == 1 && draw.coin()) {
        cleared = broadcast_to(sees, s.shape());
        return where(cleared, s, number(out, s));
      }
      if (draw.coin()) return where(sees, s, number(out, s));
      return draw.coin() ? where(logical_not(sees), number(out, s), s)
                         : masked_fill(s, logical_not(sees), out);
    }
    note(finite ? "added softly" : "added");
    if (finite && draw.coin()) return s + (cast(sees, DType::F32) - 1.0) * 1e9;
    Value zero = full(c.graph, {DType::F32, sees.shape()}, 0.0);
    if (draw.coin()) return s + masked_fill(zero, logical_not(sees), out);
    return s + where(sees, zero, full(c.graph, {DType::F32, sees.shape()}, out));
  }

  Value softmax_of(Value s) {
    if (draw.below(8) == 0) return odd_softmax(s);
    if (empty_rows) return draw.below(3) == 0 ? cleared_softmax(s) : softmax(s, -1);
    switch (draw.below(6)) {
      case 0:
      case 1:
        return softmax(s, -1);
      case 2:
        note("exp of log_softmax");
        return exp(log_softmax(s, -1));
      case 3:
        note("by logsumexp");
        return exp(s - logsumexp(s, {-1}, true));
      case 4: {
        note("powers of 2");
        s = s * 1.4426950408889634;
        Value e = exp2(s - stop_gradient(max(s, {-1}, true)));
        return e / sum(e, {-1}, true);
      }
      default:
        break;
    }
    note("by hand");
    Value e = exp(s - stop_gradient(max(s, {-1}, true)));
    if (draw.coin()) return e / sum(e, {-1}, true);
    Shape row = s.shape();
    row.back() = 1;
    return e * reciprocal(reshape(sum(e, {-1}), row));
  }
  // With care for rows of which nothing is seen.
  Value cleared_softmax(Value s) {
    note("with care");
    Value top = stop_gradient(max(s, {-1}, true));
    switch (draw.below(3)) {
      case 0:
        top = where(eq(top, number(-kInf, top)), number(0, top), top);
        break;
      case 1:
        top = where(isfinite(top), top, number(3, top));
        break;
      default:
        top = where(logical_not(gt(top, number(-kInf, top))), number(-1, top), top);
        break;
    }
    Value e = exp(s - top), z = sum(e, {-1}, true);
    if (draw.coin()) return e / where(eq(z, 0.0), number(1, z), z);
    if (draw.coin()) return e / where(gt(z, 0.0), z, number(kInf, z));
    return e * reciprocal(where(le(z, 0.0), number(2, z), z));
  }
  // exp over something that is not quite its sum.
  Value odd_softmax(Value s) {
    odd = true;
    if (empty_rows) return softmax(s + 0.5, -1) + 0.01;
    Value e = exp(s - stop_gradient(max(s, {-1}, true))), z = sum(e, {-1}, true);
    switch (draw.below(8)) {
      case 0:
        note("one more");
        return e / (z + 1.0);
      case 1:
        note("rows chosen");
        return e / where(gt(z, 2.0), z, number(kInf, z));
      case 2:
        note("no less than 2");
        return e / where(gt(z, 2.0), z, number(2, z));
      case 3:
        note("sum is constant");
        return e / stop_gradient(z);
      case 4: {
        note("sum in whole numbers");
        return e / cast(cast(z, DType::I32), DType::F32);
      }
      case 5:
        note("sums exchanged");
        if (queries != keys) return e / (z * 2.0);
        return e / broadcast_to(reshape(z, transposed(z.shape())), e.shape());
      case 6:
        note("maxima exchanged");
        if (queries != keys) return e / sqrt(z);
        z = reshape(max(s, {-1}, true), transposed(z.shape()));
        e = exp(s - stop_gradient(z));
        return e / sum(e, {-1}, true);
      default:
        note("a triangle");
        return tril(softmax(s, -1), keys - queries);
    }
  }
  static Shape transposed(Shape s) {
    std::swap(s[s.size() - 1], s[s.size() - 2]);
    return s;
  }
  Value dropped(Value p) {
    note("dropout");
    Value seed = c.input(Tensor::from(Shape{2}, std::vector<uint32_t>{7, 1}));
    Value step = c.input(Tensor::from(Shape{}, std::vector<uint32_t>{3}));
    Value offset = c.input(Tensor::from(Shape{}, std::vector<int64_t>{0}));
    return dropout(p, seed, step, offset, 0.4);
  }
  Value weighted(Value p, Value v) {
    int64_t group = heads / kv_heads;
    switch (layout) {
      case Layout::Einsum:
        return einsum("bhqk,bkhd->bqhd", {p, v});
      case Layout::Merged:
        return matmul(p, reshape(v, {batch * heads, keys, value_width}));
      case Layout::Grouped:
        return matmul(p, broadcast_to(reshape(v, {batch, kv_heads, 1, keys, value_width}),
                                      {batch, kv_heads, group, keys, value_width}));
      case Layout::GroupedRows:
        return matmul(reshape(p, {batch, kv_heads, group * queries, keys}), v);
      default:
        return matmul(p, v);
    }
  }
};

// What became of the forms.
struct Found {
  size_t ops = 0, causal = 0, window = 0, softcap = 0, dropout = 0, grouped = 0;
  size_t mask = 0, bias = 0, slopes = 0;
  void add(const Graph& graph) {
    for (const Op& op : graph) {
      if (!op.is("attention")) continue;
      const auto& a = op.attrs<AttentionAttrs>();
      ++ops;
      causal += a.causal;
      window += a.window > 0;
      softcap += a.softcap > 0;
      dropout += a.p > 0;
      grouped += op.operand(1).dim(1) < op.operand(0).dim(1);
      mask += bool(op.operand(3));
      bias += bool(op.operand(4));
      slopes += bool(op.operand(10));
    }
  }
};

// The outputs of the graph after these passes, and its gradients, in f64 or f32.
std::vector<Tensor> results(const Written& w, std::string_view passes, Found& found,
                            bool f64 = true) {
  std::unique_ptr<Module> module = w.c.module.clone();
  Graph& graph = *module->find("g");
  PassManager manager;
  manager.run(*module, parse_pipeline(passes));
  found.add(graph);
  Value y = graph.outputs().back().value;
  std::vector<Value> wrt;
  for (Value v : w.wrt) wrt.push_back(graph.inputs()[static_cast<size_t>(v.index())]);
  Value weights = cast(iota(graph, {DType::I32, {y.type().elements()}}, 0), DType::F32);
  Value loss = sum(y * reshape(sin(weights), y.shape()));
  for (Value g : gradients(graph, loss, wrt)) graph.add_output("", g);
  return Reference({.f64 = f64}).run(graph, w.c.inputs);
}

}  // namespace

TEST_CASE("fuse-attention: what it makes of attention written out says the same") {
  Found none, found;
  size_t declined = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Written w(seed);
    CAPTURE(seed);
    CAPTURE(w.text);
    size_t before = found.ops;
    auto right = results(w, "canonicalize", none);
    auto given = results(w, "canonicalize,fuse-attention,canonicalize,dce", found);
    // Rows that a finite number masks whole are the mean of v, which is no attention.
    bool may_decline = w.odd || (w.softly && (w.empty_rows || (w.cleared && w.conditions > 1)));
    if (!may_decline) CHECK(found.ops == before + 1);
    declined += found.ops == before;
    REQUIRE(given.size() == right.size());
    for (size_t i = 0; i < right.size(); ++i) {
      CAPTURE(i);
      // A score of -1e9 has few digits left.
      double far = w.empty_rows ? 1e-5 : 1e-9;
      check_near(given[i], right[i].to_doubles(), far, far);
    }
  }
  CHECK(none.ops == 0);
  CHECK(declined > 5);
  for (size_t n : {found.causal, found.window, found.softcap, found.dropout, found.grouped,
                   found.mask, found.bias, found.slopes})
    CHECK(n > 10);
}

TEST_CASE("fuse-attention: in f32 too, within its rounding") {
  Found none, found;
  for (uint64_t seed = 1000; seed < 1150; ++seed) {
    Written w(seed);
    if (w.empty_rows) continue;  // -1e9 leaves an f32 no digits of a score
    CAPTURE(seed);
    CAPTURE(w.text);
    auto right = results(w, "canonicalize", none);
    auto given = results(w, "canonicalize,fuse-attention,canonicalize,dce", found, false);
    for (size_t i = 0; i < right.size(); ++i) {
      CAPTURE(i);
      check_near(given[i], right[i].to_doubles(), 2e-5, 2e-5);
    }
  }
  CHECK(found.ops > 50);
}

}  // namespace sinter::test
