#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sinter/ir/attributes.h>
#include <sinter/ir/numeric.h>

#include <bit>

namespace sinter {
namespace {

std::string quote(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "\"";
}

// A double must not read back as an integer.
std::string double_text(double v) {
  std::string s = format_f64(v);
  return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;
}

struct Printer {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return double_text(v); }
  std::string operator()(const std::string& v) const { return quote(v); }
  std::string operator()(const std::vector<int64_t>& v) const {
    return fmt::format("[{}]", fmt::join(v, ", "));
  }
  std::string operator()(const std::vector<std::string>& v) const {
    std::vector<std::string> quoted;
    for (const std::string& s : v) quoted.push_back(quote(s));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
  std::string operator()(const TensorType& v) const { return v.str(); }
};

}  // namespace

std::string to_string(const AttrValue& value) {
  return std::visit(Printer{}, value);
}

bool same(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (auto* x = std::get_if<double>(&a))
    return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(std::get<double>(b));
  return a == b;
}

bool AttrSchema::equal(const void* a, const void* b) const {
  if (a == b) return true;
  for (size_t i = 0; i < items.size(); ++i)
    if (!same(get(a, i), get(b, i))) return false;
  return true;
}

const TensorType* AttrSchema::result_type(const void* attrs) const {
  return find_result_type(attrs);
}

std::vector<std::string> AttrSchema::print(const void* attrs) const {
  std::vector<std::string> out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].is_result_type) continue;
    AttrValue v = get(attrs, i);
    if (!same(v, items[i].default_value))
      out.push_back(fmt::format("{} = {}", items[i].name, to_string(v)));
  }
  return out;
}

}  // namespace sinter
