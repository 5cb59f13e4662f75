#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>

#include <algorithm>
#include <unordered_set>

namespace sinter {
namespace {

bool is_identifier(const std::string& s) {
  if (s.empty() || (s[0] >= '0' && s[0] <= '9')) return false;
  return std::all_of(s.begin(), s.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

// Unique names of a graph's values: the user's where they are identifiers and free, else numbers.
class Names {
 public:
  explicit Names(const Graph& graph) {
    for (Value v : graph.inputs()) assign(v);
    for (Op& op : graph)
      for (size_t i = 0; i < op.num_results(); ++i) assign(op.result(i));
  }
  std::string operator()(Value v) const {
    auto it = names_.find(v);
    return it == names_.end() ? "%_" : "%" + it->second;
  }

 private:
  void assign(Value v) {
    std::string name = v.name();
    if (!is_identifier(name)) {
      name = fmt::format("{}", next_++);
    } else if (taken_.contains(name)) {
      int& n = suffix_[name];
      std::string candidate;
      do {
        candidate = fmt::format("{}_{}", name, ++n);
      } while (taken_.contains(candidate));
      name = candidate;
    }
    taken_.insert(name);
    names_[v] = name;
  }
  int next_ = 0;
  ValueMap<std::string> names_;
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> suffix_;
};

std::string attr_block(const std::vector<std::string>& items) {
  return items.empty() ? "" : fmt::format(" {{{}}}", fmt::join(items, ", "));
}

// "f.cpp":12
std::string place(const SourceLocation& loc) {
  std::string column = loc.column > 0 ? fmt::format(":{}", loc.column) : "";
  return fmt::format("{}:{}{}", to_string(AttrValue(std::string(loc.file_name()))), loc.line,
                     column);
}

template <typename NameOf>
std::string op_text(const Op& op, const NameOf& name, const PrintOptions& options) {
  std::string out;
  for (size_t i = 0; i < op.num_results(); ++i) out += (i ? ", " : "") + name(op.result(i));
  out += fmt::format(" = {}", op.name());
  if (!op.callee().empty()) out += fmt::format(" @{}(", op.callee());
  const auto& specs = op.def().operands;
  bool first = true;
  for (size_t i = 0; i < op.operands().size(); ++i) {
    Value v = op.operand(i);
    if (!v) continue;
    out += first ? (op.callee().empty() ? " " : "") : ", ";
    first = false;
    if (i < specs.size() && specs[i].kind == OperandSpec::Optional)
      out += fmt::format("{}=", specs[i].name);
    out += name(v);
  }
  if (!op.callee().empty()) out += ")";
  std::vector<std::string> attrs = op.def().schema.print(op.raw_attrs().get());
  if (!op.segment().empty())
    attrs.push_back(fmt::format("segment = {}", to_string(AttrValue(op.segment()))));
  if (!op.native().empty())
    attrs.push_back(fmt::format("native = {}", to_string(AttrValue(op.native()))));
  out += attr_block(attrs) + " : ";
  for (size_t i = 0; i < op.num_results(); ++i) out += (i ? ", " : "") + op.result(i).type().str();
  if (options.locations) {
    if (op.loc().known()) out += fmt::format(" loc({})", place(op.loc()));
    if (op.from().known()) out += fmt::format(" from({})", place(op.from()));
    std::vector<std::string> with;
    for (const SourceLocation& loc : op.with()) with.push_back(place(loc));
    if (!with.empty()) out += fmt::format(" with({})", fmt::join(with, ", "));
  }
  return out;
}

}  // namespace

std::string print(const Op& op) {
  auto name = [](Value v) { return v.name().empty() ? std::string("%_") : "%" + v.name(); };
  return op_text(op, name, {});
}

std::string print(const Graph& graph, const PrintOptions& options) {
  Names name(graph);
  std::string out = fmt::format("graph @{}(", graph.name());
  for (size_t i = 0; i < graph.inputs().size(); ++i)
    out += fmt::format("{}{}: {}", i ? ", " : "", name(graph.inputs()[i]),
                       graph.inputs()[i].type().str());
  out += ") -> ";
  bool single = graph.outputs().size() == 1;
  if (!single) out += "(";
  for (size_t i = 0; i < graph.outputs().size(); ++i)
    out += fmt::format("{}{}", i ? ", " : "", graph.outputs()[i].value.type().str());
  if (!single) out += ")";
  std::vector<std::string> attrs;
  for (const auto& [key, value] : graph.attributes)
    attrs.push_back(fmt::format("{} = {}", key, to_string(value)));
  if (!attrs.empty()) out += " attributes" + attr_block(attrs);
  out += " {\n";
  for (Op& op : graph) out += "  " + op_text(op, name, options) + "\n";
  out += "  return";
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const GraphOutput& o = graph.outputs()[i];
    std::string value = name(o.value);
    out += i ? ", " : " ";
    // The name is left out where reading it back gives the same.
    if ("%" + o.name != value) out += o.name + " = ";
    out += value;
  }
  return out + "\n}\n";
}

std::string print(const Module& module, const PrintOptions& options) {
  std::string out;
  bool plain = module.target == Target{} && module.states.empty() && module.graphs().size() == 1;
  if (!plain) out += fmt::format("module {}\n", print(module.target));
  for (const State& s : module.states)
    out += fmt::format("state {}: {}{}\n", s.name, s.type.str(),
                       s.cast_of.empty() ? "" : " = cast " + s.cast_of);
  for (size_t i = 0; i < module.graphs().size(); ++i) {
    if (!plain || i) out += "\n";
    out += print(*module.graphs()[i], options);
  }
  return out;
}

}  // namespace sinter
