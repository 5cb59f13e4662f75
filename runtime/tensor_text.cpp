#include <sinter/runtime/tensor_text.h>

#include <sinter/ir/diagnostic.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>

namespace sinter {
namespace {

template <typename Int>
std::optional<Int> parse_integer(std::string_view text, int base = 10) {
  Int value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads nested lists into a tensor, element by element in row-major order.
class ListReader {
 public:
  ListReader(std::string_view what, const TensorType& type, std::string_view text)
      : what_(what), text_(text), result_(Tensor::uninitialized(type)) {}

  Tensor read() {
    list(0);
    skip_space();
    if (position_ != text_.size()) fail("text after the value");
    return result_;
  }

 private:
  [[noreturn]] void fail(std::string_view message) const {
    throw Error(fmt::format("{}: {} at column {}, in a value of type {}", what_, message,
                            position_ + 1, result_.type().str()));
  }

  void skip_space() {
    while (position_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos)
      ++position_;
  }

  bool accept(char c) {
    skip_space();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void list(size_t depth) {
    const Shape& shape = result_.shape();
    if (depth == shape.size()) return item();
    if (!accept('[')) fail("expected '['");
    int64_t count = 0;
    if (!accept(']')) {
      do {
        if (count == shape[depth]) fail_count(depth, "more");
        list(depth + 1);
        ++count;
      } while (accept(','));
      if (!accept(']')) fail("expected ',' or ']'");
    }
    if (count < shape[depth]) fail_count(depth, std::to_string(count));
  }

  [[noreturn]] void fail_count(size_t depth, std::string_view given) const {
    fail(fmt::format("expected {} items in axis {}, given {}", result_.shape()[depth], depth,
                     given));
  }

  void item() {
    skip_space();
    size_t end = text_.find_first_of(",] \t\r\n", position_);
    if (end == std::string_view::npos) end = text_.size();
    const std::string_view text = text_.substr(position_, end - position_);
    if (text.starts_with('[')) fail("expected a number, not a list");
    if (!store(text)) fail(fmt::format("'{}' is not a {}", text, to_string(result_.dtype())));
    position_ = end;
    ++index_;
  }

  bool store(std::string_view text) {
    const DType type = result_.dtype();
    void* data = result_.data();
    if (text.starts_with("0x")) {
      auto bits = parse_integer<uint64_t>(text.substr(2), 16);
      const auto width = static_cast<unsigned>(size_of(type) * 8);
      if (!bits || (width < 64 && *bits >> width)) return false;
      if (type == DType::Bool && *bits > 1) return false;
      store_bits(type, data, index_, *bits);
      return true;
    }
    if (type == DType::Bool) {
      if (text != "true" && text != "false" && text != "0" && text != "1") return false;
      store_from_int64(type, data, index_, text == "true" || text == "1");
      return true;
    }
    if (type == DType::F32) {  // read as f32 directly: by way of f64 it would round twice
      auto value = parse_f32(text);
      if (value) result_.as<float>()[index_] = *value;
      return value.has_value();
    }
    if (is_float(type)) {
      auto value = parse_f64(text);
      if (value) store_from_double(type, data, index_, *value);
      return value.has_value();
    }
    auto value = parse_integer<int64_t>(text);
    if (!value) return false;
    store_from_int64(type, data, index_, *value);
    return load_as_int64(type, data, index_) == *value;
  }

  std::string_view what_;
  std::string_view text_;
  Tensor result_;
  size_t position_ = 0;
  int64_t index_ = 0;
};

Tensor parse_fill(std::string_view what, const TensorType& type, std::string_view text) {
  const size_t colon = text.find(':');
  auto s = parse_integer<int64_t>(text.substr(0, colon));
  std::optional<int64_t> modulus;
  if (colon != std::string_view::npos) modulus = parse_integer<int64_t>(text.substr(colon + 1));
  if (!s || (colon != std::string_view::npos && !modulus))
    throw Error(fmt::format("{}: malformed 'fill:{}', expected fill:S or fill:S:M", what, text));
  try {
    return modulus ? fill_mod(type, *s, *modulus) : fill(type, *s);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", what, e.diagnostic().message));
  }
}

Tensor parse_file(std::string_view what, const TensorType& type, std::string_view text,
                  TensorLoader loader) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size())
    throw Error(fmt::format("{}: malformed '@{}', expected @FILE.safetensors:NAME", what, text));
  if (!loader) throw Error(fmt::format("{}: values from files are not taken here", what));
  Tensor value = loader(std::string(text.substr(0, colon)), std::string(text.substr(colon + 1)));
  require_type(what, type, value.type());
  return value;
}

std::string format_element(const Tensor& value, int64_t i, ValueFormat format) {
  const DType type = value.dtype();
  if (format == ValueFormat::Hex)
    return fmt::format("0x{:0{}x}", load_bits(type, value.data(), i), size_of(type) * 2);
  if (type == DType::Bool) return value.at(i) != 0 ? "true" : "false";
  if (!is_float(type)) return fmt::format("{}", load_as_int64(type, value.data(), i));
  std::string text =
      type == DType::F64 ? format_f64(value.at(i)) : format_f32(static_cast<float>(value.at(i)));
  if (format == ValueFormat::Json && !std::isfinite(value.at(i))) return '"' + text + '"';
  return text;
}

void append_lists(std::string& out, const Tensor& value, ValueFormat format, size_t depth,
                  int64_t& index) {
  if (depth == value.shape().size()) {
    out += format_element(value, index++, format);
    return;
  }
  out += '[';
  for (int64_t i = 0; i < value.shape()[depth]; ++i) {
    if (i > 0) out += ", ";
    append_lists(out, value, format, depth + 1, index);
  }
  out += ']';
}

}  // namespace

std::optional<ValueFormat> parse_value_format(std::string_view text) {
  if (text == "text") return ValueFormat::Text;
  if (text == "json") return ValueFormat::Json;
  if (text == "hex") return ValueFormat::Hex;
  return std::nullopt;
}

Tensor parse_value(std::string_view what, const TensorType& type, std::string_view text,
                   TensorLoader loader) {
  if (text.starts_with("fill:")) return parse_fill(what, type, text.substr(5));
  if (text.starts_with('@')) return parse_file(what, type, text.substr(1), loader);
  return ListReader(what, type, text).read();
}

std::string format_value(const Tensor& value, ValueFormat format) {
  std::string out;
  int64_t index = 0;
  if (format != ValueFormat::Json) {
    append_lists(out, value, format, 0, index);
    return out;
  }
  out = fmt::format("{{\"type\": \"{}\", \"data\": [", value.type().str());
  for (; index < value.size(); ++index) {
    if (index > 0) out += ", ";
    out += format_element(value, index, format);
  }
  return out + "]}";
}

std::string format_values(std::span<const std::pair<std::string, Tensor>> values,
                          ValueFormat format) {
  std::string out;
  if (format != ValueFormat::Json) {
    for (const auto& [name, value] : values)
      out += fmt::format("{}: {} = {}\n", name, value.type().str(), format_value(value, format));
    return out;
  }
  for (const auto& [name, value] : values)
    out += fmt::format("{}{}: {}", out.empty() ? "{" : ", ", nlohmann::json(name).dump(),
                       format_value(value, format));
  return out.empty() ? "{}\n" : out + "}\n";
}

}  // namespace sinter
