#include <sinter/passes/detail/attention_pattern.h>

#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/detail/attention_softmax.h>
#include <sinter/passes/detail/util.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sinter::detail {

namespace {

// A score of at most this is that of a key which is not seen: exp of it is 0 in f64 too.
constexpr double kFar = -1000;
constexpr int kDeepest = 32;

bool is_product(const Op& op) {
  return op.def().kind == OpKind::Contract || op.def().autocast == Autocast::Inside;
}

// What a chain of scores may pass on its way to the softmax.
bool carries_scores(const Op& op) {
  constexpr std::string_view kNames[] = {"mul",   "div",         "neg",  "add", "sub",
                                         "where", "masked_fill", "tanh", "cast"};
  return is_reshape(op) ||
         std::find(std::begin(kNames), std::end(kNames), op.name()) != std::end(kNames);
}

// How many ops a search looks at.
constexpr size_t kWidest = 256;

// What might be written between the products of attention, also where the op has nothing of the
// kind.
bool keeps_matrix(const Op& op) {
  return op.def().kind == OpKind::Pointwise || is_reshape(op) || op.is("permute") ||
         op.is("masked_fill") || op.is("tril") || op.is("triu") || op.is("dropout");
}
bool cuts_matrix(const Op& op) {
  return op.is("concat") || op.is("slice") || op.is("pad");
}
bool is_layer(const Op& product) {
  return product.operands().size() > 1 && product.operand(1) && is_weight(product.operand(1));
}

// Whether `v` comes from a product of as many elements, through what attention may have there; or,
// looking for any function of one that is not a layer's, through more.
bool comes_from_product(Value v, int64_t elements, bool any_function = false) {
  std::vector<Value> work{v};
  std::unordered_set<const Op*> known;
  while (!work.empty()) {
    Value x = work.back();
    work.pop_back();
    const Op* op = x.op();
    if (op == nullptr || !known.insert(op).second) continue;
    if (!any_function && x.type().elements() != elements) continue;
    if (is_product(*op)) {
      if (!any_function || !is_layer(*op)) return true;
      continue;
    }
    bool passes = carries_scores(*op) || op->is("permute") ||
                  (any_function && (keeps_matrix(*op) || cuts_matrix(*op)));
    if (known.size() > kWidest || !passes) continue;
    for (size_t i = op->is("where") ? 1 : 0; i < op->operands().size(); ++i)
      if (op->operand(i) && !constant_of(op->operand(i))) work.push_back(op->operand(i));
  }
  return false;
}
bool comes_from_product(Value v) {
  return comes_from_product(v, v.type().elements());
}

// Whether a product reads `v`, or what pointwise ops and views make of it; or any function of it.
bool leads_to_product(Value v, bool any_function = false) {
  std::vector<Value> work{v};
  std::unordered_set<const Op*> known;
  while (!work.empty()) {
    Value x = work.back();
    work.pop_back();
    for (const Use& use : x.uses()) {
      const Op& op = *use.op;
      if (is_product(op)) {
        if (!any_function || !is_layer(op)) return true;
        continue;
      }
      if (op.num_results() != 1) continue;
      bool cuts = any_function && cuts_matrix(op);
      if (!cuts && op.result().type().elements() != x.type().elements()) continue;
      if (!is_reshape(op) && !op.is("cast") && !op.is("dropout") && !op.is("where") &&
          !op.is("mul") && !cuts && !(any_function && keeps_matrix(op)))
        continue;
      if (known.size() < kWidest && known.insert(&op).second) work.push_back(op.result());
    }
  }
  return false;
}

// ---- The whole

// Whether an attribute of the graph names the value.
bool is_spoken_of(const Graph& graph, const std::string& name) {
  for (const auto& [key, value] : graph.attributes) {
    if (const auto* one = std::get_if<std::string>(&value); one != nullptr && *one == name)
      return true;
    if (const auto* many = std::get_if<std::vector<std::string>>(&value))
      if (std::find(many->begin(), many->end(), name) != many->end()) return true;
  }
  return false;
}

class Reader {
 public:
  Reader(Op& op, const std::unordered_set<const Op*>& dead) : graph_(op.graph()), dead_(dead) {
    out_.softmax = &op;
  }

  std::optional<AttentionPattern> run(std::string& why) {
    if (read()) return out_;
    why = why_;
    return std::nullopt;
  }

 private:
  bool fail(std::string why) {
    why_ = std::move(why);
    return false;
  }

  bool read() {
    const Op& op = *out_.softmax;
    Softmax softmax = *softmax_ending(op);
    if (!softmax.why.empty()) return fail(softmax.why);
    inside_ = softmax.inside;
    if (!read_product(softmax.probabilities)) return false;
    out_.last = out_.product;
    if (softmax.product != nullptr) {
      if (out_.product != softmax.product || !is_read_once(out_.product->result()))
        return fail("the product with v is read before the division");
      out_.last = out_.softmax;
    }
    // Einsums become products before anything is read of them.
    softmax = *softmax_ending(op);
    while (!expand_products(softmax.scores)) softmax = *softmax_ending(op);
    inside_.merge(softmax.inside);
    Value scores = softmax.scores;
    if (scores.rank() < 2) return fail("the scores have one axis");
    out_.queries = scores.dim(-2);
    out_.keys = scores.dim(-1);
    choose_axes(scores);
    return read_scores(scores, softmax.factor) && check_scores_product() && check_uses() &&
           settle_masks(softmax.clears_rows);
  }

  bool is_read_once(Value v) const {
    auto live = std::count_if(v.uses().begin(), v.uses().end(),
                              [&](const Use& use) { return !dead_.contains(use.op); });
    return live == 1 && !graph_.is_output(v);
  }

  // Expands one einsum on the way of the scores; whether there was none.
  static bool expand_products(Value v) {
    for (Op* op = v.op(); op != nullptr; op = v.op()) {
      if (op->def().autocast == Autocast::Inside) {
        expand_in_place(*op);
        return false;
      }
      v = carries_scores(*op) ? score_operand(*op) : Value();
      if (!v) break;
    }
    return true;
  }
  // The operand that the scores come through; null where there is none.
  static Value score_operand(const Op& op) {
    for (size_t i = op.is("where") ? 1 : 0; i < op.operands().size(); ++i) {
      Value x = op.operand(i);
      if (!constant_of(x) && comes_from_product(x, op.result().type().elements())) return x;
    }
    return {};
  }

  // From the probabilities to the product with v.
  bool read_product(Value p) {
    for (int i = 0; i < kDeepest; ++i) {
      if (graph_.is_output(p)) return fail("the probabilities are a result of the graph");
      std::vector<Use> uses = p.uses();
      std::erase_if(
          uses, [&](const Use& use) { return dead_.contains(use.op) || inside_.contains(use.op); });
      if (uses.size() != 1)
        return fail(fmt::format("the probabilities are read {} times", uses.size()));
      Op& use = *uses[0].op;
      if (use.def().autocast == Autocast::Inside) {
        expand_in_place(use);
        continue;
      }
      if (use.def().kind == OpKind::Contract) {
        const auto& a = use.attrs<MatmulAttrs>();
        if (uses[0].operand != 0 || a.transpose_a)
          return fail("the probabilities are not the left factor of the product with v");
        if (use.operand(2)) return fail("the product with v adds to something");
        if (matmul_compute(use) != use.operand(0).dtype() || a.compute == "tf32")
          return fail(fmt::format("the product with v computes in {}", a.compute));
        out_.product = &use;
        return true;
      }
      if (use.is("dropout") && uses[0].operand == 0) {
        if (out_.dropout != nullptr) return fail("the probabilities are dropped twice");
        out_.dropout = &use;
      } else if (auto kept = kept_where(use, uses[0].operand)) {
        cleared_.push_back(*kept);
      } else if (!(use.is("cast") && is_float(use.result().dtype())) &&
                 !(is_reshape(use) && use.result().rank() > 0 &&
                   use.result().dim(-1) == p.dim(-1))) {
        return fail(fmt::format("the probabilities go through an op {}", use.name()));
      }
      inside_.insert(&use);
      p = use.result();
    }
    return fail("the probabilities go through many ops");
  }

  // A condition, or its opposite.
  struct Chosen {
    Value condition;
    bool negated = false;
    friend bool operator==(const Chosen& a, const Chosen& b) {
      return a.condition == b.condition && a.negated == b.negated;
    }
  };
  static Chosen chosen(Value condition, bool negated) {
    while (const Op* op = made_by(condition, "logical_not")) {
      condition = op->operand(0);
      negated = !negated;
    }
    return {condition, negated};
  }
  // Where the op keeps that operand, if it is 0 elsewhere.
  static std::optional<Chosen> kept_where(const Op& op, size_t operand) {
    if (op.is("masked_fill") && operand == 0 && op.attrs<MaskedFillAttrs>().value.as_double() == 0)
      return chosen(op.operand(1), true);
    if (op.is("where") && operand > 0 && constant_of(op.operand(3 - operand)) == 0.0)
      return chosen(op.operand(0), operand == 2);
    return std::nullopt;
  }

  // Which axes of the scores are batch and heads.
  void choose_axes(Value scores) {
    const Shape& s = scores.shape();
    Shape leading(s.begin(), s.end() - 2);
    out_.batch = 1;
    out_.heads = num_elements(leading);
    if (leading.size() > 1) {
      // Of three axes the last two are key heads and those that share one, or all but the last are
      // batches, as with examples in front.
      bool shared = leading.size() != 3 || reads_shared_keys(scores);
      out_.batch = shared ? leading[0] : leading[0] * leading[1];
      out_.heads /= out_.batch;
    }
    if (leading.size() != 1) return;
    // One axis for both: other values may tell them apart.
    for (Value v = scores; v.op() != nullptr;) {
      const Op& op = *v.op();
      if (is_product(op)) {
        const Op* joined = made_by(op.operand(0), "reshape");
        if (joined != nullptr) split_axes(joined->operand(0));
        return;
      }
      v = carries_scores(op) ? score_operand(op) : Value();
      if (!v || split_axes(v)) return;
    }
  }
  // Whether the product of the scores repeats its right factor along the third axis.
  static bool reads_shared_keys(Value scores) {
    for (Value v = scores; v && v.op() != nullptr; v = score_operand(*v.op())) {
      if (is_product(*v.op())) {
        Value k = v.op()->operand(1);
        for (int i = 0; i < kDeepest && k.op() != nullptr && is_view(*k.op()); ++i) {
          if (k.op()->is("broadcast") && k.rank() == 5) {
            Shape from = k.op()->operand(0).shape();
            from.insert(from.begin(), 5 - from.size(), 1);
            return from[2] != k.dim(2);
          }
          k = k.op()->operand(0);
        }
        return false;
      }
      if (!carries_scores(*v.op())) return false;
    }
    return false;
  }
  bool split_axes(Value v) {
    if (v.rank() != 4 || v.dim(0) * v.dim(1) != out_.heads || v.dim(2) != out_.queries)
      return false;
    out_.batch = v.dim(0);
    out_.heads = v.dim(1);
    return true;
  }

  // The roles of the axes of scores of this shape.
  Roles roles(const Shape& scores) const {
    Roles out(scores.size(), Role::Other);
    size_t n = scores.size();
    out[n - 1] = Role::Key;
    if (scores[n - 2] == out_.queries) out[n - 2] = Role::Query;
    if (n == 4 && scores[1] == out_.heads) out[1] = Role::Head;
    if (n == 3 && out_.batch == 1 && scores[0] == out_.heads) out[0] = Role::Head;
    if (n == 5 && scores[2] == out_.heads) out[2] = Role::Head;
    return out;
  }

  // From the softmax's operand to the product of q and k.
  bool read_scores(Value v, double factor) {
    // `factor` is of v, in what the softmax reads, or in what the softcap's tanh reads
    bool capped = false;
    for (;;) {
      Op* op = v.op();
      if (op == nullptr) return fail("the scores are no product");
      if (op->def().kind == OpKind::Contract) {
        out_.scores = op;
        break;
      }
      if (!carries_scores(*op))
        return fail(fmt::format("the scores go through an op {}", op->name()));
      inside_.insert(op);
      Value a = op->operand(0), b = op->operand(1);
      if (is_reshape(*op) || op->is("cast")) {
        if (!is_float(a.dtype()))
          return fail(fmt::format("the scores are {} in between", to_string(a.dtype())));
        if (a.rank() == 0 || a.dim(-1) != out_.keys)
          return fail("the scores are reshaped along the keys");
        v = a;
        continue;
      }
      if (op->is("neg")) {
        factor = -factor;
        v = a;
        continue;
      }
      if (op->is("tanh")) {
        if (capped) return fail("the scores have two softcaps");
        if (!out_.factors.empty())
          return fail("the softcap is multiplied by something that is no constant");
        out_.softcap = factor;
        factor = 1;
        capped = true;
        v = a;
        continue;
      }
      if (op->is("mul") || op->is("div")) {
        std::optional<double> c = constant_of(b);
        Value next = a;
        if (!c && op->is("mul")) {
          c = constant_of(a);
          next = b;
        }
        if (c)
          factor = op->is("mul") ? factor * *c : factor / *c;
        else if (!read_row_factor(*op, next))
          return false;
        v = next;
        continue;
      }
      if (capped) return fail("a mask or a bias comes before the softcap");
      if (!out_.factors.empty())
        return fail("a mask or a bias is multiplied by something that is no constant");
      bool chooses = op->is("where") || op->is("masked_fill");
      if (chooses ? !read_where(*op, factor, v) : !read_sum(*op, factor, v)) return false;
    }
    out_.scale = capped ? factor * out_.softcap : factor;
    if (!(out_.scale > 0) || !std::isfinite(out_.scale) || (capped && !(out_.softcap > 0)))
      return fail(fmt::format("the scale of the scores is {}", out_.scale));
    return true;
  }

  // What is the same for all keys of a row is a factor of q.
  bool read_row_factor(const Op& op, Value& next) {
    bool left = comes_from_product(op.operand(0));
    Value other = op.operand(left ? 1 : 0);
    next = op.operand(left ? 0 : 1);
    const Shape& shape = op.result().shape();
    DType type = out_.product->result().dtype();
    bool of_rows = is_one_for_keys(other) && out_.keys > 1;
    if (!of_rows || (!left && op.is("div")))
      return fail("the scores are multiplied by something that is no constant");
    if (compute_type(type) != type)
      return fail(fmt::format(
          "q, which is {}, would be multiplied by something that is no constant", to_string(type)));
    out_.factors.push_back({other, shape, op.is("div")});
    return true;
  }

  // Whether one number stands for all keys of a row.
  static bool is_one_for_keys(Value v) {
    const Op* op = made_by(v, "broadcast");
    return op != nullptr && (op->operand(0).rank() == 0 || op->operand(0).dim(-1) == 1);
  }

  bool read_where(const Op& op, double factor, Value& v) {
    bool fills = op.is("masked_fill");
    bool otherwise = fills || constant_of(op.operand(1)).has_value();
    std::optional<double> c = fills ? std::optional(op.attrs<MaskedFillAttrs>().value.as_double())
                                    : constant_of(op.operand(otherwise ? 1 : 2));
    if (!c) return fail("a where chooses between the scores and something that is no constant");
    double value = *c * factor;
    if (!(value <= kFar))
      return fail(fmt::format("the scores of masked keys are {}, which does not mask them", value));
    Value condition = op.operand(fills ? 1 : 0);
    Term term;
    term.scores = op.result().shape();
    term.value = value;
    term.where = chosen(condition, otherwise);
    add_condition(seen(condition, roles(term.scores)), otherwise, term.visible);
    terms_.push_back(std::move(term));
    v = op.operand(fills ? 0 : otherwise ? 2 : 1);
    return true;
  }

  bool read_sum(const Op& op, double& factor, Value& v) {
    Value a = op.operand(0), b = op.operand(1);
    bool minus = op.is("sub");
    bool left = !constant_of(a) && comes_from_product(a);
    Value other = left ? b : a;
    double of_other = minus && left ? -factor : factor;
    v = left ? a : b;
    if (minus && !left) factor = -factor;
    if (!left && !comes_from_product(b)) return fail("the scores are no product");
    // The same for every key of a row changes nothing.
    if (std::optional<double> c = constant_of(other); c && std::isfinite(*c)) return true;
    const Shape& shape = op.result().shape();
    Seen term = seen(other, roles(shape));
    if (auto mask = added_mask(term, of_other, kFar)) {
      terms_.push_back({mask->visible, shape, mask->value, other, of_other, {}});
      return true;
    }
    if (!out_.slopes)
      if (auto slopes = slopes_of(term, of_other)) {
        slopes_ = Sloped{*slopes, {other, of_other, shape}};
        out_.slopes = slopes->slopes;
        return true;
      }
    out_.biases.push_back({other, of_other, shape});
    return true;
  }

  bool check_scores_product() {
    const Op& op = *out_.scores;
    const auto& a = op.attrs<MatmulAttrs>();
    if (op.operand(2)) return fail("the product of q and k adds to something");
    if (matmul_compute(op) != op.operand(0).dtype() || a.compute == "tf32")
      return fail(fmt::format("the product of q and k computes in {}", a.compute));
    if (op.operand(0).dtype() != op.operand(1).dtype())
      return fail("q and k are of different types");
    DType type = out_.product->result().dtype();
    for (Value v : {op.operand(0), op.operand(1), out_.product->operand(1)})
      if (!can_be(v, type))
        return fail(fmt::format("one of q, k and v is {}, the result {}", to_string(v.dtype()),
                                to_string(type)));
    return check_sizes(op, "scores") && check_sizes(*out_.product, "product with v");
  }
  static bool can_be(Value v, DType type) {
    if (v.dtype() == type || (is_float(type) && size_of(v.dtype()) < size_of(type))) return true;
    for (; v.op() != nullptr && is_view(*v.op());) v = v.op()->operand(0);
    const Op* inner = made_by(v, "cast");
    return inner != nullptr && inner->operand(0).dtype() == type;
  }

  // Rows of neighbouring query heads may be one matrix.
  bool check_sizes(const Op& op, std::string_view what) {
    const Shape& s = op.result().shape();
    int64_t rows = s[s.size() - 2], matrices = num_elements(Shape(s.begin(), s.end() - 2));
    bool fits = out_.batch > 0 && matrices > 0 && matrices % out_.batch == 0;
    if (fits) {
      int64_t kv_heads = matrices / out_.batch;
      fits = out_.heads % kv_heads == 0 && rows == out_.heads / kv_heads * out_.queries;
    }
    return fits ||
           fail(fmt::format("the {} are {} for {} batches, {} heads and {} queries", what,
                            op.result().type().str(), out_.batch, out_.heads, out_.queries));
  }

  // Nothing else may read what the op would not make.
  bool check_uses() {
    std::unordered_set<const Op*> readers = inside_;
    readers.insert({out_.product, out_.last});
    std::unordered_set<const Op*> makers = inside_;
    makers.insert(out_.scores);
    for (const Op* op : makers)
      for (size_t i = 0; i < op->num_results(); ++i) {
        Value v = op->result(i);
        // A constant or a mask in between may serve others too.
        if (v.dtype() == DType::Bool || constant_of(v)) continue;
        for (const Use& use : v.uses())
          if (!readers.contains(use.op) && !dead_.contains(use.op))
            return fail(fmt::format("{} is read by an op {} too", name_of(v), use.op->name()));
        if (graph_.is_output(v))
          return fail(fmt::format("{} is a result of the graph", name_of(v)));
        if (!v.name().empty() && is_spoken_of(graph_, v.name()))
          return fail(fmt::format("{} is named by an attribute of the graph", name_of(v)));
      }
    return true;
  }
  static std::string name_of(Value v) {
    return v.name().empty() ? fmt::format("the result of an op {}", v.op()->name())
                            : fmt::format("%{}", v.name());
  }
  // With -inf a row that sees no key gives 0, as attention does. With a number far below 0 it gives
  // the mean of v: such a mask stands only where every row sees a key; where it is added, it may
  // stay what it is, a bias.
  bool settle_masks(bool clears_rows) {
    if (clears_rows)
      for (Term& t : terms_) t.value = -std::numeric_limits<double>::infinity();
    // Probabilities that are made 0 where the scores were masked already: so are the rows that see
    // no key, if that is all that masks.
    for (const Chosen& c : cleared_) {
      auto same =
          std::find_if(terms_.begin(), terms_.end(), [&](const Term& t) { return t.where == c; });
      if (same == terms_.end() || (terms_.size() > 1 && !std::isinf(same->value)))
        return fail("the probabilities are masked in another way than the scores");
      same->value = -std::numeric_limits<double>::infinity();
    }
    Visible all;
    for (const Term& t : terms_) {
      all.band = intersection(all.band, t.visible.band);
      all.conditions.insert(all.conditions.end(), t.visible.conditions.begin(),
                            t.visible.conditions.end());
    }
    bool every_row = all.conditions.empty() && sees_everywhere(all.band, out_.queries, out_.keys);
    for (Term& t : terms_) {
      if (!std::isinf(t.value) && !every_row) {
        if (!t.added)
          return fail(
              fmt::format("a row whose keys are all masked by {} would become 0; -inf "
                          "masks so",
                          t.value));
        out_.biases.push_back({t.added, t.factor, t.scores});
        continue;
      }
      out_.band = intersection(out_.band, t.visible.band);
      for (Condition& c : t.visible.conditions) out_.masks.push_back({std::move(c), t.scores});
    }
    return settle_slopes();
  }

  // Distances count from the query's own place; those without |…| can be that where no key behind
  // it is seen.
  bool settle_slopes() {
    if (!out_.slopes) return true;
    const Slopes& s = slopes_->slopes;
    auto own = static_cast<double>(out_.keys - out_.queries);
    bool causal = static_cast<double>(out_.band.high) <= own;
    if (s.absolute ? s.offset == -own : causal) {
      out_.slopes_factor = s.absolute ? -s.factor : s.factor;
    } else {
      out_.slopes = {};
      out_.biases.push_back(slopes_->bias);
    }
    return true;
  }

  struct Term {
    Visible visible;
    Shape scores;
    double value = 0;
    Value added;  // what is added, null for a where
    double factor = 1;
    Chosen where = {};  // of a where: where the scores are kept
  };
  struct Sloped {
    Slopes slopes;
    AddedBias bias;
  };

  Graph& graph_;
  const std::unordered_set<const Op*>& dead_;
  AttentionPattern out_;
  std::unordered_set<const Op*> inside_;
  std::vector<Term> terms_;
  std::vector<Chosen> cleared_;  // conditions without which probabilities are made 0
  std::optional<Sloped> slopes_;
  std::string why_;
};

}  // namespace

std::unordered_set<const Op*> dead_ops(const Graph& graph) {
  std::unordered_set<const Op*> dead;
  std::unordered_set<Value, ValueHash> outputs;
  for (const GraphOutput& o : graph.outputs()) outputs.insert(o.value);
  for (const Op* op = graph.back(); op != nullptr; op = op->prev()) {
    bool live = false;
    for (size_t i = 0; i < op->num_results() && !live; ++i) {
      Value v = op->result(i);
      live = outputs.contains(v) || (!v.name().empty() && is_spoken_of(graph, v.name()));
      for (const Use& use : v.uses()) live = live || !dead.contains(use.op);
    }
    if (!live) dead.insert(op);
  }
  return dead;
}

bool is_weight(Value v) {
  while (v.op() != nullptr && v.op()->def().kind == OpKind::View) v = v.op()->operand(0);
  return v.op() == nullptr && v.graph().module().find_state(v.name()) != nullptr;
}

bool may_be_attention(const Op& op) {
  std::optional<Softmax> softmax = softmax_ending(op);
  if (!softmax) return false;
  Value scores = softmax->scores;
  if (comes_from_product(scores) && (softmax->product != nullptr || leads_to_product(op.result())))
    return true;
  return comes_from_product(scores, scores.type().elements(), true) &&
         (softmax->product != nullptr || leads_to_product(op.result(), true));
}

std::optional<AttentionPattern> find_attention(Op& op, const std::unordered_set<const Op*>& dead,
                                               std::string& why) {
  return Reader(op, dead).run(why);
}

}  // namespace sinter::detail
