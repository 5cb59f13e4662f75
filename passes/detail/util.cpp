#include <sinter/ir/op_def.h>
#include <sinter/passes/detail/util.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unordered_set>

namespace sinter::detail {

std::vector<Graph*> entry_graphs(const Module& module) {
  std::unordered_set<std::string> called;
  for (const auto& graph : module.graphs())
    for (Op& op : *graph)
      if (!op.callee().empty()) called.insert(op.callee());
  std::vector<Graph*> out;
  for (const auto& graph : module.graphs())
    if (!called.contains(graph->name())) out.push_back(graph.get());
  return out;
}

std::vector<Value> expand_in_place(Op& op) {
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
  graph.erase(op);
  return values;
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
