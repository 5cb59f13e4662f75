#pragma once
// What lowering a kernel of any class does alike: statements into blocks, nodes into variables. A
// class of kernels adds the loops around, in grid().

#include <sinter/codegen/loops.h>
#include <sinter/codegen/schedule.h>

#include <algorithm>

namespace sinter::detail {

class Lowering {
 public:
  Lowering(const Kernel& kernel, const Target& target, bool gated);
  virtual ~Lowering() = default;
  LoopProgram run();

 protected:
  // The body of the outermost loop, at its iteration `b`.
  virtual void grid(const IndexExpr& b) = 0;

  // ---- statements

  template <typename S>
  void emit(S statement) {
    block_->push_back({std::move(statement)});
  }
  int site(uint32_t number) {
    auto known = std::find(out_.sites.begin(), out_.sites.end(), number);
    if (known == out_.sites.end()) known = out_.sites.insert(known, number);
    return static_cast<int>(known - out_.sites.begin());
  }
  Var new_var(DType type) {
    out_.var_types.push_back(type);
    return static_cast<Var>(out_.var_types.size()) - 1;
  }
  Array new_array(DType type, int64_t size, Space space = Space::Registers, bool packed = false) {
    Array a = out_.num_arrays++;
    emit(Alloc{a, type, size, space, packed});
    if (space == Space::Shared) out_.shared_bytes += size * size_of(type);
    return a;
  }
  // Runs `body` with the statements going into a new loop, and values made there gone afterwards.
  template <typename F>
  void in_loop(Level level, int64_t extent, F&& body) {
    For loop;
    loop.loop = loops_++;
    loop.extent = extent;
    loop.level = level;
    IndexExpr at = IndexExpr::axis(loop.loop, extent);
    in_block(loop.body, [&] { body(at); });
    emit(std::move(loop));
  }
  template <typename F>
  void in_block(Block& inner, F&& body) {
    Block* outer = block_;
    std::vector<Var> saved = vars_;
    block_ = &inner;
    body();
    block_ = outer;
    vars_ = std::move(saved);
  }
  // `body` under a condition; without one when it always holds.
  template <typename F>
  void where(const Guard& guard, F&& body) {
    if (guard.always()) return body();
    If branch;
    branch.guard = guard;
    in_block(branch.body, body);
    emit(std::move(branch));
  }
  // `body` where `also` holds and, unless values are checked, this lane's row exists. A check of
  // what a row came to has to see that of the last row.
  template <typename F>
  void in_strip(const Guard& also, F&& body) {
    if (checks_)
      where(also, body);
    else
      in_existing_row(also, body);
  }
  // `body` where this lane's row exists, and `also` holds.
  template <typename F>
  void in_existing_row(Guard also, F&& body) {
    const Guard outside = row_guard_;
    also.add(row_guard_);
    where(also, [&] {
      row_guard_ = {};
      body();
      row_guard_ = outside;
    });
  }
  // One of two.
  template <typename F, typename G>
  void either(const Guard& guard, F&& body, G&& otherwise) {
    if (guard.always()) return body();
    If branch;
    branch.guard = guard;
    in_block(branch.body, body);
    in_block(branch.otherwise, otherwise);
    emit(std::move(branch));
  }
  Var literal(DType type, Cell value) {
    Var v = new_var(type);
    Let let;
    let.var = v;
    let.literal = value;
    emit(std::move(let));
    return v;
  }
  Var combine(Fn fn, Var a, Var b) {
    Var v = new_var(type_of(a));
    Let let;
    let.var = v;
    let.fn = fn;
    let.args = {a, b};
    emit(std::move(let));
    return v;
  }
  DType type_of(Var v) const { return out_.var_types[static_cast<size_t>(v)]; }
  Var array_load(Array array, DType type, const IndexExpr& at) {
    Var v = new_var(type);
    emit(ArrayLoad{v, array, at});
    return v;
  }

  // ---- nodes

  const KernelNode& node(int i) const { return k_.nodes[static_cast<size_t>(i)]; }
  Var& var(int i) { return vars_[static_cast<size_t>(i)]; }
  bool varies(int i, KernelAxis axis) const { return node(i).domain & axis_bit(axis); }

  // An index of the kernel in terms of the loops around.
  IndexExpr translate(const IndexExpr& e) {
    return e.substitute([&](const IndexAtom& atom) -> IndexExpr {
      if (atom.kind == IndexAtom::Gathered) {
        SINTER_CHECK(var(atom.id) >= 0, "a gathered index is not computed yet");
        return IndexExpr::gathered(var(atom.id), atom.low, atom.high + 1);
      }
      return axis_[atom.id];
    });
  }
  Guard translate(const Guard& g) {
    Guard out;
    out.never = g.never;
    for (const GuardTerm& t : g.terms) out.add(translate(t.e), t.low, t.high);
    return out;
  }

  // Computes one node; its inputs have been.
  void compute(int i);
  // Where a Guard is true, or a Load reads.
  Guard guard_of(int i) {
    return holds_[static_cast<size_t>(i)] ? Guard{} : translate(node(i).guard);
  }
  // The node that a Select between its second and third by a guard that holds stands for.
  int chosen(int i) const {
    const KernelNode& n = node(i);
    const bool known = n.kind == KernelNode::Scalar && n.fn == Fn::Select &&
                       node(n.args[0]).kind == KernelNode::Guard &&
                       holds_[static_cast<size_t>(n.args[0])];
    return known ? n.args[1] : i;
  }

  // The nodes below `target`, itself included; none below `stop`.
  std::vector<bool> cone(int target, int stop) const {
    std::vector<bool> in(k_.nodes.size(), false);
    in[static_cast<size_t>(target)] = true;
    for (size_t i = k_.nodes.size(); i-- > 0;)
      if (in[i] && static_cast<int>(i) != stop)
        for (int a : node_inputs(k_.nodes[i])) in[static_cast<size_t>(a)] = true;
    return in;
  }

  // Computes the nodes of `set` that pass `filter`, in order.
  template <typename F>
  void compute_where(const std::vector<bool>& set, F&& filter) {
    for (size_t i = 0; i < set.size(); ++i)
      if (set[i] && filter(static_cast<int>(i))) compute(static_cast<int>(i));
  }

  // Lane reductions and barriers need every lane: those past the last row go through the motions,
  // but read and store nothing. In a kernel that checks values they compute the last row again, and
  // store nothing.
  void take_row(const IndexExpr& row) {
    checks_ = std::any_of(k_.nodes.begin(), k_.nodes.end(),
                          [](const KernelNode& n) { return n.kind == KernelNode::Check; });
    axis_[kAxisP] = row;
    row_guard_ = {};
    row_guard_.add(row, 0, k_.extent[kAxisP]);
    if (row_guard_.always()) return;
    Var at = new_var(DType::I64);
    emit(LetIndex{at, row});
    Cell last_row{};
    last_row.i = k_.extent[kAxisP] - 1;
    Var clamped = combine(Fn::Min, at, literal(DType::I64, last_row));
    axis_[kAxisP] = IndexExpr::gathered(clamped, 0, k_.extent[kAxisP]);
  }

  const Kernel& k_;
  Schedule s_;
  LoopProgram out_;
  Block root_;
  Block* block_ = &root_;
  int loops_ = 0;
  std::vector<Var> vars_;             // by node, in the current scope
  std::vector<Array> vector_array_;   // by Load node: the vector loaded for the current strip
  std::vector<bool> holds_;           // by node: whether its guard holds wherever it is computed
  std::vector<Array> reduced_array_;  // by Reduce node: where its result is, if not in a variable
  IndexExpr axis_[3];
  Guard row_guard_;      // CUDA rows: whether this lane's row exists; nothing where that is known
  bool checks_ = false;  // the kernel checks values
  IndexExpr slot_;       // the element's place within its strip
};

LoopProgram lower_prefix(const Kernel& kernel, const Target& target, bool gated);
LoopProgram lower_scatter(const Kernel& kernel, const Target& target, const PlacedTerms& terms);

}  // namespace sinter::detail
