#pragma once
// The IR: a module of graphs of ops over values.
//
// A Graph is in SSA form; the order of its ops is the order of execution. Values are logical dense
// tensors of static shape. Every op knows the user's source location; an op made by a pass from
// another one also remembers it (`from`). Values keep their uses, so rewriting is local.

#include <sinter/ir/attributes.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/target.h>
#include <sinter/ir/type.h>

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace sinter {

struct OpDef;
class Graph;
class Module;
class Op;

struct Use {
  Op* op;
  int operand;
};

namespace detail {
struct ValueImpl;
}

// A handle on an SSA value: an op's result or a graph's input. Cheap to copy; valid while its graph
// lives and its op has not been erased.
class Value {
 public:
  Value() = default;
  explicit operator bool() const { return impl_ != nullptr; }
  // The same SSA value (element-wise comparison is `eq`).
  friend bool operator==(Value a, Value b) { return a.impl_ == b.impl_; }

  const TensorType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  int64_t rank() const { return type().rank(); }
  // Extent of an axis; negative counts from the end.
  int64_t dim(int64_t axis) const;

  Op* op() const;     // null for a graph input
  int index() const;  // which result or which input
  Graph& graph() const;
  // The user's name, or "" when there is none.
  const std::string& name() const;
  void set_name(std::string name) const;
  // Gives the value a name; the value itself, for chaining.
  Value named(std::string name) const {
    set_name(std::move(name));
    return *this;
  }
  const std::vector<Use>& uses() const;  // by operands; graph outputs are not uses
  // Redirects operands and graph outputs.
  void replace_all_uses_with(Value other) const;

  const void* id() const { return impl_; }

 private:
  friend class Graph;
  friend class Op;
  explicit Value(detail::ValueImpl* impl) : impl_(impl) {}
  detail::ValueImpl* impl_ = nullptr;
};

struct ValueHash {
  size_t operator()(Value v) const { return std::hash<const void*>()(v.id()); }
};
template <typename T>
using ValueMap = std::unordered_map<Value, T, ValueHash>;

class Op {
 public:
  const OpDef& def() const { return *def_; }
  std::string_view name() const;
  bool is(std::string_view op_name) const { return name() == op_name; }

  // Operands in the order of the definition; an absent optional one is a null Value.
  std::span<const Value> operands() const { return operands_; }
  Value operand(size_t i) const { return i < operands_.size() ? operands_[i] : Value(); }
  void set_operand(size_t i, Value v);
  size_t num_results() const { return results_.size(); }
  Value result(size_t i = 0) const;

  template <typename T>
  const T& attrs() const {
    check_attrs_type(typeid(T));
    return *static_cast<const T*>(attrs_.get());
  }
  const std::shared_ptr<const void>& raw_attrs() const { return attrs_; }
  // By name, for code that must not know the struct; throws InternalError when there is none.
  AttrValue attr(std::string_view name) const;

  const SourceLocation& loc() const { return loc_; }
  // For an op made from another one (a backward op, an expansion): the place of that one.
  const SourceLocation& from() const { return from_; }
  // For an op made from several: the places of the others.
  const std::vector<SourceLocation>& with() const { return with_; }
  void set_with(std::vector<SourceLocation> places) { with_ = std::move(places); }
  // The user's recompute segment, or "".
  const std::string& segment() const { return segment_; }
  void set_segment(std::string s) { segment_ = std::move(s); }
  // The kernel template that carries the op out on the target in place of what the op is made of;
  // "" for none. Chosen by the pass `native` (passes/native.h).
  const std::string& native() const { return native_; }
  void set_native(std::string s) { native_ = std::move(s); }
  // The sub-graph called (fusion); "" for most ops.
  const std::string& callee() const { return callee_; }
  void set_callee(std::string s) { callee_ = std::move(s); }

  Graph& graph() const { return *graph_; }
  Op* next() const { return next_; }
  Op* prev() const { return prev_; }
  // Where it stands: smaller runs earlier. Recomputed when the graph has changed.
  int64_t position() const;

 private:
  friend class Graph;
  friend class Value;
  void check_attrs_type(const std::type_info& type) const;

  const OpDef* def_ = nullptr;
  std::shared_ptr<const void> attrs_;
  std::vector<Value> operands_;
  std::vector<detail::ValueImpl*> results_;
  SourceLocation loc_, from_;
  std::vector<SourceLocation> with_;
  std::string segment_, native_, callee_;
  Graph* graph_ = nullptr;
  Op* next_ = nullptr;
  Op* prev_ = nullptr;
  mutable int64_t position_ = 0;
};

// What an op is made of besides its definition.
struct OpInit {
  std::shared_ptr<const void> attrs;  // null: the definition's defaults
  std::vector<Value> operands;
  SourceLocation loc;
  SourceLocation from;
  std::string segment;
  std::string native;
  std::string callee;
};

struct GraphOutput {
  std::string name;
  Value value;
};

class Graph {
 public:
  Graph(Module& module, std::string name);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const std::string& name() const { return name_; }
  Module& module() const { return *module_; }
  // What to do with the graph (`loss`, `wrt`, `optimizer`, …), written by minimize().
  AttrMap attributes;

  Value add_input(std::string name, TensorType type);
  void erase_input(size_t i);  // without uses
  const std::vector<Value>& inputs() const { return inputs_; }
  Value find_input(std::string_view name) const;  // null when there is none

  // Output names are unique; "" takes the value's name (or "out").
  void add_output(std::string name, Value value);
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  void set_output(size_t i, Value v) { outputs_[i].value = v; }
  void erase_output(size_t i) { outputs_.erase(outputs_.begin() + static_cast<int64_t>(i)); }
  bool is_output(Value v) const;

  // Appends at the insertion point. Throws Error with the op's location when the operands or
  // attributes do not fit.
  Op& create(const OpDef& def, OpInit init);
  // A value with a use or an output may not be erased.
  void erase(Op& op);
  // Moves `op` in front of `before` (null: to the end).
  void move_before(Op& op, Op* before);

  Op* front() const { return first_; }
  Op* back() const { return last_; }
  size_t size() const { return count_; }

  // Iteration in order; the current op may be erased.
  class Iterator {
   public:
    explicit Iterator(Op* op) : op_(op), next_(op ? op->next() : nullptr) {}
    Op& operator*() const { return *op_; }
    Iterator& operator++() {
      op_ = next_;
      next_ = op_ ? op_->next() : nullptr;
      return *this;
    }
    friend bool operator!=(const Iterator& a, const Iterator& b) { return a.op_ != b.op_; }

   private:
    Op *op_, *next_;
  };
  Iterator begin() const { return Iterator(first_); }
  Iterator end() const { return Iterator(nullptr); }

  // New ops go in front of this op; null: to the end.
  Op* insertion_point() const { return insert_before_; }
  // While set, new ops take these in place of the location of the calling code.
  struct Override {
    SourceLocation loc, from;
    std::string segment;
    bool active = false;
  };
  // While set, new ops carry this recompute segment.
  const std::string& current_segment() const { return segment_; }
  void set_current_segment(std::string s) { segment_ = std::move(s); }

  // The value of an existing implementation, e.g. from a use map; see clone().
  void reindex() const;  // refreshes positions

 private:
  friend class InsertionScope;
  friend class Op;
  friend class Value;
  detail::ValueImpl* new_value(TensorType type, Op* op, int index);
  void link(Op& op, Op* before);
  void unlink(Op& op);

  Module* module_;
  std::string name_;
  std::vector<Value> inputs_;
  std::vector<GraphOutput> outputs_;
  Op* first_ = nullptr;
  Op* last_ = nullptr;
  size_t count_ = 0;
  Op* insert_before_ = nullptr;
  Override override_;
  std::string segment_;
  std::deque<std::unique_ptr<Op>> ops_;  // all ever made; freed with the graph, flat
  std::deque<std::unique_ptr<detail::ValueImpl>> values_;
  mutable bool positions_valid_ = false;
};

// Sets where new ops of a graph go and, for passes, what location they carry; restores on exit.
class InsertionScope {
 public:
  // In front of `before` (null: at the end), with the locations of calling code.
  InsertionScope(Graph& graph, Op* before);
  // In front of `before`; new ops carry origin's location, and `from` as theirs.
  InsertionScope(Graph& graph, Op* before, const Op& origin, SourceLocation from);
  // The same, with this recompute segment ("": none) in place of origin's.
  InsertionScope(Graph& graph, Op* before, const Op& origin, SourceLocation from,
                 std::string segment);
  ~InsertionScope();
  InsertionScope(const InsertionScope&) = delete;

 private:
  Graph& graph_;
  Op* saved_before_;
  Graph::Override saved_override_;
};

struct State {
  std::string name;
  TensorType type;
  // Another state, of which this one is a copy in a narrower float type, derived and never saved:
  // a graph that writes that one writes this one too, and so does whoever sets it. "": none.
  std::string cast_of = {};
};

class Module {
 public:
  Target target;
  std::vector<State> states;
  // The call site that the next random op gets; sites are numbered as the module is built.
  int64_t next_random_site = 0;

  Graph& add_graph(std::string name);  // the name must be new
  Graph* find(std::string_view name) const;
  void erase_graph(Graph& graph);
  const State* find_state(std::string_view name) const;
  const std::vector<std::unique_ptr<Graph>>& graphs() const { return graphs_; }
  // `stem`, or `stem_N` with the first free N.
  std::string unique_graph_name(const std::string& stem) const;
  std::unique_ptr<Module> clone() const;

 private:
  std::vector<std::unique_ptr<Graph>> graphs_;
};

// Copies the ops of `from` to the insertion point of `to`; `map` holds at entry what each input of
// `from` becomes, and receives every other value.
void clone_ops(const Graph& from, Graph& to, ValueMap<Value>& map);
// A copy of one op with other operands, at the insertion point of `to`.
Op& clone_op(const Op& op, Graph& to, std::vector<Value> operands);

}  // namespace sinter
