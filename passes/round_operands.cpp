// round-operands: casts the operands of contractions that compute in a narrower type.
//
// `matmul {compute = "bf16"}` rounds its operands on reading, a bias to the result's type. Here
// that becomes a cast, one for all
// the products of a segment that read the value, since libraries take operands of one type. The
// casts can then be merged, fused and planned like any op. TF32 is a mode of the product and
// stays.

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/pass.h>

#include <map>

namespace sinter {

namespace {

class Rounding {
 public:
  explicit Rounding(Graph& graph) : graph_(graph) {}

  int run() {
    int count = 0;
    for (Op& op : graph_) {
      if (op.def().kind != OpKind::Contract) continue;
      DType type = matmul_compute(op);
      Value c = op.operand(2);
      const bool outside = c && c.rank() == 1 && type == DType::F64;
      if (op.operand(0).dtype() == type && op.operand(1).dtype() == type && !outside &&
          (!c || c.dtype() == op.result().dtype()))
        continue;
      rewrite(op, type);
      ++count;
    }
    return count;
  }

 private:
  void rewrite(Op& op, DType type) {
    Value a = rounded(op, op.operand(0), type), b = rounded(op, op.operand(1), type);
    MatmulAttrs attrs = op.attrs<MatmulAttrs>();
    attrs.compute.clear();
    DType result = op.result().dtype();
    attrs.result = result == type ? "" : to_string(result);
    Value c = op.operand(2);
    if (c) c = rounded(op, c, result);
    Value y = build(op, a, b, c, std::move(attrs));
    y.set_name(op.result().name());
    op.result().replace_all_uses_with(y);
    graph_.erase(op);
  }

  Value build(Op& op, Value a, Value b, Value c, MatmulAttrs attrs) {
    InsertionScope scope(graph_, &op, op, op.from());
    // Libraries add rows to all products but those of f64, where one more rounding is nothing.
    if (c && c.rank() == 1 && c.dtype() == DType::F64) {
      Value y = matmul(a, b, std::move(attrs));
      return y + broadcast_to(c, y.shape());
    }
    return c ? matmul_add(a, b, c, std::move(attrs)) : matmul(a, b, std::move(attrs));
  }

  Value rounded(Op& op, Value v, DType type) {
    if (v.dtype() == type) return v;
    auto [at, added] = rounded_.try_emplace({v.id(), type, op.segment()});
    if (added) {
      InsertionScope scope(graph_, &op, op, op.from());
      at->second = cast(v, type);
      if (!v.name().empty()) at->second.set_name(fmt::format("{}.{}", v.name(), to_string(type)));
    }
    return at->second;
  }

  Graph& graph_;
  std::map<std::tuple<const void*, DType, std::string>, Value> rounded_;
};

}  // namespace

void run_round_operands(Module& module, PassContext& context) {
  for (const auto& graph : module.graphs())
    if (int count = Rounding(*graph).run(); count > 0)
      context.remark({}, fmt::format("@{}: {} contractions read operands rounded for them",
                                     graph->name(), count));
}

}  // namespace sinter
