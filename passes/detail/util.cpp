#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unordered_set>

namespace sinter::detail {

namespace {

std::vector<Graph*> uncalled_graphs(const Module& module) {
  std::unordered_set<std::string> called;
  for (const auto& graph : module.graphs())
    for (Op& op : *graph)
      if (op.def().has_callee)
        for (std::string& name : callees_of(op)) called.insert(std::move(name));
  std::vector<Graph*> out;
  for (const auto& graph : module.graphs())
    if (!called.contains(graph->name())) out.push_back(graph.get());
  return out;
}

bool is_private(const Graph& graph) {
  auto it = graph.attributes.find("private");
  return it != graph.attributes.end() && same(it->second, true);
}

}  // namespace

std::vector<Graph*> entry_graphs(const Module& module) {
  std::vector<Graph*> graphs = uncalled_graphs(module);
  std::erase_if(graphs, [](const Graph* graph) { return is_private(*graph); });
  return graphs;
}

size_t erase_uncalled(Module& module, const std::vector<Graph*>& entries_at_first) {
  size_t count = 0;
  for (bool again = true; again;) {
    again = false;
    for (Graph* graph : uncalled_graphs(module)) {
      bool entry = std::find(entries_at_first.begin(), entries_at_first.end(), graph) !=
                   entries_at_first.end();
      if (entry && !is_private(*graph)) continue;
      module.erase_graph(*graph);
      ++count;
      again = true;
    }
  }
  return count;
}

std::vector<Value> expand_in_place(Op& op, bool keep) {
  Graph& graph = op.graph();
  std::vector<Value> values;
  {
    InsertionScope scope(graph, &op, op, op.from(), op.segment());
    values = op.def().expand(graph, op);
  }
  SINTER_CHECK(values.size() == op.num_results(), "{} has {} results and expands to {}", op.name(),
               op.num_results(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    Value old = op.result(i);
    SINTER_CHECK(values[i] && values[i].type() == old.type(), "{}: result {} expands to {}",
                 op.name(), i, values[i] ? values[i].type().str() : "nothing");
    if (values[i].name().empty()) values[i].set_name(old.name());
    old.replace_all_uses_with(values[i]);
  }
  if (!keep) graph.erase(op);
  return values;
}

Op& view_as(const Op& view, std::vector<Value> operands) {
  OpInit init;
  const AttrSchema& schema = view.def().schema;
  std::shared_ptr<void> attrs = schema.copy(view.raw_attrs().get());
  for (size_t i = 0; i < schema.items.size(); ++i)
    if (schema.items[i].is_result_type) {
      TensorType type = view.result().type();
      type.dtype = operands.at(0).dtype();
      schema.items[i].set(attrs.get(), i, AttrValue(std::move(type)));
    }
  init.attrs = std::move(attrs);
  init.operands = std::move(operands);
  return view.graph().create(view.def(), std::move(init));
}

bool is_check(const Op& op) {
  const auto& items = op.def().schema.items;
  return std::any_of(items.begin(), items.end(),
                     [](const AttrSchema::Item& item) { return item.name == "what"; });
}

std::string operand_name(const Op& op, size_t i) {
  const auto& specs = op.def().operands;
  bool named = i < specs.size() && specs[i].kind != OperandSpec::Variadic;
  return named ? std::string(specs[i].name) : fmt::format("{}", i);
}

Value find_value(const Graph& graph, std::string_view name) {
  for (const GraphOutput& o : graph.outputs())
    if (o.name == name) return o.value;
  if (Value v = graph.find_input(name)) return v;
  for (Op& op : graph)
    for (size_t i = 0; i < op.num_results(); ++i)
      if (op.result(i).name() == name) return op.result(i);
  return {};
}

// What made the value: of a fusion, the op within it.
static std::string_view maker_of(Value v) {
  const Op& op = *v.op();
  if (op.name() != "fusion") return op.name();
  const Graph* body = op.graph().module().find(op.callee());
  const Op* inner =
      body == nullptr ? nullptr : body->outputs()[static_cast<size_t>(v.index())].value.op();
  return inner == nullptr ? op.name() : inner->name();
}

std::string name_of(Value v) {
  constexpr size_t kNames = 2, kSeen = 64;
  if (!v.name().empty() || v.op() == nullptr) return "%" + v.name();
  // Level by level up the operands; those of the first level that has names.
  std::vector<std::string> names;
  std::vector<const Op*> level{v.op()}, seen = level;
  while (!level.empty() && names.empty() && seen.size() < kSeen) {
    std::vector<const Op*> above;
    for (const Op* op : level)
      for (Value operand : op->operands()) {
        if (!operand) continue;
        if (!operand.name().empty()) {
          std::string name = "%" + operand.name();
          if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        } else if (const Op* up = operand.op();
                   up != nullptr && std::find(seen.begin(), seen.end(), up) == seen.end()) {
          above.push_back(up);
          seen.push_back(up);
        }
      }
    level = std::move(above);
  }
  if (names.size() > kNames) names.resize(kNames);
  std::string from;
  for (const std::string& name : names) from += (from.empty() ? " of " : ", ") + name;
  return fmt::format("({}{})", maker_of(v), from);
}

std::string kernel_stem(const std::vector<Op*>& ops) {
  std::string out;
  for (const Op* op : ops) {
    OpKind kind = op->def().kind;
    if (kind == OpKind::View || kind == OpKind::Source) continue;
    if (out.size() + op->name().size() > 40) break;
    out += (out.empty() ? "" : "_") + std::string(op->name());
  }
  return out.empty() ? std::string(ops.back()->name()) : out;
}

size_t count_backward(const std::vector<Op*>& ops) {
  return static_cast<size_t>(
      std::count_if(ops.begin(), ops.end(), [](const Op* op) { return op->from().known(); }));
}

bool recomputes(const std::vector<Op*>& ops) {
  return std::any_of(ops.begin(), ops.end(),
                     [](const Op* op) { return op->segment().ends_with(".recompute"); });
}

size_t count_views(Value v) {
  size_t count = 0;
  for (const Use& use : v.uses())
    count += use.op->def().kind == OpKind::View && !use.op->is("reshape");
  return count;
}

std::string describe(Value v) {
  std::string name = v.name();
  if (name.empty())
    name = v.op() != nullptr ? fmt::format("a {}", v.op()->name()) : std::string("an input");
  else
    name = "%" + name;
  return fmt::format("{}: {}, {} bytes", name, v.type().str(), v.type().bytes());
}

std::string dump_folder(std::string wanted, std::string& problem) {
  if (const char* set = std::getenv("SINTER_DUMP"); set != nullptr && wanted.empty()) wanted = set;
  if (wanted.empty()) return "";
  std::error_code failure;
  std::filesystem::create_directories(wanted, failure);
  if (!failure && ::access(wanted.c_str(), W_OK | X_OK) == 0) return wanted;
  problem = fmt::format("nothing is dumped: the folder {} cannot be written{}", wanted,
                        failure ? " (" + failure.message() + ")" : "");
  return "";
}

bool write_text(const std::string& path, std::string_view text) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  return !file.fail();
}

}  // namespace sinter::detail
