// autocast: contractions in bf16, f16 or TF32, and f32 in between. See autocast.h.

#include <sinter/passes/autocast.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <algorithm>
#include <map>

namespace sinter {

namespace {

bool is_f32(Value v) {
  return v && v.dtype() == DType::F32;
}

// An op that computes in the narrow type, if its floats are f32.
bool computes_narrow(const Op& op) {
  if (op.def().autocast != Autocast::Narrow || !is_f32(op.result())) return false;
  for (Value v : op.operands())
    if (v && is_float(v.dtype()) && v.dtype() != DType::F32) return false;
  return op.def().kind != OpKind::Contract || op.attrs<MatmulAttrs>().compute.empty();
}

// What the rewriting needs to know of the graph as it is.
class Analysis {
 public:
  Analysis(const Module& module, const Graph& graph) : module_(module) {
    for (Value v : graph.inputs()) facts_[v] = input(v);
    std::vector<const Op*> ops;
    for (Op& op : graph) {
      ops.push_back(&op);
      Fact fact = fact_of(op);
      for (size_t i = 0; i < op.num_results(); ++i) facts_[op.result(i)] = fact;
    }
    for (size_t i = ops.size(); i-- > 0;)
      for (size_t k = 0; k < ops[i]->num_results(); ++k) {
        Value v = ops[i]->result(k);
        facts_[v].leaves = is_f32(v) && !facts_[v].is_parameter && leaves(*ops[i], v);
      }
  }
  // Inputs of the graph and views of them: what a contraction reads as it is.
  bool is_parameter(Value v) const { return facts_.at(v).is_parameter; }
  // Whether the value leaves its f32 part, and is kept narrow.
  bool leaves(Value v) const { return facts_.at(v).leaves; }

 private:
  struct Fact {
    int depth = 0;  // contractions on the longest way here
    bool is_parameter = false;
    bool is_data = false;     // depends on what differs from batch to batch
    bool is_summary = false;  // a row's mean, say, is no activation: it stays f32 for its readers
    bool is_stream =
        false;  // a residual stream: what stands on either side of a contraction, added
    bool leaves = false;
  };

  Fact input(Value v) const {
    bool is_data = is_float(v.dtype()) && v.rank() > 0 && module_.find_state(v.name()) == nullptr;
    Fact fact;
    fact.is_parameter = true;
    fact.is_data = is_data;
    return fact;
  }

  Fact fact_of(const Op& op) const {
    OpKind kind = op.def().kind;
    bool narrow = computes_narrow(op);
    Fact fact;
    fact.is_parameter = kind == OpKind::View;
    fact.is_data = narrow || kind == OpKind::Gather;
    for (Value v : op.operands()) {
      if (!v) continue;
      const Fact& f = facts_.at(v);
      fact.depth = std::max(fact.depth, f.depth);
      fact.is_parameter = fact.is_parameter && f.is_parameter;
      fact.is_data = fact.is_data || f.is_data;
    }
    fact.is_summary = !narrow && summarises(op);
    fact.is_stream = !fact.is_summary && joins_stream(op);
    if (narrow) ++fact.depth;
    return fact;
  }

  // Whether the op sums up many elements in few, or works with such sums alone.
  bool summarises(const Op& op) const {
    OpKind kind = op.def().kind;
    if (kind == OpKind::Reduce) return true;
    bool moves = kind == OpKind::View || kind == OpKind::Gather, any = false, all = true;
    for (Value x : op.operands()) {
      if (!is_f32(x)) continue;
      if (!moves && x.type().elements() > op.result().type().elements()) return true;
      if (!facts_.at(x).is_data) continue;
      any = true;
      all = all && facts_.at(x).is_summary;
    }
    return any && all;
  }

  // Whether the op adds activations of which one lies deeper, or is a stream already.
  bool joins_stream(const Op& op) const {
    if (!op.is("add") && !op.is("add_n")) return false;
    bool stream = false;
    int first = facts_.at(op.operand(0)).depth;
    for (Value x : op.operands()) {
      const Fact& f = facts_.at(x);
      // Masks come from no contraction; what is broadcast is a bias.
      if (!is_f32(x) || !f.is_data || f.depth == 0) return false;
      if (x.op() != nullptr && x.op()->is("broadcast")) return false;
      stream = stream || f.is_stream || f.depth != first;
    }
    return stream;
  }

  bool leaves(const Op& op, Value v) const {
    const Fact& own = facts_.at(v);
    bool view = op.def().kind == OpKind::View;
    for (const Use& use : v.uses()) {
      if (computes_narrow(*use.op)) return true;
      const Fact& user = facts_.at(use.op->result());
      // One term after another is one sum.
      if (own.is_stream && !view && !user.is_stream) return true;
      if (use.op->def().kind == OpKind::View
              ? user.leaves
              : !own.is_summary && own.is_data && user.depth > own.depth)
        return true;
    }
    return false;
  }

  const Module& module_;
  ValueMap<Fact> facts_;
};

class Casting {
 public:
  Casting(const Module& module, Graph& graph, DType narrow)
      : graph_(graph), narrow_(narrow), analysis_(module, graph) {}

  void run(PassContext& context) {
    std::vector<Op*> old;
    for (Op& op : graph_) old.push_back(&op);
    for (Value v : graph_.inputs()) home_[v] = v;
    for (Op* op : old) rewrite(*op);
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const GraphOutput& output = graph_.outputs()[i];
      if (output.value.op() == nullptr) continue;
      InsertionScope scope(graph_, nullptr, *output.value.op(), output.value.op()->from(), "");
      Value v = home_.at(output.value);
      graph_.set_output(i, is_f32(output.value) ? wide(v, "") : v);
    }
    for (size_t i = old.size(); i-- > 0;) graph_.erase(*old[i]);
    context.remark({}, fmt::format("@{}: {} contractions compute in {}, {} values leave f32 as {}",
                                   graph_.name(), contractions_, to_string(narrow_), left_,
                                   to_string(narrow_)));
  }

 private:
  // New values for an op's results, in front of it. `home_` holds each value in the one type that
  // it is kept in.
  void rewrite(Op& op) {
    InsertionScope scope(graph_, &op, op, op.from());
    std::vector<Value> operands;
    for (Value v : op.operands()) operands.push_back(v ? home_.at(v) : Value());
    if (computes_narrow(op)) return contract(op, std::move(operands));
    if (op.def().kind == OpKind::View && follows(op, operands))
      return view(op, std::move(operands));
    for (size_t i = 0; i < operands.size(); ++i)
      if (is_f32(op.operand(i))) operands[i] = wide(operands[i], op.segment());
    Op& copy = clone_op(op, graph_, std::move(operands));
    for (size_t i = 0; i < op.num_results(); ++i) {
      Value v = copy.result(i);
      if (analysis_.leaves(op.result(i))) {
        Value down = cast(v, narrow_).named(v.name());
        v.set_name("");
        v = down;
        ++left_;
      }
      home_[op.result(i)] = v;
    }
  }

  void contract(Op& op, std::vector<Value> operands) {
    ++contractions_;
    bool reads_parameters = op.def().kind == OpKind::Contract;
    for (size_t i = 0; i < operands.size(); ++i)
      if (is_f32(operands[i]) && !(reads_parameters && (i < 2 || operands[i].rank() == 1) &&
                                   analysis_.is_parameter(op.operand(i))))
        operands[i] = narrowed(operands[i]);
    if (!reads_parameters) keep_wide(op, operands);
    Op* copy = nullptr;
    if (reads_parameters) {
      MatmulAttrs attrs = op.attrs<MatmulAttrs>();
      attrs.compute = attrs.result = to_string(narrow_);
      Value y = operands.size() > 2 && operands[2]
                    ? matmul_add(operands[0], operands[1], operands[2], std::move(attrs))
                    : matmul(operands[0], operands[1], std::move(attrs));
      copy = y.op();
      copy->result().set_name(op.result().name());
    } else {
      copy = &clone_op(op, graph_, std::move(operands));
    }
    for (size_t i = 0; i < op.num_results(); ++i) home_[op.result(i)] = copy->result(i);
  }

  // Operands that the op takes as f32 alone, such as a table of slopes, are read as they are.
  void keep_wide(const Op& op, std::vector<Value>& operands) {
    auto accepted = [&] {
      return bool(op.def().infer({op.def(), op.raw_attrs().get(), operands, op.loc(), nullptr}));
    };
    for (size_t i = operands.size(); i-- > 0 && !accepted();)
      if (is_f32(op.operand(i))) operands[i] = wide(home_.at(op.operand(i)), op.segment());
  }

  bool follows(const Op& op, const std::vector<Value>& operands) const {
    bool any = false;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!is_f32(op.operand(i))) continue;
      if (operands[i].dtype() != narrow_) return false;
      any = true;
    }
    return any;
  }
  void view(const Op& op, std::vector<Value> operands) {
    Op& copy = detail::view_as(op, std::move(operands));
    for (size_t i = 0; i < op.num_results(); ++i) {
      copy.result(i).set_name(op.result(i).name());
      home_[op.result(i)] = copy.result(i);
    }
  }

  // One cast for all readers of a segment.
  Value wide(Value v, const std::string& segment) {
    if (v.dtype() != narrow_) return v;
    Value& up = wide_[{v.id(), segment}];
    if (!up) up = cast(v, DType::F32);
    return up;
  }
  Value narrowed(Value v) {
    Value& down = down_[v];
    if (!down) down = cast(v, narrow_);
    return down;
  }

  Graph& graph_;
  DType narrow_;
  Analysis analysis_;
  ValueMap<Value> home_, down_;
  std::map<std::pair<const void*, std::string>, Value> wide_;
  int contractions_ = 0, left_ = 0;
};

// The row that the value has in all its rows, if that is a parameter; null otherwise.
Value row_of(Value v) {
  const Op* op = v.op();
  if (op == nullptr || !op->is("broadcast")) return {};
  Value row = op->operand(0), from = row;
  if (row.rank() != 1 || row.dim(0) != v.dim(-1)) return {};
  while (from.op() != nullptr && from.op()->def().kind == OpKind::View)
    from = from.op()->operand(0);
  return from.op() == nullptr ? row : Value();
}

// A bias becomes an operand of its product. Added to a result that is narrow already, it would be
// lost where it is small beside the result's last bit, or would tip all ties of the next sum to one
// side.
void fold_biases(Graph& graph) {
  for (Op* op = graph.front(); op != nullptr;) {
    Op* next = op->next();
    if (op->is("add") && is_f32(op->result()))
      for (size_t side : {size_t{0}, size_t{1}}) {
        Value sum = op->operand(side), row = row_of(op->operand(1 - side));
        Op* view = nullptr;
        if (sum.op() != nullptr && sum.op()->is("reshape") && sum.uses().size() == 1 &&
            sum.rank() > 0 && sum.op()->operand(0).rank() > 0 &&
            sum.op()->operand(0).dim(-1) == sum.dim(-1)) {
          view = sum.op();
          sum = view->operand(0);
        }
        Op *product = sum.op(), *spread = op->operand(1 - side).op();
        if (!row || product == nullptr || product->def().kind != OpKind::Contract ||
            product->operand(2) || !computes_narrow(*product) || sum.uses().size() != 1 ||
            graph.is_output(sum) || (view != nullptr && graph.is_output(view->result())))
          continue;
        Value y = [&] {
          InsertionScope scope(graph, op, *product, product->from());
          Value v = matmul_add(product->operand(0), product->operand(1), row,
                               product->attrs<MatmulAttrs>());
          return view != nullptr ? reshape(v, view->result().shape()) : v;
        }();
        y.set_name(op->result().name());
        op->result().replace_all_uses_with(y);
        graph.erase(*op);
        if (view != nullptr) graph.erase(*view);
        graph.erase(*product);
        if (spread->result().uses().empty() && !graph.is_output(spread->result()))
          graph.erase(*spread);
        break;
      }
    op = next;
  }
}

// Composites made of contractions become those.
void expand_contractions(Graph& graph) {
  for (Op* op = graph.front(); op != nullptr;) {
    Op* before = op->prev();
    if (op->def().autocast != Autocast::Inside) {
      op = op->next();
      continue;
    }
    detail::expand_in_place(*op);
    op = before != nullptr ? before->next() : graph.front();
  }
}

int use_tf32(Graph& graph) {
  int count = 0;
  for (Op& op : graph) {
    if (op.def().kind != OpKind::Contract || !computes_narrow(op)) continue;
    MatmulAttrs attrs = op.attrs<MatmulAttrs>();
    attrs.compute = "tf32";
    Value y = [&] {
      InsertionScope scope(graph, &op, op, op.from());
      Value a = op.operand(0), b = op.operand(1), c = op.operand(2);
      return c ? matmul_add(a, b, c, std::move(attrs)) : matmul(a, b, std::move(attrs));
    }();
    y.set_name(op.result().name());
    op.result().replace_all_uses_with(y);
    graph.erase(op);
    ++count;
  }
  return count;
}

}  // namespace

void run_autocast(Module& module, PassContext& context) {
  for (const auto& graph : module.graphs()) {
    std::string wanted(context.option("dtype"));
    if (auto it = graph->attributes.find(kAutocastAttribute); it != graph->attributes.end()) {
      const auto* name = std::get_if<std::string>(&it->second);
      if (name == nullptr)
        throw Error(fmt::format("autocast: graph @{}: {} is no name of a dtype", graph->name(),
                                to_string(it->second)));
      wanted = *name;
      graph->attributes.erase(it);
    }
    if (wanted.empty()) continue;
    std::optional<DType> type = parse_dtype(wanted);
    if (type != DType::F32) expand_contractions(*graph);
    if (type == DType::BF16 || type == DType::F16) {
      fold_biases(*graph);
      Casting(module, *graph, *type).run(context);
    } else if (wanted == "tf32") {
      context.remark(
          {}, fmt::format("@{}: {} contractions may use tf32", graph->name(), use_tf32(*graph)));
    } else if (type != DType::F32) {
      throw Error(fmt::format("autocast: graph @{}: expected f32, tf32, bf16 or f16, not {}",
                              graph->name(), wanted));
    }
  }
}

}  // namespace sinter
