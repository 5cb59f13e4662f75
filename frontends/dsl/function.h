#pragma once
// A function of values, as the derivatives, vmap and scan take it: a C++ callable that builds ops.
//
// It may take each argument as a Value, or all of them as a `const std::vector<Value>&`, and return
// a Value or a std::vector<Value>. What it uses besides its arguments (weights, inputs of the
// graph) it captures as any C++ lambda does.

#include <sinter/ir/graph.h>

#include <concepts>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace sinter {

namespace detail {

inline std::vector<Value> as_list(Value v) {
  return {v};
}
inline std::vector<Value> as_list(std::vector<Value> v) {
  return v;
}

template <size_t>
using ValueAt = Value;
template <typename F, size_t... I>
constexpr bool takes_values(std::index_sequence<I...>) {
  return std::is_invocable_v<const F&, ValueAt<I>...>;
}
inline constexpr size_t kMaxArguments = 8;
// How many Values F takes, or kMaxArguments + 1.
template <typename F, size_t N = 1>
constexpr size_t count_arguments() {
  if constexpr (N > kMaxArguments)
    return N;
  else if constexpr (takes_values<F>(std::make_index_sequence<N>()))
    return N;
  else
    return count_arguments<F, N + 1>();
}

template <typename F>
concept TakesList = std::is_invocable_v < const F&,
        const std::vector<Value>
& > ;
template <typename F>
concept TakesValues = count_arguments<F>()
<= kMaxArguments;

}  // namespace detail

class Function {
 public:
  template <typename F>
  requires(!std::same_as<std::remove_cvref_t<F>, Function> &&
           (detail::TakesValues<std::remove_cvref_t<F>> ||
            detail::TakesList<std::remove_cvref_t<F>>)) Function(F f) {
    if constexpr (detail::TakesValues<F>) {
      arguments_ = detail::count_arguments<F>();
      call_ = [f = std::move(f)](const std::vector<Value>& v) {
        return [&]<size_t... I>(std::index_sequence<I...>) {
          return detail::as_list(f(v[I]...));
        }
        (std::make_index_sequence<detail::count_arguments<F>()>());
      };
    } else {
      call_ = [f = std::move(f)](const std::vector<Value>& v) { return detail::as_list(f(v)); };
    }
  }

  // Calls it; another number of arguments than it takes is refused, `what` in front.
  std::vector<Value> operator()(std::string_view what, const std::vector<Value>& arguments,
                                const SourceLocation& loc) const;

 private:
  size_t arguments_ = 0;  // 0: any number
  std::function<std::vector<Value>(const std::vector<Value>&)> call_;
};

}  // namespace sinter
