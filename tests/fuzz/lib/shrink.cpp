#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>
#include <sinter/tests/fuzz/lib/shrink.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

namespace sinter::test {
namespace {

// Away with what no output needs, sub-graphs included.
void prune(Specimen& s) {
  Graph& graph = s.graph();
  for (Op* op = graph.back(); op != nullptr;) {
    Op* before = op->prev();
    bool used = false;
    for (size_t i = 0; i < op->num_results(); ++i)
      used = used || !op->result(i).uses().empty() || graph.is_output(op->result(i));
    if (!used) graph.erase(*op);
    op = before;
  }
  for (size_t i = graph.inputs().size(); i-- > 0;) {
    Value v = graph.inputs()[i];
    if (!v.uses().empty() || graph.is_output(v)) continue;
    s.fillings.erase(v.name());
    graph.erase_input(i);
  }
  std::set<std::string> called;
  for (const auto& g : s.module->graphs())
    for (Op& op : *g) called.insert(op.callee());
  for (size_t i = s.module->graphs().size(); i-- > 0;) {
    Graph& g = *s.module->graphs()[i];
    if (g.name() != "g" && !called.contains(g.name())) s.module->erase_graph(g);
  }
}

Op* op_at(const Graph& graph, size_t i) {
  Op* op = graph.front();
  while (op != nullptr && i-- > 0) op = op->next();
  return op;
}

// The graph with `from` replaced by `to` among extents, attributes included; throws Error where
// that does not fit.
Specimen with_extent(const Specimen& s, int64_t from, int64_t to) {
  Specimen out{s.seed, std::make_unique<Module>(), s.fillings};
  out.module->target = s.module->target;
  auto shape_of = [&](Shape shape) {
    std::replace(shape.begin(), shape.end(), from, to);
    return shape;
  };
  for (const auto& graph : s.module->graphs()) {
    Graph& copy = out.module->add_graph(graph->name());
    ValueMap<Value> map;
    for (Value v : graph->inputs())
      map[v] = copy.add_input(v.name(), {v.dtype(), shape_of(v.shape())});
    for (Op& op : *graph) {
      const OpDef& def = op.def();
      auto attrs = def.schema.copy(op.raw_attrs().get());
      for (size_t k = 0; k < def.schema.items.size(); ++k) {
        AttrValue value = def.schema.get(attrs.get(), k);
        if (auto* type = std::get_if<TensorType>(&value)) {
          type->shape = shape_of(type->shape);
        } else if (auto* list = std::get_if<std::vector<int64_t>>(&value)) {
          if (!def.schema.items[k].is_axis) *list = shape_of(*list);
        } else if (auto* number = std::get_if<int64_t>(&value)) {
          if (*number == from && !def.schema.items[k].is_axis) *number = to;
        }
        def.schema.items[k].set(attrs.get(), k, value);
      }
      OpInit init{std::move(attrs), {}, op.loc(), op.from(), op.segment(), op.callee()};
      for (Value v : op.operands()) init.operands.push_back(v ? map.at(v) : Value());
      Op& made = copy.create(def, std::move(init));
      for (size_t i = 0; i < op.num_results(); ++i) map[op.result(i)] = made.result(i);
    }
    for (const GraphOutput& o : graph->outputs()) copy.add_output(o.name, map.at(o.value));
  }
  return out;
}

class Shrinker {
 public:
  Shrinker(const Specimen& specimen, const Fails& fails, int trials)
      : best_(specimen.clone()), fails_(fails), trials_(trials) {}

  Specimen run() {
    for (bool smaller = true; smaller && trials_ > 0;) {
      smaller = drop_outputs();
      smaller = cut_ops() || smaller;
      smaller = bypass_ops() || smaller;
      smaller = cut_extents() || smaller;
    }
    return std::move(best_);
  }

 private:
  template <typename Edit>
  bool attempt(Edit edit) {
    if (trials_ <= 0) return false;
    try {
      Specimen next = best_.clone();
      if (!edit(next)) return false;
      prune(next);
      if (next.graph().outputs().empty()) return false;
      --trials_;
      if (!fails_(next)) return false;
      best_ = std::move(next);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  bool drop_outputs() {
    bool any = false;
    // One alone, which is the usual end.
    for (size_t i = 0; i < best_.graph().outputs().size() && best_.graph().outputs().size() > 1;
         ++i)
      if (attempt([i](Specimen& s) {
            for (size_t k = s.graph().outputs().size(); k-- > 0;)
              if (k != i) s.graph().erase_output(k);
            return true;
          }))
        return true;
    for (size_t i = best_.graph().outputs().size(); i-- > 0;)
      any = attempt([i](Specimen& s) {
              s.graph().erase_output(i);
              return true;
            }) ||
            any;
    return any;
  }

  // An op's results become inputs, later ops first: what it read goes with it.
  bool cut_ops() {
    bool any = false;
    for (size_t i = best_.graph().size(); i-- > 0;) {
      if (i >= best_.graph().size()) continue;
      any = attempt([i](Specimen& s) {
              Graph& graph = s.graph();
              Op& op = *op_at(graph, i);
              bool used = false;
              for (size_t k = 0; k < op.num_results(); ++k) {
                Value v = op.result(k);
                used = used || !v.uses().empty();
                if (v.uses().empty()) continue;
                std::string name;
                for (size_t n = 0; name.empty() || graph.find_input(name); ++n)
                  name = fmt::format("c{}", n);
                bool floats = is_float(v.dtype());
                s.fillings[name] = {static_cast<int64_t>(i), floats ? 0 : 2, false};
                v.replace_all_uses_with(graph.add_input(name, v.type()));
              }
              return used;
            }) ||
            any;
    }
    return any;
  }

  // An op's result becomes an operand of its type.
  bool bypass_ops() {
    bool any = false;
    for (size_t i = best_.graph().size(); i-- > 0;)
      for (size_t k = 0; i < best_.graph().size() && k < op_at(best_.graph(), i)->operands().size();
           ++k)
        if (attempt([i, k](Specimen& s) {
              Op& op = *op_at(s.graph(), i);
              Value v = op.operand(k);
              if (op.num_results() != 1 || !v || v.type() != op.result().type()) return false;
              op.result().replace_all_uses_with(v);
              return true;
            })) {
          any = true;
          break;
        }
    return any;
  }

  bool cut_extents() {
    std::set<int64_t> extents;
    for (Value v : best_.graph().inputs()) extents.insert(v.shape().begin(), v.shape().end());
    for (Op& op : best_.graph())
      for (size_t i = 0; i < op.num_results(); ++i)
        extents.insert(op.result(i).shape().begin(), op.result(i).shape().end());
    bool any = false;
    for (auto extent = extents.rbegin(); extent != extents.rend(); ++extent)
      for (int64_t to : {int64_t{1}, int64_t{2}, *extent / 2, *extent - 1}) {
        if (to < 1 || to >= *extent) continue;
        int64_t from = *extent;
        if (attempt([from, to](Specimen& s) {
              s = with_extent(s, from, to);
              return true;
            })) {
          any = true;
          break;
        }
      }
    return any;
  }

  Specimen best_;
  const Fails& fails_;
  int trials_;
};

std::string write(const Specimen& s, const std::string& head, const std::string& stem,
                  const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::string path = (folder / fmt::format("{}_{}.sir", stem, s.seed)).string();
  std::ofstream out(path);
  out << head << print(*s.module, {.locations = true});
  return path;
}

// A graph that is cut down to what is not a number, or not one in f32, says nothing of its numbers.
bool is_finite(const Specimen& s) {
  for (const Tensor& t : right_of(s).wide)
    for (int64_t k = 0; k < t.size(); ++k)
      if (!std::isfinite(static_cast<float>(t.at(k)))) return false;
  return true;
}

std::string disable_flag(const Setting& setting) {
  std::string text;
  for (const std::string& pass : setting.disabled) text += " --disable=" + pass;
  return text;
}

}  // namespace

Specimen shrink(const Specimen& specimen, const Fails& fails, int trials) {
  return Shrinker(specimen, fails, trials).run();
}

std::string report_settings(const Specimen& specimen, const Failure& failure,
                            std::span<const Setting> settings,
                            const std::filesystem::path& folder) {
  // The first setting, and the one that failed.
  std::vector<Setting> two{settings[0]};
  for (const Setting& s : settings)
    if (s.name == failure.setting && s.name != two[0].name) two.push_back(s);
  std::optional<Failure> last = failure;
  bool numbers = failure.kind != Failure::Throws && is_finite(specimen);
  Specimen small = shrink(specimen, [&](const Specimen& s) {
    if (numbers && !is_finite(s)) return false;
    auto found = compare_settings(s, two).failure;
    if (!found || found->kind != failure.kind || found->setting != failure.setting) return false;
    last = std::move(found);
    return true;
  });
  // Fewer passes off, where that is enough.
  Setting& culprit = two.back();
  for (size_t i = culprit.disabled.size(); culprit.disabled.size() > 1 && i-- > 0;) {
    Setting fewer = culprit;
    fewer.disabled.erase(fewer.disabled.begin() + static_cast<int64_t>(i));
    std::vector<Setting> trial{two[0], fewer};
    auto found = compare_settings(small, trial).failure;
    if (found && found->kind == failure.kind) culprit = std::move(fewer);
  }
  std::string command = fmt::format(
      "sinter-run FILE --device=interpreter --target={}{}",
      culprit.target.empty() ? small.module->target.arch : culprit.target, small.flags());
  std::string head = fmt::format("// seed {}: {} {}\n// {}\n", specimen.seed, failure.setting,
                                 to_string(failure.kind), last->what);
  if (last->what != failure.what) head += fmt::format("// at first: {}\n", failure.what);
  if (failure.kind == Failure::Bits)
    head += fmt::format("// {0} --format=hex\n// {0} --format=hex{1}\n", command,
                        disable_flag(culprit));
  else
    head += fmt::format("// {}{} --compare=reference\n", command, disable_flag(culprit));
  std::replace(head.begin(), head.end(), '\t', ' ');
  std::string path = write(small, head, "interpreter", folder);
  return fmt::format("{}shrunk from {} ops to {}: {}\n{}", head, specimen.graph().size(),
                     small.graph().size(), path, print(*small.module));
}

std::string report_device(const Specimen& specimen, const Failure& failure, DeviceKind device,
                          const std::filesystem::path& folder, const std::string& arch) {
  std::optional<Failure> last = failure;
  bool numbers = failure.kind != Failure::Throws && is_finite(specimen);
  Specimen small = shrink(
      specimen,
      [&](const Specimen& s) {
        if (numbers && !is_finite(s)) return false;
        auto found = compare_on(device, {&s, 1}, arch)[0].failure;
        if (!found || found->kind != failure.kind) return false;
        last = std::move(found);
        return true;
      },
      device == DeviceKind::Interpreter && arch.empty() ? 600 : 120);
  std::string head = fmt::format(
      "// seed {}: {} {}\n// {}\n// sinter-run FILE --device={}{} --compare=reference\n",
      specimen.seed, to_string(device), to_string(failure.kind), last->what, to_string(device),
      small.flags());
  if (!arch.empty()) head += fmt::format("// sinter-opt FILE --emit=cubin --target={}\n", arch);
  std::string path = write(small, head, std::string(to_string(device)), folder);
  return fmt::format("{}shrunk from {} ops to {}: {}\n{}", head, specimen.graph().size(),
                     small.graph().size(), path, print(*small.module));
}

}  // namespace sinter::test
