// align: pads matrix products so that every row of their operands and results starts where wide
// loads can.
//
// Tensor cores are fed by loads of 16 bytes; TMA even demands that rows lie a multiple of 16 bytes
// apart. A vocabulary of 50,257 tokens in bf16 breaks that for the logits, their gradient and the
// gradient of the embedding, and libraries fall back to kernels of several generations ago. Here
// the extents at fault are padded: operands with zeros, which add nothing to a product, and what
// the padding makes of the result is cut off again. Pads and slices are views that fuse copies
// into the kernels around, so that mostly neither costs a pass over memory.

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/pass.h>

#include <map>

namespace sinter {
namespace {

constexpr int64_t kLoad = 16;  // bytes
constexpr int64_t kTile = 64;  // elements: long extents are padded to whole tiles of rows
constexpr int64_t kLong = 16 * kTile;
// Products of bf16 on an H200 with and without rows at multiples of 16 bytes (95 and 700 TFLOP/s at
// 32768 x 50257 x 768), and what a copy moves: the ratios are alike on other cards.
constexpr double kSlow = 95e12, kFast = 700e12, kBandwidth = 4e12;
constexpr double kLaunch = 3e-6;  // seconds

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t padded(int64_t extent, int64_t unit) {
  if (extent % unit == 0) return extent;
  int64_t to = extent >= kLong ? std::max(unit, kTile) : unit;
  return divide_up(extent, to) * to;
}

double bytes_of(Value v) {
  return static_cast<double>(v.type().elements() * size_of(v.dtype()));
}

// Whether fuse can copy a view into all that read `v`.
bool is_read_by_kernels(Value v) {
  for (const Use& use : v.uses())
    if (use.op->def().body == nullptr || !use.op->native().empty()) return false;
  for (const GraphOutput& output : v.graph().outputs())
    if (output.value == v) return false;
  return true;
}
bool is_made_by_kernel(Value v) {
  return v.op() != nullptr && v.op()->def().body != nullptr && v.op()->native().empty() &&
         v.uses().size() <= 2;
}

class Aligner {
 public:
  Aligner(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  void run() {
    for (Op* op = graph_.front(); op != nullptr;) {
      Op* next = op->next();
      if (op->def().kind == OpKind::Contract) align(*op);
      op = next;
    }
  }

 private:
  struct Sizes {
    int64_t m, n, k;
    friend bool operator==(const Sizes&, const Sizes&) = default;
  };

  static Sizes aligned(const Op& op, const MatmulSizes& s) {
    const auto& attrs = op.attrs<MatmulAttrs>();
    const int64_t in = kLoad / size_of(op.operand(0).dtype()),
                  out = kLoad / size_of(op.result().dtype());
    Sizes to{s.m, s.n, s.k};
    if (attrs.transpose_a)
      to.m = padded(s.m, in);
    else
      to.k = padded(s.k, in);
    if (attrs.transpose_b)
      to.k = padded(s.k, in);
    else
      to.n = padded(s.n, in);
    // One row needs no neighbours.
    if (s.m > 1) to.n = padded(to.n, out);
    return to;
  }

  static bool adds_row(const Op& op) { return op.operand(2) && op.operand(2).rank() == 1; }

  // Products of f32 run outside the tensor cores, whatever their rows.
  static bool uses_tensor_cores(const Op& op) {
    DType type = op.operand(0).dtype();
    return (type == DType::BF16 || type == DType::F16 ||
            op.attrs<MatmulAttrs>().compute == "tf32") &&
           op.operand(1).dtype() == type;
  }

  void align(Op& op) {
    if (!uses_tensor_cores(op)) return;
    const MatmulSizes s = matmul_sizes(op);
    const Sizes from{s.m, s.n, s.k}, to = aligned(op, s);
    if (to == from || s.batch == 0 || s.m == 0 || s.n == 0 || s.k == 0) return;
    const bool pads_a = to.m != s.m || to.k != s.k, pads_b = to.n != s.n || to.k != s.k,
               cuts = to.m != s.m || to.n != s.n;
    const double operations = 2.0 * static_cast<double>(s.batch) * static_cast<double>(s.m) *
                              static_cast<double>(s.n) * static_cast<double>(s.k);
    double cost = 0;
    auto copied = [&](Value v) { cost += 2 * bytes_of(v) / kBandwidth + kLaunch; };
    if (pads_a && !is_made_by_kernel(op.operand(0))) copied(op.operand(0));
    if (pads_b && !is_made_by_kernel(op.operand(1))) copied(op.operand(1));
    if (cuts && !is_read_by_kernels(op.result())) copied(op.result());
    if (cuts && op.operand(2) && !adds_row(op)) copied(op.result());
    if (operations / kSlow - operations / kFast < cost) {
      context_.remark(op.loc(), fmt::format("{}: {}x{}x{} stays, though its rows start at odd "
                                            "places: padding would cost more than it saves",
                                            op.name(), s.m, s.n, s.k));
      return;
    }
    rewrite(op, from, to);
    context_.remark(op.loc(), fmt::format("padded: {} of {}x{}x{} to {}x{}x{}", "matmul", s.m, s.n,
                                          s.k, to.m, to.n, to.k));
  }

  void rewrite(Op& op, const Sizes& from, const Sizes& to) {
    MatmulAttrs attrs = op.attrs<MatmulAttrs>();
    Value a = attrs.transpose_a ? grown(op, op.operand(0), to.k - from.k, to.m - from.m)
                                : grown(op, op.operand(0), to.m - from.m, to.k - from.k);
    Value b = attrs.transpose_b ? grown(op, op.operand(1), to.n - from.n, to.k - from.k)
                                : grown(op, op.operand(1), to.k - from.k, to.n - from.n);
    const bool cuts = to.m != from.m || to.n != from.n;
    Value y;
    {
      InsertionScope scope(graph_, &op, op, op.from());
      Value c = op.operand(2);
      const bool row = adds_row(op), outside = c && cuts && !row;
      // Added outside the product, a sum is rounded as it would be inside: once.
      if (outside) attrs.result = "f32";
      if (row && to.n != from.n) c = pad(c, {0}, {to.n - from.n});
      y = c && !outside ? matmul_add(a, b, c, attrs) : matmul(a, b, attrs);
      const int64_t rank = y.rank();
      if (to.m != from.m) y = slice_axis(y, rank - 2, 0, from.m);
      if (to.n != from.n) y = slice_axis(y, rank - 1, 0, from.n);
      if (outside) y = cast(y + cast(c, DType::F32), op.result().dtype());
    }
    if (!op.result().name().empty()) y.set_name(op.result().name());
    op.result().replace_all_uses_with(y);
    graph_.erase(op);
  }

  // The value with so many rows and columns of zeros behind the last ones.
  Value grown(Op& op, Value v, int64_t rows, int64_t columns) {
    if (rows == 0 && columns == 0) return v;
    auto [at, added] = grown_.try_emplace({v.id(), rows, columns, op.segment()});
    if (added) {
      InsertionScope scope(graph_, &op, op, op.from());
      std::vector<int64_t> low(v.shape().size(), 0), high(low);
      high[high.size() - 2] = rows;
      high.back() = columns;
      at->second = pad(v, low, high);
      if (!v.name().empty()) at->second.set_name(fmt::format("{}.padded", v.name()));
    }
    return at->second;
  }

  Graph& graph_;
  PassContext& context_;
  std::map<std::tuple<const void*, int64_t, int64_t, std::string>, Value> grown_;
};

}  // namespace

void run_align(Module& module, PassContext& context) {
  if (!module.target.is_cuda()) return;
  for (const auto& graph : module.graphs()) Aligner(*graph, context).run();
}

}  // namespace sinter
