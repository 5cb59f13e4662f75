#pragma once
// What command lines ask of numbers, with an answer for a person: CLI11's own names a range of 308
// digits.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace sinter::cli {

inline CLI::Validator above_zero() {
  return {[](const std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value > 0) return std::string();
            return fmt::format("expected a number above 0, got '{}'", text);
          },
          ""};
}
inline CLI::Validator zero_or_above() {
  return {[](const std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= 0) return std::string();
            return fmt::format("expected a number of at least 0, got '{}'", text);
          },
          ""};
}

}  // namespace sinter::cli
