#pragma once
// Errors and source locations.
//
// A user's mistake is a Diagnostic, thrown as sinter::Error at the public boundary. A broken
// invariant of sinter itself goes through SINTER_CHECK (InternalError). A failing driver, compiler
// or library call is a DeviceError. The library never aborts, exits or prints on its own.

#include <fmt/format.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sinter {

// A place in the user's program or in a .sir file. `line` 0 means unknown, `column` 0 means none.
struct SourceLocation {
  std::shared_ptr<const std::string> file;  // shared by all ops of one file; null when unknown
  int line = 0;
  int column = 0;

  // The caller's place, when used as a default argument.
  static SourceLocation here(const char* file = __builtin_FILE(), int line = __builtin_LINE());

  bool known() const { return file != nullptr && line > 0; }
  std::string_view file_name() const { return file ? std::string_view(*file) : std::string_view(); }
  // "model.cpp:12" or "model.sir:12:8"; "<unknown>" when unknown.
  std::string str() const;
  friend bool operator==(const SourceLocation& a, const SourceLocation& b) {
    return a.line == b.line && a.column == b.column && a.file_name() == b.file_name();
  }
};

// One message about the user's program: `FILE:LINE:COL: error: MESSAGE`.
struct Diagnostic {
  SourceLocation location;
  std::string message;
  std::string str() const;
};

// A user's mistake.
class Error : public std::runtime_error {
 public:
  explicit Error(Diagnostic diagnostic)
      : std::runtime_error(diagnostic.str()), diagnostic_(std::move(diagnostic)) {}
  explicit Error(std::string message) : Error(Diagnostic{{}, std::move(message)}) {}
  const Diagnostic& diagnostic() const { return diagnostic_; }

 private:
  Diagnostic diagnostic_;
};

// A failing call of the CUDA driver, NVRTC, cuBLAS, the host compiler or the dynamic loader.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken invariant of sinter itself: always a bug in sinter.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// A value or the diagnostic that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Diagnostic diagnostic) : state_(std::in_place_index<1>, std::move(diagnostic)) {}
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Diagnostic& error() const { return std::get<1>(state_); }
  // The value, or throws Error.
  T take() && {
    if (!ok()) throw Error(error());
    return std::get<0>(std::move(state_));
  }

 private:
  std::variant<T, Diagnostic> state_;
};

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}

}  // namespace sinter

// Throws InternalError when `condition` is false; the message (fmt syntax) is built only then.
#define SINTER_CHECK(condition, ...)                                                              \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      ::sinter::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
