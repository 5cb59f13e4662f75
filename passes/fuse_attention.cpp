// fuse-attention: makes softmax(q k^T) v, as people write it, the op `attention`, whose backward
// op keeps no matrix of scores. docs/attention.md lists the forms.
//
// With `require=fused` what is declined is an error, and with `require=native` so is an op for
// which the target has no kernel.

#include <sinter/passes/detail/active_path.h>
#include <sinter/passes/detail/attention_operands.h>
#include <sinter/passes/detail/attention_pattern.h>
#include <sinter/passes/detail/util.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/passes/native_attention.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <cmath>

namespace sinter {

namespace {

using namespace detail;

class Fusion {
 public:
  explicit Fusion(const AttentionPattern& pattern) : p_(pattern) {}

  // The op in place of the pattern.
  Op& run() {
    Op& last = *p_.last;
    Graph& graph = last.graph();
    Op* attention = nullptr;
    {
      InsertionScope scope(graph, &last, last, last.from());
      attention = &build(graph);
      std::vector<SourceLocation> with{p_.scores->loc(), p_.softmax->loc()};
      std::erase_if(with, [&](const auto& loc) { return loc.str() == last.loc().str(); });
      attention->set_with(std::move(with));
      Value y = reshape(attention->result(), last.result().shape());
      y.set_name(last.result().name());
      last.result().replace_all_uses_with(y);
    }
    erase_dead(last);
    return *attention;
  }

 private:
  Op& build(Graph& graph) {
    AttentionAttrs attrs;
    attrs.scale = p_.scale;
    attrs.softcap = p_.softcap;
    DType type = p_.product->result().dtype();
    Value q = operand(p_.scores->operand(0), type, transpose_a(*p_.scores), attrs.scale);
    Value k = operand(p_.scores->operand(1), type, !transpose_b(*p_.scores), attrs.scale);
    double one = 1;
    Value v = operand(p_.product->operand(1), type, transpose_b(*p_.product), one);
    q = reshape(q, {p_.batch, p_.heads, p_.queries, q.dim(-1)});
    for (const RowFactor& f : p_.factors) {
      Value x = cast(to_scores(f.value, f.scores), type);
      q = f.divides ? q / x : q * x;
    }
    share_heads(k, v);
    // Said by default, whatever order of factors it came from.
    if (std::abs(attrs.scale * std::sqrt(static_cast<double>(q.dim(3))) - 1) < 1e-14)
      attrs.scale = 0;

    Value mask = mask_operand(graph, attrs), bias = bias_operand(), slopes = slopes_operand(type);
    std::vector<Value> operands{q, k, v, mask, bias, {}, {}, {}, {}, {}, slopes};
    if (p_.dropout != nullptr && p_.dropout->attrs<DropoutAttrs>().p > 0) {
      const auto& a = p_.dropout->attrs<DropoutAttrs>();
      attrs.p = a.p;
      attrs.site = a.site;
      for (size_t i = 1; i <= 3; ++i) operands[5 + i] = p_.dropout->operand(i);
    }
    return build_op(graph, "attention", std::move(operands), attrs, {});
  }

  static bool transpose_a(const Op& op) { return op.attrs<MatmulAttrs>().transpose_a; }
  static bool transpose_b(const Op& op) { return op.attrs<MatmulAttrs>().transpose_b; }

  // [batch, heads of its own, rows, columns], as plain as it can be had. A constant factor becomes
  // part of the scale.
  Value operand(Value v, DType type, bool turned, double& scale) {
    v = without_scale(v, scale);
    v = exactly_in(v, type);
    const Shape& s = v.shape();
    int64_t matrices = num_elements(Shape(s.begin(), s.end() - 2));
    Shape shape{p_.batch, matrices / p_.batch, s[s.size() - 2], s[s.size() - 1]};
    if (turned) std::swap(shape[2], shape[3]);
    return as_rank_4(v, std::move(shape), turned);
  }

  // Key heads that are repeated for neighbouring query heads stand once.
  void share_heads(Value& k, Value& v) const {
    Value fewer_k = without_repeat(k), fewer_v = without_repeat(v);
    if (fewer_k.dim(1) == fewer_v.dim(1)) {
      k = fewer_k;
      v = fewer_v;
    }
    auto [few, heads] = std::minmax({k.dim(1), v.dim(1)});
    if (few == 0 || heads % few != 0) heads = p_.heads;
    for (Value* x : {&k, &v})
      if (x->dim(1) < heads) *x = repeat(*x, heads / x->dim(1), 1);
  }

  // Of `v`, which can be broadcast to scores of shape `from`, something that can be broadcast to
  // [batch, heads, queries, keys].
  Value to_scores(Value v, const Shape& from) const {
    while (v.op() != nullptr && v.op()->is("broadcast")) v = v.op()->operand(0);
    Shape shape = v.shape();
    shape.insert(shape.begin(), from.size() - shape.size(), 1);
    size_t n = from.size() - 2;
    int64_t keys = shape[n + 1], rows = shape[n];
    auto all_ones = [&](size_t begin, size_t end) {
      return std::all_of(shape.begin() + static_cast<int64_t>(begin),
                         shape.begin() + static_cast<int64_t>(end),
                         [](int64_t d) { return d == 1; });
    };
    auto ones = [&](size_t begin) { return all_ones(begin, n); };
    if (from[n] == p_.queries || rows == 1) {
      if (ones(0)) return reshape(v, {1, 1, rows, keys});
      if (n == 2 && from[0] == p_.batch && from[1] == p_.heads) return reshape(v, shape);
      if (n == 1 && p_.batch == 1) return reshape(v, {1, shape[0], rows, keys});
      if (n > 1 && from[0] == p_.batch && ones(1)) return reshape(v, {shape[0], 1, rows, keys});
      if (n == 3 && from[2] == p_.heads && all_ones(0, 2))
        return reshape(v, {1, shape[2], rows, keys});
    }
    Shape wide(from.begin(), from.end() - 1);
    wide.push_back(keys);
    bool whole_rows = from[n] != p_.queries;
    if (!whole_rows) wide[n] = rows;
    v = broadcast_to(reshape(v, shape), wide);
    return reshape(v, {p_.batch, p_.heads, whole_rows ? p_.queries : rows, keys});
  }

  Value condition(const MaskPart& part) const {
    Value v = to_scores(with_views(part.condition.seen), part.scores);
    return part.condition.negated ? logical_not(v) : v;
  }

  // The band as `causal` and `window`, or as a mask; conditions as a mask.
  Value mask_operand(Graph& graph, AttentionAttrs& attrs) const {
    Value mask;
    auto both = [&](Value more) { mask = mask ? logical_and(mask, more) : more; };
    Band band = p_.band;
    int64_t own = p_.keys - p_.queries;
    bool above = band.high < p_.keys - 1;  // whether it cuts
    bool below = band.low > 1 - p_.queries;
    bool causal = above && band.high == own;
    int64_t window = below ? own - band.low + 1 : 0;
    bool is_window = below && window > 0 && (causal || (above && band.high == own + window - 1));
    if (causal || is_window) {
      attrs.causal = causal;
      above = false;
    }
    if (is_window) {
      attrs.window = window;
      below = false;
    }
    auto key = [&] { return iota(graph, {DType::I32, {1, 1, 1, p_.keys}}, 3); };
    auto place = [&](int64_t of_query_0) {
      return iota(graph, {DType::I32, {1, 1, p_.queries, 1}}, 2) + static_cast<double>(of_query_0);
    };
    if (below) both(ge(key(), place(band.low)));
    if (above) both(le(key(), place(band.high)));
    for (const MaskPart& part : p_.masks) both(condition(part));
    return mask;
  }

  Value bias_operand() const {
    Value total;
    for (const AddedBias& b : p_.biases) {
      Value v = to_scores(b.value, b.scores);
      if (b.factor != 1 || p_.biases.size() > 1) v = cast(v, compute_type(v.dtype())) * b.factor;
      total = total ? total + v : v;
    }
    return total;
  }

  Value slopes_operand(DType type) const {
    if (!p_.slopes) return {};
    Value v = cast(reshape(p_.slopes, {p_.slopes.type().elements()}), compute_type(type));
    return broadcast_to(p_.slopes_factor == 1 ? v : v * p_.slopes_factor, {p_.heads});
  }

  // Removes `op` and what was made for it alone.
  static void erase_dead(Op& op) {
    std::vector<Op*> work{&op};
    while (!work.empty()) {
      Op* dead = work.back();
      work.pop_back();
      std::vector<Op*> makers;
      for (Value v : dead->operands())
        if (v && v.op() != nullptr &&
            std::find(makers.begin(), makers.end(), v.op()) == makers.end())
          makers.push_back(v.op());
      op.graph().erase(*dead);
      for (Op* maker : makers) {
        bool used = false;
        for (size_t i = 0; i < maker->num_results(); ++i)
          used = used || !maker->result(i).uses().empty() ||
                 maker->graph().is_output(maker->result(i));
        if (!used) work.push_back(maker);
      }
    }
  }

  const AttentionPattern& p_;
};

// Whether keys and values are both parameters.
bool reads_weights_alone(const AttentionPattern& p) {
  return is_weight(p.scores->operand(1)) && is_weight(p.product->operand(1));
}

void fuse_all(Graph& graph, bool required, PassContext& context) {
  const std::unordered_set<const Op*> dead = dead_ops(graph);
  std::unordered_set<const Op*> tried;
  for (Op* op = graph.front(); op != nullptr;) {
    Op* next = op->next();
    // What fusing makes, perhaps where something was before, is nothing to try.
    if (!dead.contains(op) && tried.insert(op).second && may_be_attention(*op)) {
      SourceLocation loc = op->loc();
      std::string why;
      auto pattern = find_attention(*op, dead, why);
      if (pattern && reads_weights_alone(*pattern)) {
        next = op->next();  // two layers with a softmax in between
      } else if (pattern) {
        context.remark(loc, fmt::format("fused: {}", print(Fusion(*pattern).run())));
        next = graph.front();  // what was here is gone
      } else {
        std::string text = fmt::format("attention is not fused: {}", why);
        if (required) throw Error(Diagnostic{loc, std::move(text)});
        context.remark(loc, std::move(text));
        next = op->next();
      }
    }
    op = next;
  }
}

// What autodiff will ask a gradient of: in an entry graph, what depends on its attribute `wrt`; in
// others, which belong to ops that are differentiated as a whole, what depends on an input.
ValueSet learned_values(Graph& graph, bool entry) {
  std::vector<Value> wrt;
  if (!entry) {
    for (Value input : graph.inputs())
      if (is_float(input.dtype())) wrt.push_back(input);
  } else if (graph.attributes.contains("loss")) {
    auto found = graph.attributes.find("wrt");
    const auto* names = found == graph.attributes.end()
                            ? nullptr
                            : std::get_if<std::vector<std::string>>(&found->second);
    for (const std::string& name : names == nullptr ? std::vector<std::string>() : *names) {
      Value v = graph.find_input(name);
      if (!v) v = find_value(graph, name);
      if (v) wrt.push_back(v);
    }
  }
  ActivePath path("fuse-attention", graph, {}, wrt, nullptr);
  std::vector<Value> watched;
  path.find([](const OpDef&) { return false; }, watched);
  return std::move(path.active);
}

// A kernel of the target's own keeps each row's log-sum-exp for the backward one.
void keep_statistics(Graph& graph, bool entry, const Target& target, bool required,
                     PassContext& context) {
  ValueSet learned = learned_values(graph, entry);
  for (Op& op : graph) {
    if (!op.is("attention")) continue;
    std::string why;
    if (!has_native_attention(
            op, target, [&](Value v) { return learned.contains(v); }, &why)) {
      if (target.is_cuda())
        context.remark(op.loc(), fmt::format("attention keeps no statistics for a kernel of its "
                                             "gradient: {}",
                                             why));
      if (required)
        throw Error(Diagnostic{
            op.loc(),
            fmt::format("{} has no attention kernel for q: {}, v: {}: {}. Where none is required "
                        "(attention auto) it is composed",
                        target.arch, op.operand(0).type().str(), op.operand(2).type().str(), why)});
      continue;
    }
    AttentionAttrs attrs = op.attrs<AttentionAttrs>();
    if (attrs.lse) continue;
    attrs.lse = true;
    Op* now = nullptr;
    {
      InsertionScope scope(graph, &op, op, op.from());
      std::vector<Value> operands(op.operands().begin(), op.operands().end());
      now = &build_op(graph, "attention", std::move(operands), attrs, op.loc());
      now->set_with(op.with());
    }
    now->result().set_name(op.result().name());
    op.result().replace_all_uses_with(now->result());
    graph.erase(op);
  }
}

}  // namespace

void run_fuse_attention(Module& module, PassContext& context) {
  std::string_view require = context.option("require");
  if (!require.empty() && require != "fused" && require != "native")
    throw Error(fmt::format("fuse-attention: require={}: expected fused or native", require));
  for (const auto& graph : module.graphs()) fuse_all(*graph, !require.empty(), context);
  const std::vector<Graph*> entries = entry_graphs(module);
  for (const auto& graph : module.graphs()) {
    bool entry = std::find(entries.begin(), entries.end(), graph.get()) != entries.end();
    keep_statistics(*graph, entry, module.target, require == "native", context);
  }
}

}  // namespace sinter
