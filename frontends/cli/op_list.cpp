#include <sinter/frontends/cli/op_list.h>

#include <sinter/ir/op_def.h>
#include <sinter/passes/autodiff.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sinter::cli {
namespace {

using Json = nlohmann::ordered_json;

// A graph of its own whose one op is `def` as the sample has it; null where the op refuses that.
struct Instance {
  Module module;
  Graph* graph = nullptr;
  Op* op = nullptr;
};
std::unique_ptr<Instance> instance(const OpDef& def, const Sample& sample) {
  auto made = std::make_unique<Instance>();
  std::shared_ptr<void> attrs = def.schema.make();
  for (size_t k = 0; k < def.schema.items.size(); ++k) {
    const AttrSchema::Item& item = def.schema.items[k];
    if (item.is_result_type && sample.result) item.set(attrs.get(), k, *sample.result);
    if (auto it = sample.attrs.find(item.name); it != sample.attrs.end())
      item.set(attrs.get(), k, it->second);
  }
  OpInit init;
  init.attrs = attrs;
  if (def.has_callee) {
    Graph& callee = made->module.add_graph("callee");
    for (const TensorType& type : sample.operands)
      callee.add_output("", callee.add_input(fmt::format("a{}", callee.inputs().size()), type));
    init.callee = callee.name();
  }
  made->graph = &made->module.add_graph("g");
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    bool absent = std::find(sample.absent.begin(), sample.absent.end(), i) != sample.absent.end();
    init.operands.push_back(
        absent ? Value() : made->graph->add_input(fmt::format("x{}", i), sample.operands[i]));
  }
  try {
    made->op = &made->graph->create(def, std::move(init));
  } catch (const Error&) {
    return nullptr;
  }
  return made;
}

// The dtypes that the first operand (the result of an op without any) can have.
std::vector<std::string> dtypes(const OpDef& def) {
  std::vector<std::string> names;
  for (DType type : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64,
                     DType::U32, DType::Bool}) {
    bool any = false;
    for (Sample sample : def.samples()) {
      if (any) break;
      DType from = !sample.operands.empty() ? sample.operands[0].dtype
                   : sample.result          ? sample.result->dtype
                                            : type;
      auto change = [&](TensorType& t) {
        if (t.dtype == from) t.dtype = type;
      };
      for (TensorType& t : sample.operands) change(t);
      bool own = from == type;
      if (sample.result) change(*sample.result);
      any = instance(def, sample) != nullptr;
      // An op may take this dtype beside others that stay, such as a parameter in f32.
      if (!any && !own && !sample.operands.empty()) {
        Sample first = sample;
        for (size_t i = 1; i < first.operands.size(); ++i)
          if (first.operands[i].dtype == type) first.operands[i].dtype = from;
        any = instance(def, first) != nullptr;
      }
    }
    if (any) names.emplace_back(to_string(type));
  }
  return names;
}

std::string vjp_text(const OpDef& def) {
  if (def.vjp) return def.kind == OpKind::Pointwise ? "its partials" : "rule";
  if (def.vjp_refusal == kThroughExpansion.reason) return "its expansion";
  return "no: " + def.vjp_refusal;
}
std::string jvp_text(const OpDef& def) {
  if (def.jvp_answer) switch (*def.jvp_answer) {
      case Jvp::through_expand:
        return "its expansion";
      case Jvp::through_vjp:
        return "its VJP, transposed";
      case Jvp::linear:
        return "itself, being linear";
      case Jvp::none:
        return "zero";
    }
  if (def.jvp) return def.kind == OpKind::Pointwise ? "its partials" : "rule";
  return "no: " + def.jvp_refusal;
}
std::string batch_text(const OpDef& def) {
  if (def.batch_answer) switch (*def.batch_answer) {
      case Batch::shift_axes:
      case Batch::shift_reduced_axes:
        return "axes moved by one";
      case Batch::through_expand:
        return "its expansion";
      case Batch::unroll:
        return "one by one";
    }
  return def.batch ? "rule" : "no: " + def.batch_refusal;
}

// Whether its gradients have gradients: "yes", "no", or "-" where there is nothing to
// differentiate.
std::string second_order(const OpDef& def) {
  for (const Sample& sample : def.samples()) {
    auto made = instance(def, sample);
    if (!made) continue;
    Graph& graph = *made->graph;
    std::vector<Value> wrt, of;
    for (Value v : graph.inputs())
      if (is_float(v.dtype())) wrt.push_back(v);
    for (size_t i = 0; i < made->op->num_results(); ++i)
      if (is_float(made->op->result(i).dtype())) of.push_back(made->op->result(i));
    if (wrt.empty() || of.empty()) continue;
    auto like = [&](const std::vector<Value>& values) {
      std::vector<Value> inputs;
      for (Value v : values)
        inputs.push_back(graph.add_input(fmt::format("w{}", graph.inputs().size()), v.type()));
      return inputs;
    };
    try {
      std::vector<Value> first = vjp(graph, of, like(of), wrt);
      vjp(graph, first, like(first), wrt);
      return "yes";
    } catch (const Error&) {
      return "no";
    }
  }
  return "-";
}

std::string operand_text(const OperandSpec& spec) {
  std::string name(spec.name);
  if (spec.kind == OperandSpec::Optional) return "[" + name + "]";
  return spec.kind == OperandSpec::Variadic ? name + "…" : name;
}

struct Entry {
  explicit Entry(const OpDef& d)
      : def(d),
        types(dtypes(d)),
        vjp(vjp_text(d)),
        jvp(jvp_text(d)),
        batch(batch_text(d)),
        second(second_order(d)) {
    for (const OperandSpec& spec : d.operands)
      operands += (operands.empty() ? "" : ", ") + operand_text(spec);
  }
  std::string attributes(std::string_view between) const {
    std::string text;
    for (const AttrSchema::Item& item : def.schema.items)
      if (!item.is_result_type)
        text += fmt::format("{}{} = {}", text.empty() ? "" : between, item.name,
                            to_string(item.default_value));
    return text;
  }
  const OpDef& def;
  std::string operands;
  std::vector<std::string> types;
  std::string vjp, jvp, batch, second;
};

std::string text_of(const Entry& e) {
  std::string attributes = e.attributes(", ");
  return fmt::format(
      "{}{}{}{}\n    {}\n    {}; dtypes {}\n    vjp: {}; jvp: {}; batch: {}; second order: {}\n",
      e.def.name, e.operands.empty() ? "" : " ", e.operands,
      attributes.empty() ? "" : " {" + attributes + "}", e.def.doc, to_string(e.def.kind),
      fmt::join(e.types, " "), e.vjp, e.jvp, e.batch, e.second);
}

Json json_of(const Entry& e) {
  Json op;
  op["name"] = e.def.name;
  op["doc"] = e.def.doc;
  op["kind"] = to_string(e.def.kind);
  op["operands"] = Json::array();
  static constexpr const char* kKinds[] = {"required", "optional", "variadic"};
  for (const OperandSpec& spec : e.def.operands)
    op["operands"].push_back({{"name", spec.name}, {"kind", kKinds[spec.kind]}});
  op["attributes"] = Json::array();
  for (const AttrSchema::Item& item : e.def.schema.items)
    if (!item.is_result_type)
      op["attributes"].push_back(
          {{"name", item.name}, {"doc", item.doc}, {"default", to_string(item.default_value)}});
  op["dtypes"] = e.types;
  op["differentiable"] = e.def.vjp || e.def.vjp_refusal == kThroughExpansion.reason;
  if (!e.def.vjp) op["derivative"] = e.def.vjp_refusal;
  op["vjp"] = e.vjp;
  op["jvp"] = e.jvp;
  op["batch"] = e.batch;
  op["second_order"] = e.second;
  op["expands"] = e.def.expand != nullptr;
  return op;
}

// A cell of a table.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|' || c == '<' || c == '*' || c == '_') out += '\\';
    out += c;
  }
  return out;
}

std::string markdown(const std::vector<Entry>& entries) {
  std::string out =
      "# The ops\n\n"
      "Generated: `sinter-opt --list-ops --format=markdown > docs/ops.md`. Each op is one "
      "definition below\n`ir/ops/`, and all that stands here is asked of it.\n\n"
      "`[x]` is an optional operand, `x…` one or more. The dtypes are those of the first operand, "
      "or of the\nresult of an op without any. VJP is reverse mode, JVP forward mode, batch what "
      "`vmap` does; 2nd says\nwhether gradients have gradients, and so on.\n";
  std::vector<OpKind> kinds;
  for (const Entry& e : entries)
    if (std::find(kinds.begin(), kinds.end(), e.def.kind) == kinds.end())
      kinds.push_back(e.def.kind);
  for (OpKind kind : kinds) {
    out += fmt::format("\n## {}\n\n", to_string(kind));
    out +=
        "| Op | Attributes | Dtypes | VJP | JVP | Batch | 2nd | Meaning |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for (const Entry& e : entries) {
      if (e.def.kind != kind) continue;
      std::string attributes = e.attributes("`, `");
      if (!attributes.empty()) attributes = "`" + attributes + "`";
      out += fmt::format("| `{}`{}{} | {} | {} | {} | {} | {} | {} | {} |\n", e.def.name,
                         e.operands.empty() ? "" : " ", cell(e.operands), attributes,
                         fmt::join(e.types, " "), cell(e.vjp),
                         cell(e.jvp == e.vjp && e.jvp.starts_with("no:") ? "no" : e.jvp),
                         cell(e.batch), e.second, cell(e.def.doc));
    }
  }
  return out;
}

}  // namespace

std::string list_ops(std::string_view format) {
  std::vector<Entry> entries;
  for (const OpDef* def : OpRegistry::get().all()) entries.emplace_back(*def);
  if (format == "markdown") return markdown(entries);
  if (format == "json") {
    Json all = Json::array();
    for (const Entry& e : entries) all.push_back(json_of(e));
    return all.dump(2) + "\n";
  }
  std::string out;
  for (const Entry& e : entries) out += text_of(e);
  return out;
}

}  // namespace sinter::cli
