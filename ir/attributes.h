#pragma once
// Attributes: constants of an op or a graph, known when the graph is built.
//
// An op's attributes are a plain struct; its `fields` table makes parsing, printing, comparison and
// documentation generic. AttrValue is the form in which they travel between text and struct.

#include <sinter/ir/diagnostic.h>
#include <sinter/ir/type.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <variant>
#include <vector>

namespace sinter {

using AttrValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<std::string>, TensorType>;

// As in the text: `true`, `3`, `0.5`, `"sum"`, `[0, 1]`, `["a", "b"]`. Integral doubles print with
// `.0`; `nan`, `inf` and `-inf` are words.
std::string to_string(const AttrValue& value);
// Bitwise for doubles, so that NaN equals itself.
bool same(const AttrValue& a, const AttrValue& b);

using AttrMap = std::map<std::string, AttrValue, std::less<>>;

// An axis of the op's first operand; negative counts from the end. Passes shift these generically.
struct Axis {
  int64_t value = -1;
};
struct Axes {
  std::vector<int64_t> value;
};
// An exact constant: an integer or a double.
struct Number {
  Number() = default;
  Number(double v) : value(v) {}
  Number(int v) : value(int64_t{v}) {}
  Number(int64_t v) : value(v) {}
  double as_double() const {
    if (auto* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
    return std::get<double>(value);
  }
  std::variant<int64_t, double> value = int64_t{0};
};
// The result's type, for ops whose annotation decides it (full, reshape, cast, …). Not printed
// among the attributes.
struct ResultType {
  TensorType type;
};

// One member of an attribute struct.
template <typename Struct, typename Member>
struct Field {
  std::string_view name;
  Member Struct::*member;
  std::string_view doc;
};
template <typename Struct, typename Member>
constexpr Field<Struct, Member> field(std::string_view name, Member Struct::*member,
                                      std::string_view doc = {}) {
  return {name, member, doc};
}

// The type-erased description of an attribute struct.
struct AttrSchema {
  struct Item {
    std::string_view name, doc;
    AttrValue default_value;
    bool is_result_type = false, is_axis = false;
    AttrValue (*get)(const void* attrs, size_t index) = nullptr;
    // False when the value's type does not fit.
    bool (*set)(void* attrs, size_t index, const AttrValue& value) = nullptr;
  };
  const std::type_info* type = nullptr;
  std::vector<Item> items;
  std::shared_ptr<void> (*make)() = nullptr;  // defaults
  std::shared_ptr<void> (*copy)(const void* attrs) = nullptr;

  AttrValue get(const void* attrs, size_t i) const { return items[i].get(attrs, i); }
  bool equal(const void* a, const void* b) const;
  // Null when the struct has no ResultType field.
  const TensorType* result_type(const void* attrs) const;
  // `{axis = 1, keep = true}` without braces; defaults and the result type left out.
  std::vector<std::string> print(const void* attrs) const;

  const TensorType* (*find_result_type)(const void*) = nullptr;
};

namespace detail {

template <typename M>
AttrValue to_attr(const M& m) {
  if constexpr (std::is_same_v<M, Axis> || std::is_same_v<M, Axes>)
    return m.value;
  else if constexpr (std::is_same_v<M, ResultType>)
    return m.type;
  else if constexpr (std::is_same_v<M, Number>)
    return std::visit([](auto v) { return AttrValue(v); }, m.value);
  else if constexpr (std::is_same_v<M, bool>)
    return m;
  else if constexpr (std::is_integral_v<M>)
    return static_cast<int64_t>(m);
  else
    return m;
}

template <typename M>
bool from_attr(M& m, const AttrValue& v) {
  if constexpr (std::is_same_v<M, Axis> || std::is_same_v<M, Axes>) {
    return from_attr(m.value, v);
  } else if constexpr (std::is_same_v<M, ResultType>) {
    return from_attr(m.type, v);
  } else if constexpr (std::is_same_v<M, Number>) {
    if (auto* i = std::get_if<int64_t>(&v)) return m = Number(*i), true;
    if (auto* d = std::get_if<double>(&v)) return m = Number(*d), true;
    return false;
  } else if constexpr (std::is_same_v<M, double>) {
    if (auto* i = std::get_if<int64_t>(&v)) return m = static_cast<double>(*i), true;
    if (auto* d = std::get_if<double>(&v)) return m = *d, true;
    return false;
  } else if constexpr (std::is_integral_v<M> && !std::is_same_v<M, bool>) {
    auto* i = std::get_if<int64_t>(&v);
    if (i == nullptr) return false;
    m = static_cast<M>(*i);
    return static_cast<int64_t>(m) == *i;
  } else {
    // `[]` reads as a list of integers.
    if constexpr (std::is_same_v<M, std::vector<std::string>>)
      if (auto* l = std::get_if<std::vector<int64_t>>(&v); l && l->empty()) return m.clear(), true;
    if (auto* same_type = std::get_if<M>(&v)) return m = *same_type, true;
    return false;
  }
}

template <typename S, size_t I>
AttrValue get_field(const void* attrs, size_t) {
  return to_attr(static_cast<const S*>(attrs)->*std::get<I>(S::fields()).member);
}
template <typename S, size_t I>
bool set_field(void* attrs, size_t, const AttrValue& v) {
  return from_attr(static_cast<S*>(attrs)->*std::get<I>(S::fields()).member, v);
}

template <typename S, typename M>
constexpr bool field_is(const Field<S, M>&, auto* sample) {
  return std::is_same_v<M, std::remove_pointer_t<decltype(sample)>>;
}

}  // namespace detail

// An attribute struct has `static constexpr auto fields() { return std::tuple{field(…), …}; }`.
struct NoAttrs {
  static constexpr std::tuple<> fields() { return {}; }
};

template <typename S>
AttrSchema make_schema() {
  AttrSchema schema;
  schema.type = &typeid(S);
  schema.make = []() -> std::shared_ptr<void> { return std::make_shared<S>(); };
  schema.copy = [](const void* p) -> std::shared_ptr<void> {
    return std::make_shared<S>(*static_cast<const S*>(p));
  };
  schema.find_result_type = [](const void*) -> const TensorType* { return nullptr; };
  [[maybe_unused]] S defaults{};
  constexpr auto count = std::tuple_size_v<decltype(S::fields())>;
  [&]<size_t... I>(std::index_sequence<I...>) {
    [[maybe_unused]] auto add = [&]<size_t K>(std::integral_constant<size_t, K>) {
      constexpr auto f = std::get<K>(S::fields());
      AttrSchema::Item item;
      item.name = f.name;
      item.doc = f.doc;
      item.is_result_type = detail::field_is(f, static_cast<ResultType*>(nullptr));
      item.is_axis = detail::field_is(f, static_cast<Axis*>(nullptr)) ||
                     detail::field_is(f, static_cast<Axes*>(nullptr));
      item.get = &detail::get_field<S, K>;
      item.set = &detail::set_field<S, K>;
      item.default_value = item.get(&defaults, K);
      if constexpr (detail::field_is(f, static_cast<ResultType*>(nullptr)))
        schema.find_result_type = [](const void* p) -> const TensorType* {
          return &(static_cast<const S*>(p)->*std::get<K>(S::fields()).member).type;
        };
      schema.items.push_back(item);
    };
    (add(std::integral_constant<size_t, I>{}), ...);
  }
  (std::make_index_sequence<count>{});
  return schema;
}

}  // namespace sinter
