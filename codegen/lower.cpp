// Kernels to loops, by the schedule.

#include <sinter/codegen/detail/lowering.h>
#include <sinter/ir/diagnostic.h>

#include <algorithm>

namespace sinter {

namespace {

class Lowering final : public detail::Lowering {
 public:
  Lowering(const Kernel& kernel, const Target& target, bool gated)
      : detail::Lowering(kernel, target, gated), levels_(node_levels(kernel)) {
    kept_array_.assign(k_.nodes.size(), -1);
    for (int n : s_.kept) kept_set_.push_back(n);
    phases_ = make_phases(k_, s_.kept);
  }

 private:
  void grid(const IndexExpr& b) override {
    if (k_.kind != Kernel::Row) {
      if (s_.cuda)
        cuda_strips(b);
      else
        host_strips(b);
    } else if (s_.cuda) {
      cuda_rows(b);
    } else {
      host_rows(b);
    }
  }
  int level(int i) const { return levels_[static_cast<size_t>(i)]; }

  // Whether all gathered integers of an index are there; those that vary over q are not, as long as
  // q stands at the start of a strip.
  bool is_computed(const IndexExpr& e) {
    bool computed = true;
    e.substitute([&](const IndexAtom& atom) -> IndexExpr {
      if (atom.kind == IndexAtom::Gathered && var(atom.id) < 0) computed = false;
      return IndexExpr(0);
    });
    return computed;
  }

  // Loads of `set` that run along q are made `width` at a time; q must stand at the strip's start.
  void load_vectors(const std::vector<bool>& set, int width) {
    if (width == 1) return;
    for (size_t i = 0; i < set.size(); ++i) {
      const KernelNode& n = k_.nodes[i];
      if (!set[i] || n.kind != KernelNode::Load || vars_[i] >= 0 || vector_array_[i] >= 0) continue;
      if (!reads_vectors(n, width) || !is_computed(n.index)) continue;
      Array a = new_array(n.type, width);
      const IndexExpr base = axis_[kAxisQ];
      Guard whole = element_guard(static_cast<int>(i));
      axis_[kAxisQ] = base + IndexExpr(width - 1);
      whole.add(element_guard(static_cast<int>(i)));
      axis_[kAxisQ] = base;
      either(
          whole,
          [&] {
            emit(LoadVector{a, n.buffer, translate(n.index), width});
          },
          [&] {
            in_loop(Level::Vector, width, [&](const IndexExpr& j) {
              axis_[kAxisQ] = base + j;
              Load load;
              const Var v = load.var = new_var(n.type);
              load.buffer = n.buffer;
              load.at = translate(n.index);
              load.guard = element_guard(static_cast<int>(i));
              load.otherwise = n.literal;
              emit(std::move(load));
              emit(ArrayStore{a, j, v});
            });
            axis_[kAxisQ] = base;
          });
      vector_array_[i] = a;
    }
  }
  // Where the load reads, the end of a row included that is no multiple of a vector.
  Guard element_guard(int i) {
    Guard g = guard_of(i);
    if (s_.cuda && k_.extent[kAxisQ] % s_.vector != 0) g.add(axis_[kAxisQ], 0, k_.extent[kAxisQ]);
    return g;
  }
  // `body` for `width` elements of q from `base` on, twice where there are guards along q that most
  // strips fulfil as a whole: those take the one without them.
  template <typename F>
  void in_versions(const std::vector<bool>& needed, const IndexExpr& base, int64_t width,
                   F&& body) {
    Guard whole;
    std::vector<size_t> guards;
    for (size_t i = 0; i < needed.size(); ++i) {
      if (!needed[i] || !has_straight_guard(k_.nodes[i])) continue;
      guards.push_back(i);
      for (int64_t end : {int64_t{0}, width - 1}) {
        axis_[kAxisQ] = base + IndexExpr(end);
        whole.add(translate(k_.nodes[i].guard));
      }
    }
    axis_[kAxisQ] = base;
    if (guards.empty() || whole.never) return body();
    const std::vector<Array> vectors = vector_array_;
    auto set = [&](bool holds) {
      for (size_t i : guards) holds_[i] = holds;
    };
    either(
        whole,
        [&] {
          set(true);
          body();
          set(false);
        },
        [&] {
          vector_array_ = vectors;
          axis_[kAxisQ] = base;
          body();
        });
    vector_array_ = vectors;
  }
  // A guard along q, all of which holds if it does at both ends.
  static bool has_straight_guard(const KernelNode& n) {
    if ((n.kind != KernelNode::Guard && n.kind != KernelNode::Load) || n.guard.never ||
        !is_straight(n.guard))
      return false;
    for (const GuardTerm& term : n.guard.terms)
      for (const IndexExpr::Term& t : term.e.terms())
        if (t.atom->kind == IndexAtom::Axis && t.atom->id == kAxisQ) return true;
    return false;
  }
  // What is computed and loaded so far.
  struct Loaded {
    std::vector<Var> vars;
    std::vector<Array> vectors;
  };
  Loaded loaded() const { return {vars_, vector_array_}; }
  void take(const Loaded& l) {
    vars_ = l.vars;
    vector_array_ = l.vectors;
  }
  void forget_vectors() { std::fill(vector_array_.begin(), vector_array_.end(), -1); }
  // The loads of `set` that pass `filter` and can be made at the strip's start.
  template <typename F>
  void load_ahead(std::vector<bool> set, int width, F&& filter) {
    for (size_t i = 0; i < set.size(); ++i)
      set[i] = set[i] && node(static_cast<int>(i)).kind == KernelNode::Load &&
               filter(static_cast<int>(i));
    load_vectors(set, width);
    compute_where(set, [&](int i) {
      if (width > 1 && varies(i, kAxisQ)) return false;
      std::vector<int> inputs = node_inputs(node(i));
      return std::all_of(inputs.begin(), inputs.end(), [&](int input) { return var(input) >= 0; });
    });
  }

  // Stores over q from within a strip of `width`: whole vectors where they fit, else one by one.
  // `terms`: the stores over r as well as q, for one r; else those over q alone.
  class StripStores {
   public:
    StripStores(Lowering& l, int width, bool terms = false)
        : l_(l), arrays_(l.k_.stores.size(), -1), from_(arrays_), width_(width), terms_(terms) {
      if (width == 1) return;
      for (size_t i = 0; i < arrays_.size(); ++i) {
        const KernelStore& s = l.k_.stores[i];
        if (!takes(s) || !is_vector_access(s.at, width)) continue;
        from_[i] = l.unrounded(s.node);
        arrays_[i] = l.new_array(l.node(from_[i]).type, width);
      }
    }
    void element() {
      for (size_t i = 0; i < arrays_.size(); ++i) {
        const KernelStore& s = l_.k_.stores[i];
        if (!takes(s)) continue;
        if (arrays_[i] >= 0)
          l_.emit(ArrayStore{arrays_[i], l_.slot_, l_.var(from_[i])});
        else
          l_.where(l_.row_guard_, [&] {
            l_.emit(Store{s.buffer, l_.translate(s.at), l_.var(s.node)});
          });
      }
    }
    // With q at the strip's start.
    void finish() {
      for (size_t i = 0; i < arrays_.size(); ++i) {
        const KernelStore& s = l_.k_.stores[i];
        if (arrays_[i] >= 0)
          l_.where(l_.row_guard_, [&] {
            l_.emit(StoreVector{s.buffer, l_.translate(s.at), arrays_[i], width_});
          });
      }
    }

   private:
    bool takes(const KernelStore& s) const {
      return (s.axes & axis_bit(kAxisQ)) && terms_ == ((s.axes & axis_bit(kAxisR)) != 0);
    }
    Lowering& l_;
    std::vector<Array> arrays_;
    std::vector<int> from_;  // the node stored
    int width_;
    bool terms_;
  };

  // What a vector store makes of f32 itself, two elements at once: the operand of a cast to 16
  // bits. A kept cast is there without its operand.
  int unrounded(int i) const {
    i = chosen(i);
    const KernelNode& n = node(i);
    const bool rounds = n.kind == KernelNode::Scalar && n.fn == Fn::Cast && is_float(n.type) &&
                        size_of(n.type) == 2 && node(n.args[0]).type == DType::F32;
    return rounds && !is_kept(i) ? n.args[0] : i;
  }
  bool is_kept(int i) const {
    return std::find(kept_set_.begin(), kept_set_.end(), i) != kept_set_.end();
  }

  // ---- pointwise and column kernels: strips of q

  void cuda_strips(const IndexExpr& b) {
    in_loop(Level::Lane, s_.block, [&](const IndexExpr& t) {
      int64_t strips = k_.extent[kAxisQ] / s_.vector;
      if (s_.strips > 1) return several_strips(b, t, strips);
      IndexExpr linear = b * s_.block + t;
      Guard inside;
      inside.add(linear, 0, k_.extent[kAxisP] * strips);
      where(inside, [&] {
        axis_[kAxisP] = floordiv(linear, strips);
        strip(mod(linear, strips) * s_.vector, s_.vector, Level::Vector, {});
      });
    });
  }

  // The loads of all strips of thread `t` come first; then one strip after the other.
  void several_strips(const IndexExpr& b, const IndexExpr& t, int64_t strips) {
    const auto& needed = phases_.needed.back();
    load_ahead(needed, 1, [&](int i) { return !varies(i, kAxisP) && !varies(i, kAxisQ); });
    const Loaded before = loaded();
    std::vector<Loaded> all;
    auto base_of = [&](int64_t i) {
      IndexExpr linear = (b * s_.strips + IndexExpr(i)) * s_.block + t;
      axis_[kAxisP] = floordiv(linear, strips);
      return axis_[kAxisQ] = mod(linear, strips) * s_.vector;
    };
    for (int64_t i = 0; i < s_.strips; ++i) {
      base_of(i);
      load_ahead(needed, s_.vector, [&](int n) { return node(n).guard.always(); });
      all.push_back(loaded());
      take(before);
    }
    for (int64_t i = 0; i < s_.strips; ++i) {
      take(all[static_cast<size_t>(i)]);
      strip(base_of(i), s_.vector, Level::Vector, {});
    }
  }

  void host_strips(const IndexExpr& b) {
    int64_t q = k_.extent[kAxisQ];
    int64_t strips = (q + s_.chunk - 1) / s_.chunk;
    axis_[kAxisP] = floordiv(b, strips);
    IndexExpr base = mod(b, strips) * s_.chunk;
    strip(base, s_.chunk, Level::Simd, q);
  }

  // The `width` elements from `base` of q. `limit`: elements from there on do not exist.
  void strip(const IndexExpr& base, int64_t width, Level level, std::optional<int64_t> limit) {
    bool vectors = level == Level::Vector;
    // One element of the strip.
    auto each = [&](auto&& body) {
      auto at = [&](const IndexExpr& j) {
        slot_ = j;
        axis_[kAxisQ] = base + j;
        Guard inside;
        if (limit) inside.add(axis_[kAxisQ], 0, *limit);
        where(inside, body);
      };
      if (width == 1) {
        Block inner;
        in_block(inner, [&] { at(IndexExpr(0)); });
        for (Stmt& st : inner) block_->push_back(std::move(st));
      } else {
        in_loop(level, width, at);
      }
    };
    auto outside = [&](int i) { return level_zero(i) && !varies(i, kAxisQ) && !varies(i, kAxisR); };
    axis_[kAxisQ] = base;
    // A division, say, is a branch, past which no load is moved.
    if (vectors && phases_.last == 0)
      load_ahead(phases_.needed[0], static_cast<int>(width),
                 [&](int i) { return node(i).guard.always(); });
    for (const auto& needed : phases_.needed) compute_where(needed, outside);

    for (int phase = 0; phase < phases_.last; ++phase) {
      const auto& needed = phases_.needed[static_cast<size_t>(phase)];
      const auto& reductions = phases_.reductions[static_cast<size_t>(phase)];
      // Where terms are stored whose sum nobody reads, none is left.
      int64_t slots = reductions.empty() ? 1 : node(reductions[0]).order.vector;
      std::vector<Array> acc;
      for (int r : reductions) acc.push_back(new_array(node(r).type, slots * width));
      auto fill = [&](const IndexExpr& slot) {
        each([&] {
          for (size_t n = 0; n < reductions.size(); ++n) {
            const KernelNode& r = node(reductions[n]);
            emit(ArrayStore{acc[n], slot * width + slot_,
                            literal(r.type, identity_element(r.fn, r.type))});
          }
        });
      };
      if (slots > 1)
        in_loop(Level::Vector, slots, fill);
      else if (!reductions.empty())
        fill(IndexExpr(0));

      // What all terms read is read once: the terms that are stored might lie over it.
      axis_[kAxisQ] = base;
      if (vectors)
        load_ahead(needed, static_cast<int>(width), [&](int i) { return !varies(i, kAxisR); });
      const std::vector<Array> ahead = vector_array_;
      // The term at axis r, added to the accumulators from `slot` on.
      auto term = [&](const IndexExpr& slot) {
        axis_[kAxisQ] = base;
        compute_where(needed, [&](int i) { return level_zero(i) && !varies(i, kAxisQ); });
        if (vectors) load_vectors(needed, static_cast<int>(width));
        StripStores stores(*this, vectors && phase == 0 ? static_cast<int>(width) : 1, true);
        each([&] {
          compute_where(needed, [&](int) { return true; });
          for (size_t n = 0; n < reductions.size(); ++n) {
            const KernelNode& r = node(reductions[n]);
            IndexExpr at = slot * width + slot_;
            Var before = array_load(acc[n], r.type, at);
            emit(ArrayStore{acc[n], at, combine(r.fn, before, var(r.args[0]))});
          }
          if (phase == 0) stores.element();
        });
        axis_[kAxisQ] = base;
        if (phase == 0) stores.finish();
        vector_array_ = ahead;
      };
      int64_t extent = k_.extent[kAxisR], whole = extent / s_.batch * s_.batch;
      if (s_.batch > 1)
        in_loop(Level::Serial, extent / s_.batch, [&](const IndexExpr& it) {
          term_batch(needed, base, static_cast<int>(width), it, [&] { term(IndexExpr(0)); });
        });
      if (s_.batch == 1 || whole < extent) {
        int64_t first = s_.batch == 1 ? 0 : whole;
        in_loop(Level::Serial, (extent - first + slots - 1) / slots, [&](const IndexExpr& it) {
          auto element = [&](const IndexExpr& slot) {
            axis_[kAxisR] = it * slots + slot + IndexExpr(first);
            Guard in_range;
            in_range.add(axis_[kAxisR], 0, extent);
            where(in_range, [&] { term(slot); });
          };
          if (slots == 1)
            element(IndexExpr(0));
          else
            in_loop(Level::Vector, slots, element);
        });
      }
      if (slots > 1)
        each([&] {
          for (size_t n = 0; n < reductions.size(); ++n) {
            const KernelNode& r = node(reductions[n]);
            Var sum = array_load(acc[n], r.type, slot_);
            for (int64_t slot = 1; slot < slots; ++slot)
              sum = combine(r.fn, sum, array_load(acc[n], r.type, slot_ + IndexExpr(slot * width)));
            emit(ArrayStore{acc[n], slot_, sum});
          }
        });
      forget_vectors();
      for (size_t n = 0; n < reductions.size(); ++n)
        reduced_array_[static_cast<size_t>(reductions[n])] = acc[n];
    }

    const auto& needed = phases_.needed.back();
    axis_[kAxisQ] = base;
    auto elements = [&] {
      if (vectors) load_vectors(needed, static_cast<int>(width));
      StripStores stores(*this, vectors ? static_cast<int>(width) : 1);
      each([&] {
        compute_where(needed, [](int) { return true; });
        stores.element();
      });
      axis_[kAxisQ] = base;
      stores.finish();
    };
    if (vectors && width > 1)
      in_versions(needed, base, width, elements);
    else
      elements();
  }
  bool level_zero(int i) const { return level(i) == 0; }

  // The terms of batch `it`, whose loads come before all else: they are on their way together.
  template <typename F>
  void term_batch(const std::vector<bool>& needed, const IndexExpr& base, int width,
                  const IndexExpr& it, F&& term) {
    std::vector<Loaded> all;
    const Loaded before = loaded();
    for (int64_t i = 0; i < s_.batch; ++i) {
      axis_[kAxisR] = it * s_.batch + IndexExpr(i);
      axis_[kAxisQ] = base;
      load_ahead(needed, width, [&](int n) { return varies(n, kAxisR); });
      all.push_back(loaded());
      take(before);
    }
    for (int64_t i = 0; i < s_.batch; ++i) {
      axis_[kAxisR] = it * s_.batch + IndexExpr(i);
      take(all[static_cast<size_t>(i)]);
      term();
    }
  }

  // ---- row kernels

  // Nodes of the row alone that the reductions finished so far allow.
  void row_nodes(int up_to_level) {
    for (const auto& needed : phases_.needed)
      compute_where(needed, [&](int i) {
        return !varies(i, kAxisQ) && level(i) <= up_to_level && node(i).kind != KernelNode::Reduce;
      });
  }

  // Computes what the element needs, taking kept nodes from their arrays or putting them there.
  void row_element(int phase, const IndexExpr& kept_at) {
    const auto& needed = phases_.needed[static_cast<size_t>(phase)];
    for (size_t i = 0; i < needed.size(); ++i) {
      int n = static_cast<int>(i);
      if (!needed[i] || node(n).kind == KernelNode::Reduce) continue;
      const bool keep = is_kept(n);
      if (keep && made_[i]) {
        var(n) = array_load(kept_array_[i], node(n).type, kept_at);
        continue;
      }
      compute(n);
      if (keep) {
        emit(ArrayStore{kept_array_[i], kept_at, var(n)});
        making_.push_back(n);
      }
    }
  }
  void end_phase() {
    for (int n : making_) made_[static_cast<size_t>(n)] = true;
    making_.clear();
  }

  void alloc_kept(int64_t size) {
    made_.assign(k_.nodes.size(), false);
    for (int n : s_.kept)
      kept_array_[static_cast<size_t>(n)] =
          new_array(node(n).type, size, Space::Registers,
                    s_.cuda && s_.unrolled && s_.vector % 2 == 0 && is_packed(node(n).type));
  }

  void cuda_rows(const IndexExpr& b) {
    // Across warps a reduction goes through shared memory, an array each.
    std::vector<Array> shared(k_.nodes.size(), -1);
    int64_t warps = s_.lanes / out_.target.warp;
    if (warps > 1)
      for (const auto& reductions : phases_.reductions)
        for (int r : reductions)
          shared[static_cast<size_t>(r)] = new_array(node(r).type, warps, Space::Shared);
    in_loop(Level::Lane, s_.block, [&](const IndexExpr& t) {
      IndexExpr lane = mod(t, s_.lanes);
      take_row(b * s_.rows_per_block + floordiv(t, s_.lanes));
      alloc_kept(s_.iterations * s_.vector);
      row_nodes(0);
      for (int phase = 0; phase <= phases_.last; ++phase) {
        bool last = phase == phases_.last;
        if (last && std::none_of(k_.stores.begin(), k_.stores.end(),
                                 [](const KernelStore& st) { return st.axes & axis_bit(kAxisQ); }))
          break;
        std::vector<int> reductions;
        std::vector<Array> acc;
        if (!last) {
          reductions = phases_.reductions[static_cast<size_t>(phase)];
          for (int r : reductions) {
            const KernelNode& n = node(r);
            acc.push_back(new_array(n.type, s_.vector));
            for (int v = 0; v < s_.vector; ++v)
              emit(ArrayStore{acc.back(), IndexExpr(v),
                              literal(n.type, identity_element(n.fn, n.type))});
          }
        }
        cuda_row_loop(phase, lane, [&] {
          for (size_t n = 0; n < reductions.size(); ++n) {
            const KernelNode& r = node(reductions[n]);
            Var before = array_load(acc[n], r.type, slot_);
            emit(ArrayStore{acc[n], slot_, combine(r.fn, before, var(r.args[0]))});
          }
        });
        end_phase();
        for (size_t n = 0; n < reductions.size(); ++n) {
          const KernelNode& r = node(reductions[n]);
          Var sum = array_load(acc[n], r.type, IndexExpr(0));
          for (int v = 1; v < s_.vector; ++v)
            sum = combine(r.fn, sum, array_load(acc[n], r.type, IndexExpr(v)));
          var(reductions[n]) = across_lanes(r, sum, t, shared[static_cast<size_t>(reductions[n])]);
        }
        row_nodes(phase + 1);
      }
      if (std::all_of(k_.stores.begin(), k_.stores.end(),
                      [](const KernelStore& st) { return st.axes & axis_bit(kAxisQ); }))
        return;
      Guard first = row_guard_;
      first.add(lane, 0, 1);
      where(first, [&] {
        for (const KernelStore& st : k_.stores)
          if (!(st.axes & axis_bit(kAxisQ))) emit(Store{st.buffer, translate(st.at), var(st.node)});
      });
    });
  }

  // The strips of one lane along the row.
  template <typename F>
  void cuda_row_loop(int phase, const IndexExpr& lane, F&& accumulate) {
    const auto& needed = phases_.needed[static_cast<size_t>(phase)];
    int64_t q = k_.extent[kAxisQ];
    bool whole = q % s_.vector == 0;  // strips never straddle the end
    bool last = phase == phases_.last;
    auto one_strip = [&](const IndexExpr& it) {
      IndexExpr base = (it * s_.lanes + lane) * s_.vector;
      Guard inside;
      inside.add(base, 0, q);
      in_strip(inside, [&] {
        axis_[kAxisQ] = base;
        std::vector<bool> loads = needed;
        for (size_t i = 0; i < loads.size(); ++i)
          if (made_[i] || !(k_.nodes[i].domain & axis_bit(kAxisQ))) loads[i] = false;
        load_vectors(loads, s_.vector);
        StripStores stores(*this, last && whole ? s_.vector : 1);
        auto element = [&](const IndexExpr& v) {
          slot_ = v;
          axis_[kAxisQ] = base + v;
          Guard in_row;
          if (!whole) in_row.add(axis_[kAxisQ], 0, q);
          where(in_row, [&] {
            row_element(phase, it * s_.vector + v);
            if (last)
              stores.element();
            else
              accumulate();
          });
        };
        if (s_.vector == 1)
          element(IndexExpr(0));
        else
          in_loop(Level::Vector, s_.vector, element);
        forget_vectors();
        axis_[kAxisQ] = base;
        if (last) stores.finish();
      });
    };
    in_versions(needed, IndexExpr(0), q, [&] {
      // Always a scope of its own: what a strip computes must not leak into the next phase.
      if (s_.iterations == 1) {
        Block inner;
        in_block(inner, [&] { one_strip(IndexExpr(0)); });
        for (Stmt& st : inner) block_->push_back(std::move(st));
      } else {
        in_loop(s_.unrolled ? Level::Vector : Level::Serial, s_.iterations, one_strip);
      }
    });
  }

  Var across_lanes(const KernelNode& r, Var sum, const IndexExpr& t, Array shared) {
    auto lane_reduce = [&](Var value, int64_t width) {
      if (width == 1) return value;
      Var v = new_var(r.type);
      emit(LaneReduce{v, r.fn, value, static_cast<int>(width)});
      return v;
    };
    int64_t warp = out_.target.warp;
    sum = lane_reduce(sum, std::min(s_.lanes, warp));
    int64_t warps = s_.lanes / warp;
    if (warps <= 1) return sum;
    Guard first;
    first.add(mod(t, warp), 0, 1);
    where(first, [&] { emit(ArrayStore{shared, floordiv(t, warp), sum}); });
    emit(Barrier{});
    return lane_reduce(array_load(shared, r.type, mod(t, warps)), warps);
  }

  void host_rows(const IndexExpr& b) {
    axis_[kAxisP] = b;
    int64_t q = k_.extent[kAxisQ], width = s_.chunk;
    alloc_kept(q);
    row_nodes(0);
    for (int phase = 0; phase <= phases_.last; ++phase) {
      bool last = phase == phases_.last;
      std::vector<int> reductions;
      std::vector<Array> acc;
      if (!last) reductions = phases_.reductions[static_cast<size_t>(phase)];
      if (!reductions.empty()) {
        for (int r : reductions) acc.push_back(new_array(node(r).type, width));
        in_loop(Level::Simd, width, [&](const IndexExpr& j) {
          for (size_t n = 0; n < reductions.size(); ++n) {
            const KernelNode& r = node(reductions[n]);
            emit(ArrayStore{acc[n], j, literal(r.type, identity_element(r.fn, r.type))});
          }
        });
      }
      auto element = [&](const IndexExpr& c, const IndexExpr& j) {
        axis_[kAxisQ] = c;
        row_element(phase, c);
        for (size_t n = 0; n < reductions.size(); ++n) {
          const KernelNode& r = node(reductions[n]);
          Var before = array_load(acc[n], r.type, j);
          emit(ArrayStore{acc[n], j, combine(r.fn, before, var(r.args[0]))});
        }
        if (!last) return;
        for (const KernelStore& st : k_.stores)
          if (st.axes & axis_bit(kAxisQ)) emit(Store{st.buffer, translate(st.at), var(st.node)});
      };
      if (last) {
        bool any = std::any_of(k_.stores.begin(), k_.stores.end(),
                               [](const KernelStore& st) { return st.axes & axis_bit(kAxisQ); });
        if (any) in_loop(Level::Simd, q, [&](const IndexExpr& c) { element(c, IndexExpr(0)); });
        break;
      }
      // Whole blocks of accumulators, then the tail: kept nodes of both are made once.
      if (q / width > 0)
        in_loop(Level::Serial, q / width, [&](const IndexExpr& it) {
          in_loop(Level::Simd, width, [&](const IndexExpr& j) { element(it * width + j, j); });
        });
      if (q % width > 0)
        in_loop(Level::Simd, q % width,
                [&](const IndexExpr& j) { element(IndexExpr(q / width * width) + j, j); });
      end_phase();
      for (size_t n = 0; n < reductions.size(); ++n)
        var(reductions[n]) = fold(node(reductions[n]), acc[n]);
      row_nodes(phase + 1);
    }
    for (const KernelStore& st : k_.stores)
      if (!(st.axes & axis_bit(kAxisQ))) emit(Store{st.buffer, translate(st.at), var(st.node)});
  }

  // The accumulators of a host row, in the order of ReduceOrder.
  Var fold(const KernelNode& r, Array acc) {
    int64_t v = s_.vector;
    if (v > 1)
      in_loop(Level::Serial, s_.lanes, [&](const IndexExpr& lane) {
        Var sum = array_load(acc, r.type, lane * v);
        for (int64_t i = 1; i < v; ++i)
          sum = combine(r.fn, sum, array_load(acc, r.type, lane * v + IndexExpr(i)));
        emit(ArrayStore{acc, lane * v, sum});
      });
    for (int64_t step = 1; step < s_.lanes; step *= 2)
      in_loop(Level::Serial, s_.lanes / (2 * step), [&](const IndexExpr& i) {
        IndexExpr at = i * (2 * step * v);
        Var a = array_load(acc, r.type, at);
        Var c = array_load(acc, r.type, at + IndexExpr(step * v));
        emit(ArrayStore{acc, at, combine(r.fn, a, c)});
      });
    return array_load(acc, r.type, IndexExpr(0));
  }

  std::vector<int> levels_;
  Phases phases_;
  std::vector<Array> kept_array_;
  std::vector<int> kept_set_, making_;
  std::vector<bool> made_;
};

}  // namespace

LoopProgram lower(const Kernel& kernel, const Target& target, bool gated) {
  if (!target.is_cuda() && !gated)
    if (std::optional<PlacedTerms> terms = placed_terms(kernel))
      return detail::lower_scatter(kernel, target, *terms);
  return kernel.kind == Kernel::Prefix ? detail::lower_prefix(kernel, target, gated)
                                       : Lowering(kernel, target, gated).run();
}

}  // namespace sinter
