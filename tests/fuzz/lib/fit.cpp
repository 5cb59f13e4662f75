#include <sinter/tests/fuzz/lib/fit.h>
#include <sinter/tests/ops/samples.h>

#include <algorithm>
#include <map>

namespace sinter::test {
namespace {

using List = std::vector<int64_t>;

// A consistent replacement of the sample's extents.
class Extents {
 public:
  Extents(Rng& rng, const List& pool) : rng_(rng), pool_(pool) {}
  void set(int64_t from, int64_t to) { map_.emplace(from, to); }
  int64_t of(int64_t extent) {
    auto found = map_.find(extent);
    if (found != map_.end()) return found->second;
    // 1 and 0 mean something to most ops.
    int64_t to = extent <= 1 && rng_.chance(0.8) ? extent : rng_.pick(pool_);
    map_.emplace(extent, to);
    return to;
  }
  Shape of(const Shape& shape) {
    Shape out;
    for (int64_t e : shape) out.push_back(of(e));
    return out;
  }
  const std::map<int64_t, int64_t>& map() const { return map_; }

 private:
  Rng& rng_;
  const List& pool_;
  std::map<int64_t, int64_t> map_;
};

Shape random_factors(Rng& rng, int64_t elements) {
  Shape shape;
  for (int i = 0; i < 3 && elements > 1; ++i) {
    List divisors;
    for (int64_t d = 1; d <= elements; ++d)
      if (elements % d == 0) divisors.push_back(d);
    shape.push_back(rng.pick(divisors));
    elements /= shape.back();
  }
  if (elements != 1 || rng.chance(0.3)) shape.push_back(elements);
  return shape;
}

Shape broadcast_of(Rng& rng, Shape shape, const List& extents) {
  for (int64_t& e : shape)
    if (e == 1 && rng.chance(0.7)) e = rng.pick(extents);
  while (shape.size() < 4 && rng.chance(0.4)) shape.insert(shape.begin(), rng.pick(extents));
  return shape;
}

// A type for an op whose annotation decides it.
TensorType annotated(Rng& rng, const Fitting& fitting, TensorType mapped, const List& extents) {
  if (fitting.operands.empty() || !fitting.operands[0]) return mapped;
  const Shape& first = fitting.operands[0]->shape;
  switch (rng.below(4)) {
    case 0:
      return mapped;
    case 1:
      mapped.shape = first;
      return mapped;
    case 2:
      mapped.shape = random_factors(rng, num_elements(first));
      return mapped;
    default:
      mapped.shape = broadcast_of(rng, first, extents);
      return mapped;
  }
}

AttrValue random_axes(Rng& rng, const AttrValue& old, int64_t rank) {
  if (rank == 0) return old;
  if (std::holds_alternative<int64_t>(old)) return rng.between(-rank, rank - 1);
  List all;
  for (int64_t i = 0; i < rank; ++i) all.push_back(rng.chance(0.2) ? i - rank : i);
  for (size_t i = all.size(); i-- > 1;)
    std::swap(all[i], all[static_cast<size_t>(rng.below(static_cast<int64_t>(i) + 1))]);
  if (rng.chance(0.6)) all.resize(static_cast<size_t>(rng.between(1, rank)));
  return all;
}

// Numbers per axis: starts, limits, widths, strides.
AttrValue random_list(Rng& rng, const Shape& shape) {
  List out;
  for (int64_t extent : shape) {
    switch (rng.below(4)) {
      case 0:
        out.push_back(extent);
        break;
      case 1:
        out.push_back(rng.between(0, extent));
        break;
      default:
        out.push_back(rng.below(3));
    }
  }
  return out;
}

void change_attrs(Rng& rng, const OpDef& def, Fitting& fitting, const Extents& extents, bool wild) {
  Shape shape;
  if (!fitting.operands.empty() && fitting.operands[0]) shape = fitting.operands[0]->shape;
  auto rank = static_cast<int64_t>(shape.size());
  for (size_t k = 0; k < def.schema.items.size(); ++k) {
    const auto& item = def.schema.items[k];
    if (item.is_result_type) continue;
    AttrValue value = def.schema.get(fitting.attrs.get(), k);
    if (item.name == "site") {  // what tells the random ops of a module apart
      item.set(fitting.attrs.get(), k, rng.below(1 << 20));
      continue;
    }
    if (item.is_axis) {
      if (wild) value = random_axes(rng, value, rank);
    } else if (auto* flag = std::get_if<bool>(&value)) {
      if (wild) *flag = rng.chance(0.5);
    } else if (auto* list = std::get_if<List>(&value)) {
      if (wild && rng.chance(0.8)) {
        if (!list->empty() || rng.chance(0.3)) value = random_list(rng, shape);
      } else {
        for (int64_t& n : *list)
          if (auto found = extents.map().find(n); found != extents.map().end()) n = found->second;
      }
    } else if (auto* number = std::get_if<int64_t>(&value)) {
      // An extent, perhaps: `vocab`, `depth`.
      auto found = extents.map().find(*number);
      if (found != extents.map().end() && rng.chance(0.5)) *number = found->second;
    }
    item.set(fitting.attrs.get(), k, value);
  }
}

void set_result(const OpDef& def, Fitting& fitting, const TensorType& type) {
  for (size_t k = 0; k < def.schema.items.size(); ++k)
    if (def.schema.items[k].is_result_type) def.schema.items[k].set(fitting.attrs.get(), k, type);
}

// Seed, step and offset of random numbers have one type each, whatever the extents are.
bool is_of_stream(const OpDef& def, size_t i) {
  std::string_view name = def.operands[std::min(i, def.operands.size() - 1)].name;
  return name == "seed" || name == "step" || name == "offset";
}

bool is_absent(const Sample& sample, size_t i) {
  return std::find(sample.absent.begin(), sample.absent.end(), i) != sample.absent.end();
}

}  // namespace

std::optional<Fitting> fit(Rng& rng, const OpDef& def, const Sample& sample, size_t anchor,
                           const TensorType& type, const List& extents) {
  const TensorType& model = sample.operands[anchor];
  bool floats = is_float(model.dtype);
  if (floats ? !is_float(type.dtype) : model.dtype != type.dtype) return std::nullopt;
  auto dtype = [&](DType t) { return floats && t == model.dtype ? type.dtype : t; };

  Fitting fitting;
  fitting.attrs = trial_attrs(def, sample);
  Extents map(rng, extents);
  if (def.kind == OpKind::Pointwise) {
    for (size_t i = 0; i < sample.operands.size(); ++i)
      fitting.operands.push_back(TensorType{dtype(sample.operands[i].dtype), type.shape});
    change_attrs(rng, def, fitting, map, false);
    if (sample.result) {
      // What casts: most often to a type that is about already.
      DType to = rng.chance(0.5) ? sample.result->dtype : DType::F32;
      set_result(def, fitting, {to, type.shape});
    }
    return fitting;
  }
  if (type.rank() < model.rank()) return std::nullopt;
  auto more = static_cast<size_t>(type.rank() - model.rank());
  for (size_t i = 0; i < model.shape.size(); ++i) map.set(model.shape[i], type.shape[more + i]);
  bool same_rank_only = rng.chance(0.5);
  auto mapped = [&](const TensorType& t) {
    TensorType out{dtype(t.dtype), map.of(t.shape)};
    bool leading = same_rank_only ? t.rank() == model.rank() : t.rank() > 0;
    if (leading)
      out.shape.insert(out.shape.begin(), type.shape.begin(),
                       type.shape.begin() + static_cast<int64_t>(more));
    return out;
  };
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    if (is_absent(sample, i))
      fitting.operands.emplace_back();
    else if (is_of_stream(def, i))
      fitting.operands.push_back(sample.operands[i]);
    else
      fitting.operands.push_back(i == anchor ? type : mapped(sample.operands[i]));
  }
  change_attrs(rng, def, fitting, map, more > 0 || rng.chance(0.6));
  if (sample.result)
    set_result(def, fitting, annotated(rng, fitting, mapped(*sample.result), extents));
  return fitting;
}

Fitting fit(Rng& rng, const OpDef& def, const Sample& sample, const List& extents) {
  Fitting fitting;
  fitting.attrs = trial_attrs(def, sample);
  Extents map(rng, extents);
  bool keep = rng.chance(0.3);
  auto mapped = [&](const TensorType& t) {
    return keep ? t : TensorType{t.dtype, map.of(t.shape)};
  };
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    const TensorType& type = sample.operands[i];
    if (is_absent(sample, i))
      fitting.operands.emplace_back();
    else
      fitting.operands.emplace_back(is_of_stream(def, i) ? type : mapped(type));
  }
  if (sample.result) set_result(def, fitting, mapped(*sample.result));
  change_attrs(rng, def, fitting, map, !keep && rng.chance(0.3));
  return fitting;
}

}  // namespace sinter::test
