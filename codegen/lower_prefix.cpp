// Prefix kernels to loops: a fold that runs along q, in the tiles, groups and runs of PrefixOrder.
//
// On CUDA a row belongs to `lanes` threads. Each folds its run of a tile, keeping every step; then
// the first lane of each group folds the runs of its group, and every lane what stands before its
// own run: all groups of the tile, which it needs for the next tile too, and the lanes of its
// group.

#include <sinter/codegen/detail/lowering.h>
#include <sinter/ir/diagnostic.h>

namespace sinter::detail {
namespace {

class PrefixLowering final : public Lowering {
 public:
  using Lowering::Lowering;

 private:
  void grid(const IndexExpr& b) override {
    if (k_.stores.empty()) return;
    if (s_.cuda)
      cuda_prefix(b);
    else
      host_prefix(b);
  }

  int prefix_node() const {
    for (size_t i = 0; i < k_.nodes.size(); ++i)
      if (k_.nodes[i].kind == KernelNode::Prefix) return static_cast<int>(i);
    return -1;
  }
  // A number that changes: an array of one element.
  struct Running {
    Array array = -1;
    DType type = DType::F32;
    Fn fn = Fn::Add;
  };
  Running new_running(const KernelNode& n) { return {new_array(n.type, 1), n.type, n.fn}; }
  Var get(const Running& r) { return array_load(r.array, r.type, IndexExpr(0)); }
  void set(const Running& r, Var v) { emit(ArrayStore{r.array, IndexExpr(0), v}); }
  void reset(const Running& r) { set(r, literal(r.type, identity_element(r.fn, r.type))); }
  void add(const Running& r, Var v) { set(r, combine(r.fn, get(r), v)); }

  // `body` at the element of this place in the order, if there is one.
  template <typename F>
  void at_place(const IndexExpr& place, F&& body) {
    int64_t q = k_.extent[kAxisQ];
    axis_[kAxisQ] = node(prefix_node()).prefix.reverse ? IndexExpr(q - 1) - place : place;
    Guard inside;
    inside.add(place, 0, q);
    where(inside, body);
  }
  // The element that is run over.
  Var prefix_element() {
    int element = node(prefix_node()).args[0];
    compute_where(cone(element, -1), [](int) { return true; });
    return var(element);
  }
  void store_prefix(Var value) {
    int p = prefix_node();
    var(p) = value;
    for (const KernelStore& st : k_.stores) {
      compute_where(cone(st.node, p), [](int) { return true; });
      emit(Store{st.buffer, translate(st.at), var(st.node)});
    }
  }

  void cuda_prefix(const IndexExpr& b) {
    const KernelNode& n = node(prefix_node());
    int64_t lanes = s_.lanes, group = n.prefix.group(), groups = lanes / group;
    Array runs = -1, totals = -1;
    if (lanes > 1) {
      runs = new_array(n.type, s_.block, Space::Shared);
      totals = new_array(n.type, s_.rows_per_block * groups, Space::Shared);
    }
    in_loop(Level::Lane, s_.block, [&](const IndexExpr& t) {
      IndexExpr lane = mod(t, lanes), row = floordiv(t, lanes), member = mod(t, group);
      take_row(b * s_.rows_per_block + row);
      Running tiles = new_running(n), before = new_running(n), run = new_running(n);
      Array values = new_array(n.type, s_.vector);
      reset(tiles);
      in_loop(Level::Serial, s_.iterations, [&](const IndexExpr& it) {
        IndexExpr base = (it * lanes + lane) * s_.vector;
        reset(run);
        in_loop(Level::Vector, s_.vector, [&](const IndexExpr& v) {
          if (n.prefix.exclusive) emit(ArrayStore{values, v, get(run)});
          at_place(base + v, [&] { add(run, prefix_element()); });
          if (!n.prefix.exclusive) emit(ArrayStore{values, v, get(run)});
        });
        if (lanes > 1) {
          emit(ArrayStore{runs, t, get(run)});
          emit(Barrier{});
          Guard leads;
          leads.add(member, 0, 1);
          where(leads, [&] {
            reset(run);
            in_loop(Level::Serial, group, [&](const IndexExpr& i) {
              add(run, array_load(runs, n.type, t - member + i));
            });
            emit(ArrayStore{totals, row * groups + floordiv(lane, group), get(run)});
          });
          emit(Barrier{});
        }
        set(before, get(tiles));
        in_loop(Level::Serial, groups, [&](const IndexExpr& g) {
          Var total = lanes > 1 ? array_load(totals, n.type, row * groups + g) : get(run);
          add(tiles, total);
          if (groups == 1) return;
          Guard earlier;
          earlier.add(floordiv(lane, group) - g, 1, groups);
          where(earlier, [&] { set(before, get(tiles)); });
        });
        if (group > 1)
          in_loop(Level::Serial, group, [&](const IndexExpr& i) {
            Guard earlier;
            earlier.add(member - i, 1, group);
            where(earlier, [&] { add(before, array_load(runs, n.type, t - member + i)); });
          });
        in_loop(Level::Vector, s_.vector, [&](const IndexExpr& v) {
          at_place(base + v, [&] {
            in_existing_row({}, [&] {
              Var outside = get(before), own = array_load(values, n.type, v);
              store_prefix(combine(n.fn, outside, own));
            });
          });
        });
        // The next tile writes what this one has read.
        if (lanes > 1) emit(Barrier{});
      });
    });
  }

  void host_prefix(const IndexExpr& b) {
    const KernelNode& n = node(prefix_node());
    axis_[kAxisP] = b;
    int64_t lanes = s_.lanes, group = n.prefix.group();
    Running tiles = new_running(n);
    reset(tiles);
    if (lanes == 1 && s_.vector == 1) {
      in_loop(Level::Serial, k_.extent[kAxisQ], [&](const IndexExpr& c) {
        at_place(c, [&] {
          Var value = get(tiles);
          add(tiles, prefix_element());
          if (!n.prefix.exclusive) value = get(tiles);
          store_prefix(value);
        });
      });
      return;
    }
    Array runs = new_array(n.type, lanes);
    Running before = new_running(n), total = new_running(n), run = new_running(n);
    in_loop(Level::Serial, s_.iterations, [&](const IndexExpr& it) {
      auto each = [&](const IndexExpr& lane, auto&& body) {
        reset(run);
        in_loop(Level::Serial, s_.vector,
                [&](const IndexExpr& v) { at_place((it * lanes + lane) * s_.vector + v, body); });
      };
      in_loop(Level::Serial, lanes, [&](const IndexExpr& lane) {
        each(lane, [&] { add(run, prefix_element()); });
        emit(ArrayStore{runs, lane, get(run)});
      });
      in_loop(Level::Serial, lanes / group, [&](const IndexExpr& g) {
        set(before, get(tiles));
        reset(total);
        in_loop(Level::Serial, group, [&](const IndexExpr& i) {
          IndexExpr lane = g * group + i;
          each(lane, [&] {
            Var own = get(run);
            add(run, prefix_element());
            if (!n.prefix.exclusive) own = get(run);
            Var outside = get(before);
            store_prefix(combine(n.fn, outside, own));
          });
          Var whole = array_load(runs, n.type, lane);
          add(before, whole);
          add(total, whole);
        });
        add(tiles, get(total));
      });
    });
  }
};

}  // namespace

LoopProgram lower_prefix(const Kernel& kernel, const Target& target, bool gated) {
  return PrefixLowering(kernel, target, gated).run();
}

}  // namespace sinter::detail
