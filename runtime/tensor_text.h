#pragma once
// Tensor values as text: the VALUE syntax of sinter-run, and its three output formats.
//
// VALUE is one of
//   nested lists  [[1, 2.5], [nan, -inf]], the nesting being the shape; a scalar stands bare. An
//                 item is a number, nan, inf, -inf, true, false, or 0x… : the bits of the element.
//                 An extent 0 is an empty list.
//   fill:S        the rule F(shape, S), for float types
//   fill:S:M      its mod-97 value modulo M
//   @FILE:NAME    a tensor of a safetensors file, of exactly the wanted type
// Numbers do not follow the locale. A float item is rounded once to the type; an integer item must
// fit it.

#include <sinter/runtime/tensor.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace sinter {

enum class ValueFormat { Text, Json, Hex };
// "text", "json", "hex".
std::optional<ValueFormat> parse_value_format(std::string_view text);

// Reads tensor `name` of a file, for VALUEs that begin with '@'. The layer that knows file formats
// passes it in.
using TensorLoader = Tensor (*)(const std::string& path, const std::string& name);

// `text` as a tensor of `type`. `what` ("input 'x'") begins every refusal (Error).
Tensor parse_value(std::string_view what, const TensorType& type, std::string_view text,
                   TensorLoader loader = nullptr);

// One tensor. Text: nested lists, floats in their shortest round-trip form. Hex: the same lists of
// bit patterns. Json: {"type": "f32[2]", "data": [1.5, "nan"]} with the elements flat, in
// row-major order; non-finite values are strings, bool is true or false. Text and Hex read back
// through parse_value with the same bits, except that Text drops a NaN's sign and payload.
std::string format_value(const Tensor& value, ValueFormat format);
// Text and Hex: a line `NAME: TYPE = VALUE` each. Json: one object of them all, in order.
std::string format_values(std::span<const std::pair<std::string, Tensor>> values,
                          ValueFormat format);

}  // namespace sinter
