// From a sub-graph to a kernel: results are pulled element by element through the ops' bodies.

#include <fmt/format.h>
#include <sinter/codegen/kernel.h>
#include <sinter/codegen/schedule.h>
#include <sinter/ir/op_def.h>
#include <sinter/passes/iteration_space.h>

#include <algorithm>
#include <unordered_map>

namespace sinter {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccdULL;
}

uint64_t hash_of(const Guard& g) {
  uint64_t h = g.never;
  for (const GuardTerm& t : g.terms)
    h = mix(mix(mix(h, t.e.hash()), static_cast<uint64_t>(t.low)), static_cast<uint64_t>(t.high));
  return h;
}

uint64_t hash_of(const KernelNode& n) {
  uint64_t h = mix(n.kind, static_cast<uint64_t>(n.type));
  for (int a : n.args) h = mix(h, static_cast<uint64_t>(a));
  h = mix(h, static_cast<uint64_t>(n.literal.i));
  h = mix(h, n.index.hash());
  h = mix(h, hash_of(n.guard));
  h = mix(h, static_cast<uint64_t>(n.buffer));
  return mix(mix(h, static_cast<uint64_t>(n.fn)), n.site);
}

bool same(const KernelNode& a, const KernelNode& b) {
  return a.kind == b.kind && a.type == b.type && a.args == b.args && a.literal.i == b.literal.i &&
         a.index == b.index && a.guard == b.guard && a.buffer == b.buffer && a.fn == b.fn &&
         a.axis == b.axis && a.order == b.order && a.prefix == b.prefix && a.random == b.random &&
         a.site == b.site && a.low == b.low && a.high == b.high && a.ignore == b.ignore &&
         a.fault == b.fault;
}

// The axes of a kernel, decided before its nodes are made.
struct Space {
  Kernel::Class kind = Kernel::Pointwise;
  int64_t p = 1, q = 1;
  KernelAxis reduce_axis = kAxisR;
  bool by_parts = false;
  const IterationSpace* columns = nullptr;  // of a column kernel that stores elements too
};

class Builder {
 public:
  Builder(const Graph& body, const SourceLocation& loc, const Space& space)
      : body_(body), loc_(loc), space_(space) {
    kernel_.kind = space.kind;
    kernel_.extent[kAxisP] = space.p;
    kernel_.extent[kAxisQ] = space.q;
    if (space.columns) {
      kernel_.extent[kAxisR] = space.columns->r;
      reduced_ = true;
    }
    for (Value v : body.inputs()) {
      buffer_of_[v] = static_cast<int>(kernel_.buffers.size());
      kernel_.buffers.push_back({fmt::format("in{}", kernel_.buffers.size()), v.type(), false});
    }
  }

  Kernel run() {
    IndexExpr p = IndexExpr::axis(kAxisP, space_.p), q = IndexExpr::axis(kAxisQ, space_.q);
    int64_t all = space_.p * space_.q;
    for (size_t i = 0; i < body_.outputs().size(); ++i) {
      Value v = body_.outputs()[i].value;
      KernelStore store;
      store.buffer = static_cast<int>(kernel_.buffers.size());
      kernel_.buffers.push_back({fmt::format("out{}", i), v.type(), true});
      int64_t elements = v.type().elements();
      // Rows of nothing have no elements to store, and none to load.
      if (elements == 0 && space_.p > 0) continue;
      if (space_.by_parts) {
        for (const StoredPart& part : stored_parts(v)) {
          std::vector<IndexExpr> at = delinearize(p * space_.q + q, part.value.shape());
          KernelStore s = store;
          s.axes = static_cast<AxisSet>(axis_bit(kAxisP) | axis_bit(kAxisQ));
          s.node = element(part.value, at);
          if (part.first != 0) {
            IndexExpr& moved = at[static_cast<size_t>(part.axis)];
            moved = moved + IndexExpr(part.first);
          }
          s.at = linearize(at, v.shape());
          kernel_.stores.push_back(std::move(s));
        }
        continue;
      }
      bool per_row = space_.kind == Kernel::Row && elements == space_.p && elements != all;
      bool in_terms = space_.columns && elements == all * space_.columns->r && elements != all;
      SINTER_CHECK(per_row || in_terms || elements == all,
                   "a kernel over {} x {} cannot store output {} of type {}", space_.p, space_.q, i,
                   v.type().str());
      store.at = per_row ? p : p * space_.q + q;
      store.axes = static_cast<AxisSet>(axis_bit(kAxisP) | (per_row ? 0 : axis_bit(kAxisQ)) |
                                        (in_terms ? axis_bit(kAxisR) : 0));
      if (in_terms)
        store.at = space_.columns->element(store.at, IndexExpr::axis(kAxisR, space_.columns->r));
      store.node = element(v, delinearize(store.at, v.shape()));
      kernel_.stores.push_back(std::move(store));
    }
    return std::move(kernel_);
  }

 private:
  struct Key {
    const void* value;
    std::vector<IndexExpr> at;
    bool operator==(const Key& o) const { return value == o.value && at == o.at; }
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      uint64_t h = std::hash<const void*>()(k.value);
      for (const IndexExpr& e : k.at) h = mix(h, e.hash());
      return h;
    }
  };

  // What one op's body sees.
  class OpBuilder : public BodyBuilder {
   public:
    OpBuilder(Builder& owner, const Op& op) : b_(owner), op_(op) {}

    BodyNode operand(size_t i, std::vector<IndexExpr> at, const Guard& guard,
                     Cell otherwise) override {
      Value v = op_.operand(i);
      if (guard.never) return literal(v.dtype(), otherwise);
      int node = b_.element(v, std::move(at));
      if (guard.always()) return {node};
      // A guard around a load moves into it; around anything else it selects.
      KernelNode n = b_.kernel_.nodes[static_cast<size_t>(node)];
      std::vector<int> gathered;
      n.index.collect_gathered(gathered);
      if (n.kind == KernelNode::Load && n.guard.always() && gathered.empty()) {
        n.guard = guard;
        n.literal = canonical(n.type, otherwise);
        n.domain |= b_.domain_of(guard);
        return {b_.add(std::move(n))};
      }
      // Loads below must not run where the guard is false: they may be out of range.
      int guarded = b_.guarded(node, guard);
      KernelNode select;
      select.kind = KernelNode::Scalar;
      select.fn = Fn::Select;
      select.type = n.type;
      select.args = {this->guard(guard).id, guarded, literal(n.type, otherwise).id};
      return {b_.add_scalar(std::move(select))};
    }

    BodyNode scalar(const ScalarFn& fn, std::span<const BodyNode> args) override {
      std::vector<int> at(fn.nodes.size());
      for (size_t i = 0; i < fn.nodes.size(); ++i) {
        const ExprNode& e = fn.nodes[i];
        if (e.fn == Fn::Param) {
          at[i] = args[static_cast<size_t>(e.param)].id;
        } else if (e.fn == Fn::Literal) {
          at[i] = literal(e.type, e.literal).id;
        } else {
          KernelNode n;
          n.kind = KernelNode::Scalar;
          n.fn = e.fn;
          n.type = e.type;
          for (int a : e.args)
            if (a >= 0) n.args.push_back(at[static_cast<size_t>(a)]);
          at[i] = b_.add_scalar(std::move(n));
        }
      }
      return {at[static_cast<size_t>(fn.results[0])]};
    }

    BodyNode literal(DType type, Cell value) override {
      KernelNode n;
      n.type = type;
      n.literal = canonical(type, value);
      return {b_.add(std::move(n))};
    }

    BodyNode index(const IndexExpr& e, DType type) override {
      KernelNode n;
      n.kind = KernelNode::Index;
      n.type = DType::I64;
      n.index = e;
      n.domain = b_.domain_of(e);
      int id = b_.add(std::move(n));
      if (type == DType::I64) return {id};
      KernelNode cast;
      cast.kind = KernelNode::Scalar;
      cast.fn = Fn::Cast;
      cast.type = type;
      cast.args = {id};
      return {b_.add_scalar(std::move(cast))};
    }

    BodyNode guard(const Guard& g) override {
      KernelNode n;
      n.type = DType::Bool;
      if (g.always() || g.never) {
        n.literal.i = !g.never;
      } else {
        n.kind = KernelNode::Guard;
        n.guard = g;
        n.domain = b_.domain_of(g);
      }
      return {b_.add(std::move(n))};
    }

    BodyNode reduce(Fn combine, int64_t extent, ReduceOrder order,
                    const std::function<BodyNode(const IndexExpr& r)>& element) override {
      KernelAxis axis = b_.space_.reduce_axis;
      int64_t& have = b_.kernel_.extent[axis];
      if (axis == kAxisR && !b_.reduced_) have = extent;
      b_.reduced_ = true;
      SINTER_CHECK(have == extent, "a kernel reduces over {} and {} elements", have, extent);
      KernelNode n;
      n.kind = KernelNode::Reduce;
      n.fn = combine;
      n.axis = axis;
      n.order = order;
      n.args = {element(IndexExpr::axis(axis, extent)).id};
      n.type = b_.node(n.args[0]).type;
      n.domain = static_cast<AxisSet>(b_.node(n.args[0]).domain & ~axis_bit(axis));
      return {b_.add(std::move(n))};
    }

    BodyNode prefix(Fn combine, int64_t extent, const PrefixOrder& order, const IndexExpr& at,
                    const std::function<BodyNode(const IndexExpr& r)>& element) override {
      IndexExpr q = IndexExpr::axis(kAxisQ, extent);
      SINTER_CHECK(b_.space_.kind == Kernel::Prefix && at == q,
                   "{} is read off the place where it runs", op_.name());
      KernelNode n;
      n.kind = KernelNode::Prefix;
      n.fn = combine;
      n.axis = kAxisQ;
      n.prefix = order;
      n.args = {element(q).id};
      n.type = b_.node(n.args[0]).type;
      n.domain = static_cast<AxisSet>(b_.node(n.args[0]).domain | axis_bit(kAxisQ));
      return {b_.add(std::move(n))};
    }

    BodyNode random(RandomKind kind, uint32_t site, std::span<const BodyNode> args,
                    const IndexExpr& element) override {
      KernelNode n;
      n.kind = KernelNode::Random;
      n.random = kind;
      n.site = site;
      n.type = kind == RandomKind::Half ? DType::I32 : DType::F32;
      n.index = element;
      n.domain = b_.domain_of(element);
      for (BodyNode a : args) {
        n.args.push_back(a.id);
        n.domain |= b_.node(a.id).domain;
      }
      return {b_.add(std::move(n))};
    }

    IndexExpr gathered(BodyNode node, int64_t low, int64_t high) override {
      return IndexExpr::gathered(node.id, low, high);
    }

    BodyNode check(BodyNode value, int64_t low, int64_t high, std::optional<int64_t> ignore,
                   const IndexExpr& position) override {
      KernelFault fault;
      fault.op = op_.name();
      fault.what = fmt::format("{}: index", fault.op);
      for (const AttrSchema::Item& item : op_.def().schema.items) {
        if (item.name == "what") fault.what = std::get<std::string>(op_.attr("what"));
        if (item.name == "place") fault.place = std::get<std::string>(op_.attr("place"));
      }
      fault.low = low;
      fault.high = high;
      fault.loc = b_.loc_;
      KernelNode n;
      n.kind = KernelNode::Check;
      n.type = b_.node(value.id).type;
      n.args = {value.id};
      n.low = low;
      n.high = high;
      n.ignore = ignore;
      n.index = position;
      n.domain = static_cast<AxisSet>(b_.node(value.id).domain | b_.domain_of(position));
      n.fault = static_cast<int>(b_.kernel_.faults.size());
      for (size_t i = 0; i < b_.fault_ops_.size(); ++i)
        if (b_.fault_ops_[i] == &op_) n.fault = static_cast<int>(i);
      if (n.fault == static_cast<int>(b_.kernel_.faults.size())) {
        b_.kernel_.faults.push_back(std::move(fault));
        b_.fault_ops_.push_back(&op_);
      }
      return {b_.add(std::move(n))};
    }

   private:
    Builder& b_;
    const Op& op_;
  };

  const KernelNode& node(int id) const { return kernel_.nodes[static_cast<size_t>(id)]; }

  int add(KernelNode n) {
    uint64_t h = hash_of(n);
    auto [begin, end] = by_hash_.equal_range(h);
    for (auto it = begin; it != end; ++it)
      if (same(node(it->second), n)) return it->second;
    int id = static_cast<int>(kernel_.nodes.size());
    kernel_.nodes.push_back(std::move(n));
    by_hash_.emplace(h, id);
    return id;
  }

  int add_scalar(KernelNode n) {
    for (int a : n.args) n.domain |= node(a).domain;
    return add(std::move(n));
  }

  AxisSet domain_of(const IndexExpr& e) const {
    std::vector<int> axes, gathered;
    e.collect_axes(axes);
    e.collect_gathered(gathered);
    AxisSet set = 0;
    for (int a : axes) set |= axis_bit(static_cast<KernelAxis>(a));
    for (int g : gathered) set |= node(g).domain;
    return set;
  }
  AxisSet domain_of(const Guard& g) const {
    AxisSet set = 0;
    for (const GuardTerm& t : g.terms) set |= domain_of(t.e);
    return set;
  }

  // Whether the load can be made anywhere in the kernel.
  bool is_in_range(const KernelNode& load) const {
    std::vector<int> gathered;
    load.index.collect_gathered(gathered);
    return gathered.empty() && load.index.low() >= 0 &&
           load.index.high() < kernel_.buffers[static_cast<size_t>(load.buffer)].type.elements();
  }

  // A copy of a node's cone whose loads happen only where they are in range or under `guard`, and
  // whose checks see a valid index elsewhere. Reductions are those of the kernel's own row:
  // iteration_space refuses others.
  int guarded(int id, const Guard& guard) {
    std::unordered_map<int, int> done;
    std::vector<int> stack{id};
    while (!stack.empty()) {
      int top = stack.back();
      if (done.contains(top)) {
        stack.pop_back();
        continue;
      }
      KernelNode n = node(top);
      // The fold of the kernel's own row, which an index is made of: it is there in any case.
      if (n.kind == KernelNode::Reduce || n.kind == KernelNode::Prefix) {
        done[top] = top;
        stack.pop_back();
        continue;
      }
      size_t waiting = stack.size();
      for (int a : node_inputs(n))
        if (!done.contains(a)) stack.push_back(a);
      if (stack.size() != waiting) continue;
      stack.pop_back();
      for (int& a : n.args) a = done.at(a);
      auto renumber = [&](const IndexExpr& e) {
        return e.substitute([&](const IndexAtom& atom) {
          if (atom.kind == IndexAtom::Gathered)
            return IndexExpr::gathered(done.at(atom.id), atom.low, atom.high + 1);
          return IndexExpr::atom(atom);
        });
      };
      n.index = renumber(n.index);
      for (GuardTerm& t : n.guard.terms) t.e = renumber(t.e);
      if (n.kind == KernelNode::Load && !is_in_range(n)) {
        n.guard.add(guard);
        n.domain |= domain_of(guard);
      }
      if (n.kind == KernelNode::Check) {
        KernelNode inside, valid, select;
        inside.kind = KernelNode::Guard;
        inside.type = DType::Bool;
        inside.guard = guard;
        inside.domain = domain_of(guard);
        valid.type = n.type;
        valid.literal.i = n.low;
        select.kind = KernelNode::Scalar;
        select.fn = Fn::Select;
        select.type = n.type;
        select.args = {add(std::move(inside)), n.args[0], add(std::move(valid))};
        n.args[0] = add_scalar(std::move(select));
        n.domain |= node(n.args[0]).domain;
      }
      if (n.kind == KernelNode::Scalar)
        done[top] = add_scalar(std::move(n));
      else
        done[top] = add(std::move(n));
    }
    return done.at(id);
  }

  int element(Value v, std::vector<IndexExpr> at) {
    Key key{v.id(), at};
    if (auto it = memo_.find(key); it != memo_.end()) return it->second;
    int id = -1;
    if (v.op() == nullptr) {
      KernelNode n;
      n.kind = KernelNode::Load;
      n.type = v.dtype();
      n.buffer = buffer_of_.at(v);
      n.index = linearize(at, v.shape());
      n.domain = domain_of(n.index);
      id = add(std::move(n));
    } else {
      const Op& op = *v.op();
      SINTER_CHECK(op.def().body != nullptr, "{} cannot be part of a kernel", op.name());
      OpBuilder builder(*this, op);
      id = op.def().body(op, static_cast<size_t>(v.index()), at, builder).id;
    }
    memo_.emplace(std::move(key), id);
    return id;
  }

  const Graph& body_;
  const SourceLocation& loc_;
  Space space_;
  Kernel kernel_;
  ValueMap<int> buffer_of_;
  std::unordered_multimap<uint64_t, int> by_hash_;
  std::unordered_map<Key, int, KeyHash> memo_;
  std::vector<const Op*> fault_ops_;
  bool reduced_ = false;
};

// Nodes that no store needs (a guard that moved into its load leaves one) go.
void remove_dead(Kernel& k) {
  std::vector<bool> live(k.nodes.size(), false);
  for (const KernelStore& s : k.stores) live[static_cast<size_t>(s.node)] = true;
  for (size_t i = k.nodes.size(); i-- > 0;) {
    if (!live[i]) continue;
    std::vector<int> gathered;
    k.nodes[i].index.collect_gathered(gathered);
    for (const GuardTerm& t : k.nodes[i].guard.terms) t.e.collect_gathered(gathered);
    for (int g : gathered) live[static_cast<size_t>(g)] = true;
    for (int a : k.nodes[i].args) live[static_cast<size_t>(a)] = true;
  }
  std::vector<int> number(k.nodes.size(), -1);
  std::vector<KernelNode> kept;
  auto renumber = [&](const IndexExpr& e) {
    return e.substitute([&](const IndexAtom& atom) {
      if (atom.kind == IndexAtom::Gathered)
        return IndexExpr::gathered(number[static_cast<size_t>(atom.id)], atom.low, atom.high + 1);
      return IndexExpr::atom(atom);
    });
  };
  for (size_t i = 0; i < k.nodes.size(); ++i) {
    if (!live[i]) continue;
    KernelNode n = std::move(k.nodes[i]);
    for (int& a : n.args) a = number[static_cast<size_t>(a)];
    n.index = renumber(n.index);
    for (GuardTerm& t : n.guard.terms) t.e = renumber(t.e);
    number[i] = static_cast<int>(kept.size());
    kept.push_back(std::move(n));
  }
  k.nodes = std::move(kept);
  for (KernelStore& s : k.stores) s.node = number[static_cast<size_t>(s.node)];
}

// How many divisions and remainders of q the accesses take; with none, each is coefficient times q.
int divisions_of_q(const Kernel& k) {
  int count = 0;
  auto add = [&](const IndexExpr& e) {
    for (const IndexExpr::Term& t : e.terms()) {
      if (!t.atom->of) continue;
      std::vector<int> axes;
      t.atom->of->collect_axes(axes);
      count += std::find(axes.begin(), axes.end(), kAxisQ) != axes.end();
    }
  };
  for (const KernelNode& n : k.nodes) {
    if (n.kind == KernelNode::Load || n.kind == KernelNode::Index) add(n.index);
    for (const GuardTerm& t : n.guard.terms) add(t.e);
  }
  for (const KernelStore& s : k.stores) add(s.at);
  return count;
}

std::string stem_of(const Graph& body) {
  std::string stem;
  for (Op& op : body) {
    OpKind kind = op.def().kind;
    if (kind == OpKind::View || kind == OpKind::Source) continue;
    std::string part(op.name());
    if (stem.size() + part.size() > 40) break;
    stem += (stem.empty() ? "" : "_") + part;
  }
  if (stem.empty() && body.front()) stem = std::string(body.back()->name());
  return stem.empty() ? "copy" : stem;
}

}  // namespace

Kernel build_kernel(const Graph& body, const SourceLocation& loc) {
  SINTER_CHECK(!body.outputs().empty(), "graph @{} has no outputs", body.name());
  std::vector<const Op*> ops;
  for (Op& op : body) ops.push_back(&op);
  std::vector<Value> results;
  for (const GraphOutput& o : body.outputs()) results.push_back(o.value);
  Result<IterationSpace> found = iteration_space(ops, results);
  SINTER_CHECK(found.ok(), "graph @{} is no kernel: {}", body.name(), found.error().message);
  const IterationSpace& iteration = found.value();

  Space space;
  if (iteration.kind == IterationSpace::Row) {
    space.kind = Kernel::Row;
    space.reduce_axis = kAxisQ;
    space.p = iteration.p;
    space.q = iteration.q;
  } else if (iteration.kind == IterationSpace::Column) {
    space.kind = Kernel::Column;
    if (iteration.elements) space.columns = &iteration;
  } else if (iteration.kind == IterationSpace::Prefix) {
    space.kind = Kernel::Prefix;
    space.p = iteration.p;
    space.q = iteration.q;
  }
  auto finish = [&](Kernel k) {
    remove_dead(k);
    k.stem = stem_of(body);
    return k;
  };
  if (space.kind == Kernel::Row || space.kind == Kernel::Prefix)
    return finish(Builder(body, loc, space).run());

  // q is the longest run of trailing axes that every access follows without division, or else with
  // the fewest.
  space.by_parts = iteration.by_parts;
  auto first = std::find_if(results.begin(), results.end(), [&](Value v) {
    return !iteration.elements || v.type().elements() == iteration.p;
  });
  const Shape& shape = space.by_parts ? stored_parts(*first)[0].value.shape() : first->shape();
  int64_t elements = num_elements(shape);
  int64_t q = elements;
  std::optional<Kernel> best;
  int fewest = 0;
  for (size_t axis = 0;; ++axis) {
    space.q = q;
    space.p = q > 0 ? elements / q : 1;
    Kernel k = finish(Builder(body, loc, space).run());
    int divisions = divisions_of_q(k);
    if (divisions == 0) return k;
    if (!best || divisions < fewest) {
      best = std::move(k);
      fewest = divisions;
    }
    if (axis >= shape.size()) return std::move(*best);
    if (shape[axis] == 0) return std::move(*best);
    q /= shape[axis];
    // Rows too short to keep a warp or a SIMD register busy are not worth the split.
    if (q < 8) return std::move(*best);
  }
}

}  // namespace sinter
