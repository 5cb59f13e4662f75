#include <sinter/ir/numeric.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops.h>
#include <sinter/passes/autodiff.h>
#include <sinter/runtime/reference.h>
#include <sinter/tests/fuzz/lib/callee.h>
#include <sinter/tests/fuzz/lib/fit.h>
#include <sinter/tests/fuzz/lib/generate.h>
#include <sinter/tests/fuzz/lib/rng.h>
#include <sinter/tests/ops/samples.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace sinter::test {
namespace {

std::map<std::string, int64_t>& op_counts() {
  static std::map<std::string, int64_t> counts;
  return counts;
}

// The attributes; those that name a graph name one that is made here, of the gradient of `callee`.
std::shared_ptr<const void> with_gradient_of(const OpDef& def,
                                             const std::shared_ptr<const void>& attrs,
                                             const Graph& callee) {
  if (def.callee_attrs.empty()) return attrs;
  std::string name = add_gradient_of(callee).name();
  std::shared_ptr<void> changed = def.schema.make();
  for (size_t k = 0; k < def.schema.items.size(); ++k) {
    const std::string_view item = def.schema.items[k].name;
    bool names =
        std::find(def.callee_attrs.begin(), def.callee_attrs.end(), item) != def.callee_attrs.end();
    def.schema.items[k].set(changed.get(), k,
                            names ? AttrValue(name) : def.schema.get(attrs.get(), k));
  }
  return changed;
}

// A value of the growing graph.
struct Known {
  Value value;
  ReferenceTensor wide, narrow;  // by the f64 reference, and in its own types
  bool exact = true;             // narrow is wide, and so is all that it was made from
  double low = 0, high = 0;
};

// The largest of some numbers, NaN where one is: std::max passes over it.
double larger(double most, double x) {
  return x <= most ? most : x;
}

double noise_of(const ReferenceTensor& narrow, const ReferenceTensor& wide) {
  double noise = 0;
  for (size_t i = 0; i < wide.data.size() && !std::isnan(noise); ++i)
    noise = larger(noise, std::abs(narrow.data[i].f - wide.data[i].f));
  return noise;
}

double magnitude_of(const ReferenceTensor& t) {
  double most = 0;
  for (size_t i = 0; i < t.data.size() && !std::isnan(most); ++i)
    most = larger(most, std::abs(t.data[i].f));
  return most;
}

// The ops to draw from, by kind: kinds are drawn first, so that the many pointwise ops leave room.
struct Catalogue {
  struct Entry {
    const OpDef* def;
    std::vector<Sample> samples;
    bool slope_is_zero = false;  // by every float operand
  };
  std::map<OpKind, std::vector<Entry>> kinds;
  std::vector<OpKind> weighted;

  static const Catalogue& get() {
    static const Catalogue catalogue;
    return catalogue;
  }

 private:
  static int weight(OpKind kind) {
    switch (kind) {
      case OpKind::Pointwise:
        return 8;
      case OpKind::View:
      case OpKind::Composite:
        return 6;
      case OpKind::Reduce:
      case OpKind::Contract:
        return 4;
      default:
        return 1;
    }
  }
  Catalogue() {
    std::set<const OpDef*> original;
    for (const OpDef* def : OpRegistry::get().all()) original.insert(def);
    for (const OpDef* def : all_ops()) {
      Entry entry{def, def->samples(), false};
      // What TF32 loses differs by device, and no other executor says how much it may be.
      std::erase_if(entry.samples, [](const Sample& s) {
        auto compute = s.attrs.find("compute");
        return compute != s.attrs.end() && same(compute->second, AttrValue(std::string("tf32")));
      });
      if (def->derivative) {
        entry.slope_is_zero = true;
        for (size_t i = 0; i < def->operands.size(); ++i)
          if (def->derivative(i)) entry.slope_is_zero = false;
      }
      // The ops themselves weigh twice as much as the derivatives made from them.
      auto& list = kinds[def->kind];
      list.push_back(entry);
      if (original.contains(def)) list.push_back(entry);
      // A loop or a call is what its graph makes of it: as many ops as there are variants.
      for (int i = 0; i < 12 && def->has_callee && def->expand; ++i) list.push_back(entry);
    }
    for (const auto& [kind, entries] : kinds)
      for (int i = 0; i < weight(kind); ++i) weighted.push_back(kind);
  }
};

class Builder {
 public:
  Builder(uint64_t seed, uint64_t attempt, const GeneratorOptions& options)
      : rng_(seed * 1000003 + attempt), options_(options) {
    specimen_.seed = seed;
    specimen_.module = std::make_unique<Module>();
    graph_ = &specimen_.module->add_graph("g");
    const char* targets[] = {"sm_90a", "sm_90a", "sm_90a", "host", "sm_80", "sm_120"};
    specimen_.module->target = *Target::named(targets[rng_.below(6)]);
    if (rng_.chance(0.04)) options_.most_elements *= 8;
    std::vector<int64_t> all = {1,  2,  3,  4,  5,  6,  7,  8,  9,   12,  15,  16,
                                17, 31, 32, 33, 40, 63, 64, 65, 100, 129, 257, 300};
    // Rows of many strips, where values may be so large.
    for (int64_t e : {513, 1000, 1025, 2048, 4099})
      if (2 * e <= options_.most_elements) all.push_back(e);
    for (int i = 0; i < 3; ++i) extents_.push_back(rng_.pick(all));
    extents_.push_back(rng_.between(1, 5));
    if (rng_.chance(0.06)) extents_.push_back(0);
    if (rng_.chance(0.3)) extents_.push_back(1);
    const DType types[] = {DType::F32,  DType::F32,  DType::F32, DType::F32,
                           DType::BF16, DType::BF16, DType::F16, DType::F64};
    main_type_ = types[rng_.below(8)];
  }

  // False when what came out is of no use.
  bool build() {
    for (int64_t i = rng_.between(1, 3); i > 0; --i) new_input({main_type_, random_shape()}, -2, 2);
    bool segments = rng_.chance(0.4);
    int64_t ops = rng_.between(2, options_.most_ops);
    for (int64_t i = 0, misses = 0; i < ops && misses < 60;) {
      if (segments && rng_.chance(0.3))
        graph_->set_current_segment(rng_.chance(0.3) ? "" : fmt::format("s{}", rng_.below(2)));
      try_op() ? ++i : ++misses;
    }
    graph_->set_current_segment("");
    add_outputs();
    if (graph_->outputs().empty()) return false;
    if (rng_.chance(0.7)) {
      add_gradients();
      if (rng_.chance(0.12)) add_gradients();
    }
    if (rng_.chance(0.15)) add_tangents();
    prune();
    return is_stable();
  }

  Specimen take() {
    for (const auto& g : specimen_.module->graphs())
      for (Op& op : *g) ++op_counts()[std::string(op.name())];
    return std::move(specimen_);
  }

 private:
  Shape random_shape() {
    Shape shape(static_cast<size_t>(rng_.below(5)));
    for (int64_t& e : shape) e = rng_.pick(extents_);
    while (num_elements(shape) > options_.most_elements) shape.pop_back();
    return shape;
  }

  void know(Value v, ReferenceTensor wide, ReferenceTensor narrow, bool exact) {
    Known known{v, std::move(wide), std::move(narrow), exact, 0, 0};
    if (is_float(v.dtype())) {
      for (size_t i = 0; i < known.wide.data.size(); ++i) {
        double x = known.wide.data[i].f;
        known.low = i == 0 ? x : std::min(known.low, x);
        known.high = i == 0 ? x : std::max(known.high, x);
        known.exact = known.exact && x == known.narrow.data[i].f;
      }
    }
    known_.push_back(std::move(known));
  }

  // An input with values in low..high, by a multiplication and an addition where the fill rule's
  // ±1.5 is not it. Gives the place in `known_`.
  size_t new_input(const TensorType& type, double low, double high) {
    Filling filling{rng_.below(97), 0, false};
    if (!is_float(type.dtype)) filling.modulus = std::max<int64_t>(1, static_cast<int64_t>(high));
    std::string name = fmt::format("x{}", graph_->inputs().size());
    specimen_.fillings[name] = filling;
    Value v = graph_->add_input(name, type);
    Tensor t = filling.tensor(name, type);
    DType wide = is_float(type.dtype) ? DType::F64 : type.dtype;
    know(v, to_cells(t, wide), to_cells(t, type.dtype), true);
    if (!is_float(type.dtype) || (low <= -1.5 && high >= 1.5 && rng_.chance(0.8)))
      return known_.size() - 1;
    // Dyadic, so that exact stays exact.
    double scale = std::max(std::floor((high - low) / 3.1 * 16), 1.0) / 16;
    double middle = std::round((high + low) / 2 * 16) / 16;
    if (rng_.chance(0.3) && is_float(type.dtype)) scale *= 0.9731;
    Value scaled = mul(v, full_like(v, scale));
    Value moved = add(scaled, full_like(v, middle));
    know_ops_from(scaled.op()->prev());
    return place_of(moved);
  }

  size_t place_of(Value v) const {
    for (size_t i = known_.size(); i-- > 0;)
      if (known_[i].value == v) return i;
    SINTER_CHECK(false, "an unknown value");
    return 0;
  }

  // Runs the ops from `op` on, which were made by hand.
  void know_ops_from(Op* op) {
    for (; op != nullptr; op = op->next()) {
      std::vector<TensorType> types;
      std::vector<size_t> from;
      for (Value v : op->operands()) {
        from.push_back(place_of(v));
        types.push_back(v.type());
      }
      Scratch scratch(op->def(), op->raw_attrs(), {types.begin(), types.end()});
      finish(*op, scratch, from);
    }
  }

  // One op in a graph of its own.
  struct Scratch {
    Module module;
    Graph* graph = nullptr;
    Op* op = nullptr;
    uint64_t variant = 0;  // of the graph called

    // Throws Error where the op's type rule refuses.
    Scratch(const OpDef& def, const std::shared_ptr<const void>& attrs,
            const std::vector<std::optional<TensorType>>& operands, uint64_t callee_variant = 0)
        : variant(callee_variant) {
      OpInit init;
      if (def.has_callee) {
        std::vector<TensorType> types;
        for (const auto& t : operands) types.push_back(*t);
        Graph& callee = add_moving_callee(module, types, "callee", variant);
        init.callee = callee.name();
        init.attrs = with_gradient_of(def, attrs, callee);
      }
      graph = &module.add_graph("g");
      for (const auto& type : operands)
        init.operands.push_back(
            type ? graph->add_input(fmt::format("x{}", graph->inputs().size()), *type) : Value());
      if (!init.attrs) init.attrs = attrs;
      op = &graph->create(def, std::move(init));
      for (size_t i = 0; i < op->num_results(); ++i) graph->add_output("", op->result(i));
    }
  };

  struct Outcome {
    std::vector<ReferenceTensor> wide, narrow;
    bool exact_operands = true;
  };

  // Throws Error for an index out of range.
  Outcome evaluate(const Scratch& scratch, const std::vector<size_t>& from) const {
    Outcome outcome;
    std::vector<ReferenceTensor> wide, narrow;
    for (size_t i : from) {
      wide.push_back(known_[i].wide);
      narrow.push_back(known_[i].narrow);
      outcome.exact_operands = outcome.exact_operands && known_[i].exact;
    }
    outcome.wide = Reference({.f64 = true}).run_cells(*scratch.graph, wide);
    outcome.narrow = Reference().run_cells(*scratch.graph, narrow);
    return outcome;
  }

  void finish(const Op& op, const Scratch& scratch, const std::vector<size_t>& from) {
    Outcome outcome = evaluate(scratch, from);
    for (size_t i = 0; i < op.num_results(); ++i)
      know(op.result(i), std::move(outcome.wide[i]), std::move(outcome.narrow[i]),
           outcome.exact_operands);
  }

  // Whether the op may jump between neighbouring operands, or its slope may.
  static bool may_jump(const Catalogue::Entry& entry, const Sample& sample, const Op& op) {
    bool float_operand = false, float_result = false;
    for (Value v : op.operands()) float_operand = float_operand || (v && is_float(v.dtype()));
    if (!float_operand) return false;
    for (size_t i = 0; i < op.num_results(); ++i) {
      bool is = is_float(op.result(i).dtype());
      float_result = float_result || is;
      // A count beside float results (cross_entropy) does not depend on them.
      if (!is && op.num_results() == 1) return true;
    }
    const OpDef& def = *entry.def;
    bool refuses = !def.vjp && def.vjp_refusal != kThroughExpansion.reason;
    return !float_result || sample.gap > 0 || entry.slope_is_zero || (refuses && !def.has_callee);
  }

  bool try_op() {
    const Catalogue& catalogue = Catalogue::get();
    const auto& entry = rng_.pick(catalogue.kinds.at(rng_.pick(catalogue.weighted)));
    const Sample& sample = rng_.pick(entry.samples);
    std::optional<Fitting> fitting;
    size_t anchor = sample.operands.size(), anchored = 0;
    if (!sample.operands.empty() && rng_.chance(0.75)) {
      anchor = static_cast<size_t>(rng_.below(static_cast<int64_t>(sample.operands.size())));
      if (std::find(sample.absent.begin(), sample.absent.end(), anchor) != sample.absent.end())
        return false;
      anchored = pick_known(is_float(sample.operands[anchor].dtype));
      fitting = fit(rng_, *entry.def, sample, anchor, known_[anchored].value.type(), extents_);
    } else {
      fitting = fit(rng_, *entry.def, sample, extents_);
    }
    if (!fitting) return false;
    for (const auto& type : fitting->operands)
      if (type && type->elements() > options_.most_elements) return false;
    try {
      uint64_t variant = entry.def->has_callee ? rng_.next() : 0;
      Scratch scratch(*entry.def, fitting->attrs, fitting->operands, variant);
      for (size_t i = 0; i < scratch.op->num_results(); ++i)
        if (scratch.op->result(i).type().elements() > options_.most_elements) return false;
      bool exact = may_jump(entry, sample, *scratch.op);
      if (anchor < sample.operands.size() && exact && !known_[anchored].exact) return false;
      return add_op(entry, sample, *fitting, scratch, anchor, anchored, exact);
    } catch (const Error&) {
      return false;  // its type rule, or an index out of range
    }
  }

  size_t pick_known(bool want_float) {
    size_t best = 0;
    for (int i = 0; i < 6; ++i) {
      best = static_cast<size_t>(rng_.below(static_cast<int64_t>(known_.size())));
      Value v = known_[best].value;
      if (is_float(v.dtype()) != want_float) continue;
      if (v.uses().empty() || rng_.chance(0.4)) break;
    }
    return best;
  }

  bool add_op(const Catalogue::Entry& entry, const Sample& sample, const Fitting& fitting,
              const Scratch& scratch, size_t anchor, size_t anchored, bool exact) {
    // What is made for the op goes away again where the op is not taken.
    size_t known_before = known_.size();
    std::vector<size_t> from;
    OpInit init;
    bool taken = false;
    try {
      for (size_t i = 0; i < fitting.operands.size(); ++i) {
        if (!fitting.operands[i]) {
          init.operands.emplace_back();
          continue;
        }
        size_t at = i == anchor ? anchored
                                : operand(entry, std::min(i, entry.def->operands.size() - 1),
                                          *fitting.operands[i], sample, exact);
        from.push_back(at);
        init.operands.push_back(known_[at].value);
      }
      Outcome outcome = evaluate(scratch, from);
      if (is_decent(outcome) && bears_any_order(entry, scratch, from) &&
          (exact || is_smooth(scratch, from, outcome))) {
        init.attrs = fitting.attrs;
        init.loc = SourceLocation{nullptr, 0, 0};
        if (entry.def->has_callee) {
          std::vector<TensorType> types;
          for (const auto& t : fitting.operands) types.push_back(*t);
          Module& module = *specimen_.module;
          Graph& callee = add_moving_callee(
              module, types, module.unique_graph_name(fmt::format("callee_{}", specimen_.seed)),
              scratch.variant);
          init.callee = callee.name();
          init.attrs = with_gradient_of(*entry.def, fitting.attrs, callee);
        }
        static const auto file = std::make_shared<const std::string>("random");
        init.loc = SourceLocation{file, static_cast<int>(graph_->size()) + 1, 0};
        Op& op = graph_->create(*entry.def, std::move(init));
        if (exact) pin(op);
        for (size_t i = 0; i < op.num_results(); ++i)
          know(op.result(i), std::move(outcome.wide[i]), std::move(outcome.narrow[i]),
               outcome.exact_operands);
        taken = true;
      }
    } catch (const Error&) {
    }
    if (!taken) known_.resize(known_before);  // the unused ops are pruned
    return taken;
  }

  // A value of this type for an operand: one that is there, one made from it, or a new input.
  size_t operand(const Catalogue::Entry& entry, size_t i, const TensorType& type,
                 const Sample& sample, bool exact) {
    std::string_view role = entry.def->operands[i].name;
    bool stream = (role == "seed" && type == TensorType{DType::U32, {2}}) ||
                  (role == "step" && type == TensorType{DType::U32, {}}) ||
                  (role == "offset" && type == TensorType{DType::I64, {}});
    if (stream) return stream_input(std::string(role), type);
    bool floats = is_float(type.dtype);
    double low = floats ? sample.low : static_cast<double>(sample.integer_low);
    double high = floats ? sample.high : static_cast<double>(sample.integer_high);
    auto fits = [&](const Known& k) {
      if (exact && !k.exact) return false;
      return !floats || (k.low >= low - 0.5 * (low <= -1) && k.high <= high + 0.5);
    };
    if (floats ? rng_.chance(0.75) : rng_.chance(0.3)) {
      std::vector<size_t> same, related;
      for (size_t n = 0; n < known_.size(); ++n) {
        const Known& k = known_[n];
        if (!fits(k)) continue;
        if (k.value.type() == type)
          same.push_back(n);
        else if (is_float(k.value.dtype()) && floats && can_become(k.value.shape(), type.shape))
          related.push_back(n);
      }
      if (!same.empty() && (related.empty() || rng_.chance(0.7))) return rng_.pick(same);
      if (!related.empty()) return remade(rng_.pick(related), type);
    }
    return new_input(type, low, high);
  }

  static bool can_become(const Shape& from, const Shape& to) {
    if (num_elements(from) == num_elements(to)) return true;
    if (from.size() > to.size()) return false;
    for (size_t i = 0; i < from.size(); ++i)
      if (int64_t e = from[i]; e != 1 && e != to[to.size() - from.size() + i]) return false;
    return true;
  }

  size_t remade(size_t from, const TensorType& type) {
    Value v = known_[from].value;
    Op* last = graph_->back();
    Value w = cast(v, type.dtype);
    w = num_elements(v.shape()) == num_elements(type.shape) ? reshape(w, type.shape)
                                                            : broadcast_to(w, type.shape);
    know_ops_from(last != nullptr ? last->next() : graph_->front());
    return place_of(w);
  }

  size_t stream_input(const std::string& name, const TensorType& type) {
    for (size_t i = 0; i < known_.size(); ++i)
      if (known_[i].value.op() == nullptr && known_[i].value.name() == name) return i;
    Filling filling{0, 0, true};
    specimen_.fillings[name] = filling;
    Value v = graph_->find_input(name);
    if (!v) v = graph_->add_input(name, type);
    Tensor t = filling.tensor(name, type);
    know(v, to_cells(t, type.dtype), to_cells(t, type.dtype), true);
    return known_.size() - 1;
  }

  // Finite, of a size that later ops and gradients can bear, and not all rounding.
  static bool is_decent(const Outcome& outcome) {
    for (size_t i = 0; i < outcome.wide.size(); ++i) {
      const ReferenceTensor &wide = outcome.wide[i], &narrow = outcome.narrow[i];
      if (!is_float(narrow.type.dtype)) {
        for (size_t k = 0; k < wide.data.size(); ++k)
          if (wide.data[k].i != narrow.data[k].i || std::abs(wide.data[k].i) > (1 << 20))
            return false;
        continue;
      }
      double scale = magnitude_of(wide), noise = noise_of(narrow, wide);
      if (!(scale <= 64) || !(noise <= 4e-3 * std::max(scale, 0.05) + 1e-3)) return false;
    }
    return true;
  }

  // A product that a zero makes 0 is NaN where another part of it overflowed before.
  bool bears_any_order(const Catalogue::Entry& entry, const Scratch& scratch,
                       const std::vector<size_t>& from) const {
    if (entry.def->kind != OpKind::Reduce) return true;
    std::vector<ReferenceTensor> nonzero;
    for (size_t i : from) {
      nonzero.push_back(known_[i].wide);
      if (!is_float(known_[i].value.dtype())) continue;
      for (Cell& c : nonzero.back().data)
        if (c.f == 0) c.f = 1;
    }
    auto results = Reference({.f64 = true}).run_cells(*scratch.graph, nonzero);
    for (size_t i = 0; i < results.size(); ++i)
      if (is_float(scratch.op->result(i).dtype()) && !(magnitude_of(results[i]) < 1e30))
        return false;
    return true;
  }

  // Whether operands that are off by their rounding, and some more, give nearly the same results.
  bool is_smooth(const Scratch& scratch, const std::vector<size_t>& from, const Outcome& outcome) {
    if (outcome.exact_operands) return true;
    std::vector<ReferenceTensor> moved;
    double step = 0;
    for (size_t i : from) {
      ReferenceTensor t = known_[i].wide;
      if (is_float(known_[i].value.dtype())) {
        double delta = 4 * noise_of(known_[i].narrow, known_[i].wide) + 1e-6;
        step = std::max(step, delta);
        for (Cell& c : t.data) c.f += rng_.chance(0.5) ? delta : -delta;
      }
      moved.push_back(std::move(t));
    }
    auto results = Reference({.f64 = true}).run_cells(*scratch.graph, moved);
    for (size_t i = 0; i < results.size(); ++i) {
      bool floats = is_float(scratch.op->result(i).dtype());
      double sum = 1;
      for (size_t k = 0; k < results[i].data.size(); ++k) {
        if (!floats && results[i].data[k].i != outcome.wide[i].data[k].i) return false;
        sum = std::max(sum, std::abs(outcome.wide[i].data[k].f));
      }
      if (floats && !(noise_of(results[i], outcome.wide[i]) <= 100 * step * sum)) return false;
    }
    return true;
  }

  // Inputs that exact ops rest on stay as they are when others are moved a little.
  void pin(const Op& op) {
    std::vector<const Op*> todo{&op};
    while (!todo.empty()) {
      const Op* next = todo.back();
      todo.pop_back();
      for (Value v : next->operands()) {
        if (!v || !pinned_.insert(v.id()).second) continue;
        if (v.op() != nullptr) todo.push_back(v.op());
      }
    }
  }

  void add_outputs() {
    std::vector<Value> ends, inner;
    for (const Known& k : known_) {
      if (k.value.op() == nullptr) continue;
      (k.value.uses().empty() ? ends : inner).push_back(k.value);
    }
    while (ends.size() > 5)
      ends.erase(ends.begin() + rng_.below(static_cast<int64_t>(ends.size())));
    for (int i = 0; i < 2 && !inner.empty(); ++i)
      if (rng_.chance(0.5)) ends.push_back(rng_.pick(inner));
    for (Value v : ends)
      if (!graph_->is_output(v))
        graph_->add_output(fmt::format("y{}", graph_->outputs().size()), v);
  }

  // Appends the gradients of a weighted sum of float outputs by some inputs as outputs.
  void add_gradients() {
    std::vector<Value> wrt;
    for (Value v : graph_->inputs())
      if (is_float(v.dtype()) && specimen_.fillings.contains(v.name()) &&
          (wrt.empty() || rng_.chance(0.5)))
        wrt.push_back(v);
    if (wrt.empty()) return;
    std::vector<Value> ys;
    for (const GraphOutput& o : graph_->outputs())
      if (is_float(o.value.dtype()) && rng_.chance(0.8)) ys.push_back(o.value);
    for (Value y : ys) {
      // One output at a time: an op without a derivative refuses those that need it.
      Filling filling{rng_.below(97), 0, false};
      std::string name = fmt::format("w{}", graph_->inputs().size());
      specimen_.fillings[name] = filling;
      Value w = graph_->add_input(name, y.type());
      try {
        Value loss = sum(cast(mul(y, w), DType::F32));
        for (Value g : gradients(*graph_, loss, wrt))
          if (g.op() != nullptr && g.op()->def().kind != OpKind::Source && !graph_->is_output(g))
            graph_->add_output(fmt::format("y{}", graph_->outputs().size()), g);
      } catch (const Error&) {
      }
      if (rng_.chance(0.5)) break;
    }
  }

  // Appends the derivative of an output along some inputs, by forward mode.
  void add_tangents() {
    std::vector<Value> of, wrt, along;
    for (const GraphOutput& o : graph_->outputs())
      if (is_float(o.value.dtype()) && (of.empty() || rng_.chance(0.3))) of.push_back(o.value);
    for (Value v : graph_->inputs())
      if (is_float(v.dtype()) && (wrt.empty() || rng_.chance(0.5))) wrt.push_back(v);
    if (of.empty() || wrt.empty()) return;
    for (Value v : wrt) {
      std::string name = fmt::format("t{}", graph_->inputs().size());
      specimen_.fillings[name] = {rng_.below(97), 0, false};
      along.push_back(graph_->add_input(name, v.type()));
    }
    try {
      for (Value t : tangents(*graph_, of, wrt, along))
        if (t.op() != nullptr && t.op()->def().kind != OpKind::Source && !graph_->is_output(t))
          graph_->add_output(fmt::format("y{}", graph_->outputs().size()), t);
    } catch (const Error&) {
      // An op without a derivative.
    }
  }

  // Away with what no output needs.
  void prune() {
    for (Op* op = graph_->back(); op != nullptr;) {
      Op* before = op->prev();
      bool used = false;
      for (size_t i = 0; i < op->num_results(); ++i)
        used = used || !op->result(i).uses().empty() || graph_->is_output(op->result(i));
      if (!used) graph_->erase(*op);
      op = before;
    }
    for (size_t i = graph_->inputs().size(); i-- > 0;) {
      Value v = graph_->inputs()[i];
      if (!v.uses().empty() || graph_->is_output(v)) continue;
      specimen_.fillings.erase(v.name());
      graph_->erase_input(i);
    }
  }

  // Whether the whole, gradients included, is finite and does not jump when its inputs move.
  bool is_stable() {
    ReferenceProgram wide(*graph_, {.f64 = true});
    std::vector<ReferenceTensor> inputs, moved;
    for (Value v : graph_->inputs()) {
      Tensor t = specimen_.fillings.at(v.name()).tensor(v.name(), v.type());
      inputs.push_back(to_cells(t, is_float(v.dtype()) ? DType::F64 : v.dtype()));
      moved.push_back(inputs.back());
      if (!is_float(v.dtype()) || pinned_.contains(v.id())) continue;
      for (Cell& c : moved.back().data) c.f += (rng_.chance(0.5) ? 1e-6 : -1e-6);
    }
    auto right = wide.run_cells(inputs), near = wide.run_cells(moved);
    auto narrow = [&] {
      std::vector<ReferenceTensor> own;
      for (Value v : graph_->inputs())
        own.push_back(
            to_cells(specimen_.fillings.at(v.name()).tensor(v.name(), v.type()), v.dtype()));
      return Reference().run_cells(*graph_, own);
    }();
    for (size_t i = 0; i < right.size(); ++i) {
      if (!is_float(right[i].type.dtype)) continue;
      double scale = magnitude_of(right[i]);
      if (!(scale <= 1e4) || !std::isfinite(magnitude_of(narrow[i]))) return false;
      if (!(noise_of(near[i], right[i]) <= 2e-3 * std::max(scale, 1e-2))) return false;
    }
    return true;
  }

  Rng rng_;
  GeneratorOptions options_;
  Specimen specimen_;
  Graph* graph_ = nullptr;
  std::vector<int64_t> extents_;
  DType main_type_ = DType::F32;
  std::vector<Known> known_;
  std::set<const void*> pinned_;
};

}  // namespace

Specimen generate(uint64_t seed, const GeneratorOptions& options) {
  for (uint64_t attempt = 0; attempt < 100; ++attempt) {
    Builder builder(seed, attempt, options);
    try {
      if (builder.build()) return builder.take();
    } catch (const Error&) {
      // An index out of range that shows in the gradient alone.
    }
  }
  throw InternalError(fmt::format("no graph comes of seed {}", seed));
}

const std::map<std::string, int64_t>& generated_ops() {
  return op_counts();
}

}  // namespace sinter::test
