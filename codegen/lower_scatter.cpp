// Column kernels whose terms name their place, on the host. Over all places the kernel asks of
// every term whether it belongs there; here each term goes to its place instead, in rising order,
// so that every place adds up the same terms in the same order, and the work is that of the terms.

#include <sinter/codegen/detail/lowering.h>
#include <sinter/ir/diagnostic.h>

namespace sinter::detail {
namespace {

class ScatterLowering final : public Lowering {
 public:
  ScatterLowering(const Kernel& kernel, const Target& target, const PlacedTerms& terms)
      : Lowering(kernel, target, false), terms_(terms) {}

 private:
  void grid(const IndexExpr& b) override {
    const KernelNode& reduce = node(terms_.reduce);
    find_storage(reduce.type);
    if (terms_.axis == kAxisQ) {
      axis_[kAxisP] = b;
    } else {
      base_ = b * s_.chunk;
    }
    const Var start = [&] {
      Var v = literal(reduce.type, identity_element(reduce.fn, reduce.type));
      Var none = literal(reduce.type, node(terms_.none).literal);
      return combine(reduce.fn, v, none);
    }();
    each_place([&] { put(start); });
    in_loop(Level::Serial, k_.extent[kAxisR], [&](const IndexExpr& r) {
      axis_[kAxisR] = r;
      compute_where(cone(terms_.index, -1), [](int) { return true; });
      // Anything that an index may hold.
      constexpr int64_t kFar = int64_t{1} << 62;
      IndexExpr place = IndexExpr::gathered(var(terms_.index), -kFar, kFar);
      Guard inside;
      inside.add(place, 0, k_.extent[terms_.axis]);
      where(inside, [&] {
        axis_[terms_.axis] = IndexExpr::gathered(var(terms_.index), 0, k_.extent[terms_.axis]);
        across([&] {
          compute_where(cone(terms_.value, -1), [](int) { return true; });
          Var before = get(reduce.type);
          put(combine(reduce.fn, before, var(terms_.value)));
        });
      });
    });
    if (k_.stores.size() == 1 && k_.stores[0].node == terms_.reduce && array_ < 0) return;
    each_place([&] {
      var(terms_.reduce) = get(reduce.type);
      for (const KernelStore& st : k_.stores) {
        compute_where(cone(st.node, terms_.reduce), [](int) { return true; });
        emit(Store{st.buffer, translate(st.at), var(st.node)});
      }
    });
  }

  // Where the totals stand while they grow: in a result of their type, else in an array.
  void find_storage(DType type) {
    for (const KernelStore& st : k_.stores)
      if (k_.buffers[static_cast<size_t>(st.buffer)].type.dtype == type) {
        result_ = &st;
        return;
      }
    array_ = new_array(type, scatter_room(k_, terms_, s_.chunk));
  }
  IndexExpr slot() const {
    if (terms_.axis == kAxisQ) return axis_[kAxisQ];
    return axis_[kAxisP] * s_.chunk + (axis_[kAxisQ] - base_);
  }
  Var get(DType type) {
    if (array_ >= 0) return array_load(array_, type, slot());
    Var v = new_var(type);
    sinter::Load load;
    load.var = v;
    load.buffer = result_->buffer;
    load.at = translate(result_->at);
    emit(std::move(load));
    return v;
  }
  void put(Var v) {
    if (array_ >= 0)
      emit(ArrayStore{array_, slot(), v});
    else
      emit(Store{result_->buffer, translate(result_->at), v});
  }

  // `body` at each q of the strip that this iteration has to itself; once where terms choose q.
  template <typename F>
  void across(F&& body) {
    if (terms_.axis == kAxisQ) return body();
    in_loop(Level::Simd, s_.chunk, [&](const IndexExpr& j) {
      axis_[kAxisQ] = base_ + j;
      Guard inside;
      inside.add(axis_[kAxisQ], 0, k_.extent[kAxisQ]);
      where(inside, body);
    });
  }
  template <typename F>
  void each_place(F&& body) {
    auto at = [&](const IndexExpr& place) {
      axis_[terms_.axis] = place;
      across(body);
    };
    in_loop(terms_.axis == kAxisQ ? Level::Simd : Level::Serial, k_.extent[terms_.axis], at);
  }

  const PlacedTerms& terms_;
  const KernelStore* result_ = nullptr;
  Array array_ = -1;
  IndexExpr base_;
};

}  // namespace

LoopProgram lower_scatter(const Kernel& kernel, const Target& target, const PlacedTerms& terms) {
  return ScatterLowering(kernel, target, terms).run();
}

}  // namespace sinter::detail
