#pragma once
// Making a sub-graph of a C++ function: the function is called with stand-ins for its arguments,
// and what it built is moved into a graph of its own. Values of the surrounding graph that it used
// are found on the way.

#include <sinter/ir/graph.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace sinter::detail {

struct Parameter {
  std::string name;  // in the sub-graph; made unique there
  TensorType type;
};

class Trace {
 public:
  using Body = std::function<std::vector<Value>(const std::vector<Value>& parameters)>;

  // Calls `body`, which builds at the end of `graph`. `what` names the function in messages.
  // Nothing of it stays in `graph` once the Trace is gone, whether or not `body` throws, but the
  // inputs that it added by name.
  Trace(Graph& graph, std::string what, std::vector<Parameter> parameters, const Body& body,
        SourceLocation loc);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  const std::vector<Value>& parameters() const { return stand_ins_; }
  const std::vector<Value>& outputs() const { return outputs_; }
  // The values of the surrounding graph that it used, in the order of their first use.
  const std::vector<Value>& captures() const { return captures_; }

  // The sub-graph, with these of the parameters and captured values (or other values of the
  // surrounding graph) as its inputs, in this order.
  Graph& build(const std::string& stem, std::span<const Value> inputs) const;
  // With the parameters, then the captured values.
  Graph& build(const std::string& stem) const;

 private:
  std::string name_of(Value v) const;
  void collect();
  bool is_inside(Value v) const;
  void remove() noexcept;

  Graph& graph_;
  std::string what_;
  std::vector<Parameter> names_;
  SourceLocation loc_;
  Op* mark_ = nullptr;  // what `body` builds follows it
  std::vector<Value> stand_ins_, outputs_, captures_;
  std::vector<Op*> ops_;
};

}  // namespace sinter::detail
