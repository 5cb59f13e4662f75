#include <sinter/codegen/detail/print_c.h>
#include <sinter/codegen/detail/text.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/numeric.h>

#include <bit>
#include <cmath>
#include <limits>

namespace sinter::detail {
namespace {

std::string vars_text(const std::vector<Var>& args) {
  std::string out;
  for (Var v : args) out += fmt::format("{}v{}", out.empty() ? "" : ", ", v);
  return out;
}

std::string integer_literal(int64_t value, DType type) {
  if (type == DType::U32) return fmt::format("{}u", value);
  // The magnitude of the lowest value is no literal of its type.
  if (type == DType::I32 && value == std::numeric_limits<int32_t>::min())
    return "(-2147483647 - 1)";
  if (value == std::numeric_limits<int64_t>::min()) return "(-9223372036854775807ll - 1)";
  return fmt::format("{}{}", value, type == DType::I64 ? "ll" : "");
}

// An integer of an index expression.
std::string number(int64_t value) {
  const bool narrow =
      value <= std::numeric_limits<int32_t>::max() && value > std::numeric_limits<int32_t>::min();
  return integer_literal(value, narrow ? DType::I32 : DType::I64);
}

// Whether decimal text is exact: few digits, and a multiple of 1/1024.
bool short_decimal(double value) {
  return std::fabs(value) < 1e9 && value * 1024 == std::floor(value * 1024);
}

}  // namespace

std::string c_literal(double value, bool single) {
  const std::string_view suffix = single ? "f" : "";
  if (value != value || std::isinf(value) ||
      (value != 0 && std::fabs(value) < (single ? 0x1p-126 : 0x1p-1022))) {
    // No literal, or (subnormals) one that compilers may flush.
    if (single)
      return fmt::format("f32_from_bits(0x{:08x}u)",
                         std::bit_cast<uint32_t>(static_cast<float>(value)));
    return fmt::format("f64_from_bits(0x{:016x}ull)", std::bit_cast<uint64_t>(value));
  }
  if (short_decimal(value)) {
    std::string text = format_f64(value);
    if (text.find('.') == std::string::npos && text.find('e') == std::string::npos) text += ".0";
    return text + std::string(suffix);
  }
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  std::string digits = fmt::format("{:013x}", bits & 0xfffffffffffffULL);
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return fmt::format("{}0x1.{}p{}{}", value < 0 ? "-" : "", digits, exponent, suffix);
}

std::string CPrinter::literal(DType type, Cell value) {
  value = canonical(type, value);
  if (is_float(type)) return c_literal(value.f, type != DType::F64);
  if (type == DType::Bool) return value.i ? "true" : "false";
  return integer_literal(value.i, type);
}

std::string_view CPrinter::value_type(DType type) const {
  switch (type) {
    case DType::F64:
      return "double";
    case DType::F32:
    case DType::BF16:
    case DType::F16:
      return "float";
    case DType::I32:
      return "int32_t";
    case DType::I64:
      return "int64_t";
    case DType::U32:
      return "uint32_t";
    case DType::Bool:
      return "bool";
  }
  return "";
}

std::string_view CPrinter::storage_type(DType type) const {
  switch (type) {
    case DType::BF16:
      return "bf16";
    case DType::F16:
      return "f16";
    case DType::Bool:
      return "uint8_t";
    default:
      return value_type(type);
  }
}

std::string CPrinter::loaded(DType type, std::string_view element) const {
  switch (type) {
    case DType::BF16:
      return fmt::format("bf16_to_f32({})", element);
    case DType::F16:
      return fmt::format("f16_to_f32({})", element);
    case DType::Bool:
      return fmt::format("{} != 0", element);
    default:
      return std::string(element);
  }
}

std::string CPrinter::stored(DType type, std::string_view value) const {
  switch (type) {
    case DType::BF16:
      return fmt::format("exact_bf16({})", value);
    case DType::F16:
      return fmt::format("exact_f16({})", value);
    case DType::Bool:
      return fmt::format("uint8_t({})", value);
    default:
      return std::string(value);
  }
}

DType CPrinter::dtype(Var v) const {
  return p_.var_types.at(static_cast<size_t>(v));
}

std::string CPrinter::array_text(const Alloc& s) const {
  if (s.packed) return fmt::format("uint32_t a{}[{}]", s.array, (s.size + 1) / 2);
  const std::string_view type =
      s.space == Space::Shared ? storage_type(s.type) : value_type(s.type);
  return fmt::format("{} a{}[{}]", type, s.array, s.size);
}

std::string_view CPrinter::counter_type(int64_t extent) {
  return extent <= std::numeric_limits<int32_t>::max() ? "int" : "int64_t";
}

// Narrow when no sum of its terms, in any order, leaves 32 bits.
CPrinter::Width CPrinter::width_of(const IndexExpr& e) {
  constexpr double kEnd = 2147483648.0;
  double reach = std::fabs(static_cast<double>(e.constant()));
  for (const IndexExpr::Term& t : e.terms()) {
    const double atom = std::max(std::fabs(static_cast<double>(t.atom->low)),
                                 std::fabs(static_cast<double>(t.atom->high)));
    const double coefficient = std::fabs(static_cast<double>(t.coefficient));
    reach += coefficient * atom;
    if (coefficient >= kEnd || atom >= kEnd) return Width::Wide;
  }
  return reach < kEnd ? Width::Narrow : Width::Wide;
}

std::string CPrinter::atom(const IndexAtom& a, Width width) const {
  const std::string_view wanted = width == Width::Wide ? "int64_t" : "int";
  std::string text;
  bool fits = false;  // already of the wanted width
  if (a.kind == IndexAtom::Axis) {
    text = fmt::format("i{}", a.id);
    fits = counter_type(a.high + 1) == wanted;
  } else if (a.kind == IndexAtom::Gathered) {
    text = fmt::format("v{}", a.id);
    fits = dtype(a.id) == (width == Width::Wide ? DType::I64 : DType::I32);
  } else {
    const bool negative = a.of->low() < 0;
    const bool divides = a.kind == IndexAtom::Div;
    const std::string_view name =
        divides ? (negative ? "sn_floordiv" : "sn_div") : (negative ? "sn_floormod" : "sn_mod");
    Width inner = width_of(*a.of);
    if (a.divisor > std::numeric_limits<int32_t>::max()) inner = Width::Wide;
    text = fmt::format("{}({}, {})", name, index(*a.of, inner),
                       integer_literal(a.divisor, inner == Width::Wide ? DType::I64 : DType::I32));
    fits = inner == width;
  }
  return fits ? text : fmt::format("{}({})", wanted, text);
}

std::string CPrinter::index(const IndexExpr& e, Width width) const {
  std::string out;
  for (const IndexExpr::Term& t : e.terms()) {
    std::string text = atom(*t.atom, width);
    const int64_t magnitude = t.coefficient < 0 ? -t.coefficient : t.coefficient;
    if (magnitude != 1) text += fmt::format(" * {}", number(magnitude));
    if (out.empty())
      out = t.coefficient < 0 ? "-" + text : text;
    else
      out += (t.coefficient < 0 ? " - " : " + ") + text;
  }
  const int64_t c = e.constant();
  if (out.empty()) return width == Width::Wide ? fmt::format("int64_t({})", number(c)) : number(c);
  if (c > 0) out += fmt::format(" + {}", number(c));
  if (c < 0) out += fmt::format(" - {}", number(-c));
  return out;
}

std::string CPrinter::guard(const Guard& g) const {
  if (g.never) return "false";
  std::string out;
  for (const GuardTerm& t : g.terms) {
    const std::string e = index(t.e);
    const auto add = [&](std::string text) { out += (out.empty() ? "" : " && ") + text; };
    if (t.e.low() < t.low) add(fmt::format("{} >= {}", e, number(t.low)));
    if (t.e.high() >= t.high) add(fmt::format("{} < {}", e, number(t.high)));
  }
  return out.empty() ? "true" : out;
}

std::string CPrinter::cast(std::string_view value, DType from, DType to) const {
  if (from == to) return std::string(value);
  switch (to) {
    case DType::BF16:
    case DType::F16: {
      const std::string_view name = to == DType::BF16 ? "sn_round_bf16" : "sn_round_f16";
      // Integers round once, from a double that holds them, or all that the rounding depends on.
      if (from == DType::I64) return fmt::format("{}(sn_odd_double({}))", name, value);
      if (is_integer(from)) return fmt::format("{}(double({}))", name, value);
      return fmt::format("{}({}{})", name, from == DType::Bool ? "(float)" : "", value);
    }
    case DType::Bool:
      return fmt::format("{} != 0", value);
    case DType::I32:
    case DType::I64:
    case DType::U32:
      if (is_float(from)) return fmt::format("sn_to_{}({})", to_string(to), value);
      return fmt::format("{}({})", value_type(to), value);
    case DType::F64:
    case DType::F32:
      break;
  }
  // bf16 and f16 are floats already.
  if (value_type(from) == value_type(to)) return std::string(value);
  return fmt::format("{}({})", value_type(to), value);
}

std::string CPrinter::call(Fn fn, DType type, std::string_view a, std::string_view b,
                           std::string_view c) const {
  const Intrinsic& row = intrinsic(fn);
  const bool is_signed = type == DType::I32 || type == DType::I64;
  std::string text;
  if (is_signed && !row.gives_bool && row.integer != nullptr) {
    // Signed overflow is undefined in C: the prelude's functions wrap.
    text = fmt::format("sn_{}({}", row.name, a);
    if (row.arity > 1) text += fmt::format(", {}", b);
    text += ')';
  } else {
    text = fmt::format(fmt::runtime(row.text), a, b, c);
  }
  if (text.front() == '(' && text.back() == ')') text = text.substr(1, text.size() - 2);
  return text;
}

void CPrinter::line(std::string_view text) {
  out_.append(static_cast<size_t>(2 * depth_), ' ');
  out_ += text;
  out_ += '\n';
}

void CPrinter::open(std::string_view text) {
  line(text);
  ++depth_;
}

void CPrinter::close() {
  --depth_;
  line("}");
}

void CPrinter::define(Var v, std::string_view value, std::string_view comment) {
  line(fmt::format("const {} v{} = {};{}", type_of(v), v, value, comment));
}

bool CPrinter::outermost(const For& s) const {
  return !p_.body.empty() && &std::get<For>(p_.body.front().what) == &s;
}

void CPrinter::counted_loop(const For& s, std::string_view begin, std::string_view end) {
  open(fmt::format("for ({} i{} = {}; i{} < {}; ++i{}) {{", counter_type(s.extent), s.loop, begin,
                   s.loop, end, s.loop));
  block(s.body);
  close();
}

// Writes one statement.
struct CPrinter::Writer {
  CPrinter& c;

  const std::string& buffer(int b) const { return c.p_.buffers.at(static_cast<size_t>(b)).name; }
  DType element(int b) const { return c.p_.buffers.at(static_cast<size_t>(b)).type.dtype; }
  bool packed(Array a) const { return c.array_packed_.at(static_cast<size_t>(a)); }
  bool shared(Array a) const { return c.array_space_.at(static_cast<size_t>(a)) == Space::Shared; }

  void operator()(const For& s) const { c.loop(s); }
  void operator()(const If& s) const {
    c.open(fmt::format("if ({}) {{", c.guard(s.guard)));
    c.block(s.body);
    c.close();
    if (s.otherwise.empty()) return;
    c.open("else {");
    c.block(s.otherwise);
    c.close();
  }
  void operator()(const Let& s) const {
    if (s.fn == Fn::Literal) {
      const DType type = c.dtype(s.var);
      const std::string text = literal(type, s.literal);
      const bool plain = !is_float(type) || short_decimal(s.literal.f);
      c.define(s.var, text, plain ? "" : "  // " + format_f64(s.literal.f));
      return;
    }
    const DType from = c.dtype(s.args.at(0));
    if (s.fn == Fn::Cast) {
      c.define(s.var, c.cast(fmt::format("v{}", s.args[0]), from, c.dtype(s.var)));
      return;
    }
    std::string names[3];
    for (size_t i = 0; i < s.args.size() && i < 3; ++i) names[i] = fmt::format("v{}", s.args[i]);
    c.define(s.var,
             c.call(s.fn, s.fn == Fn::Select ? DType::Bool : from, names[0], names[1], names[2]));
  }
  void operator()(const LetIndex& s) const {
    const Width width = width_of(s.value);
    const std::string text = c.index(s.value, width);
    const DType from = width == Width::Wide ? DType::I64 : DType::I32;
    c.define(s.var, c.cast(text, from, c.dtype(s.var)));
  }
  void operator()(const LetGuard& s) const { c.define(s.var, c.guard(s.guard)); }
  void operator()(const Load& s) const {
    const std::string value =
        c.loaded(element(s.buffer), fmt::format("{}[{}]", buffer(s.buffer), c.index(s.at)));
    if (s.guard.always())
      c.define(s.var, value);
    else
      c.define(s.var, fmt::format("{} ? {} : {}", c.guard(s.guard), value,
                                  literal(c.dtype(s.var), s.otherwise)));
  }
  void operator()(const LoadVector& s) const {
    SINTER_CHECK(!shared(s.array), "{}: vector loads go to registers", c.p_.symbol);
    c.line(fmt::format("sn_load_vector<{}>(a{}, {} + ({}));", s.width, s.array, buffer(s.buffer),
                       c.index(s.at)));
  }
  void operator()(const Store& s) const {
    c.line(fmt::format("{}[{}] = {};", buffer(s.buffer), c.index(s.at),
                       c.stored(element(s.buffer), fmt::format("v{}", s.var))));
  }
  void operator()(const StoreVector& s) const {
    SINTER_CHECK(!shared(s.array), "{}: vector stores come from registers", c.p_.symbol);
    const DType type = c.array_type_.at(static_cast<size_t>(s.array));
    c.line(fmt::format("sn_store_vector<{}{}>({} + ({}), a{});", s.width,
                       type == element(s.buffer) ? "" : ", true", buffer(s.buffer), c.index(s.at),
                       s.array));
  }
  void operator()(const Alloc& s) const {
    const auto at = static_cast<size_t>(s.array);
    if (at >= c.array_space_.size()) {
      c.array_space_.resize(at + 1);
      c.array_type_.resize(at + 1);
      c.array_packed_.resize(at + 1);
    }
    c.array_packed_[at] = s.packed;
    c.array_space_[at] = s.space;
    c.array_type_[at] = s.type;
    c.alloc(s);
  }
  void operator()(const ArrayLoad& s) const {
    if (packed(s.array)) {
      c.define(s.var, fmt::format("sn_packed<{}>::get(a{}, {})", c.storage_type(c.dtype(s.var)),
                                  s.array, c.index(s.at)));
      return;
    }
    const std::string text = fmt::format("a{}[{}]", s.array, c.index(s.at));
    c.define(s.var, shared(s.array) ? c.loaded(c.dtype(s.var), text) : text);
  }
  void operator()(const ArrayStore& s) const {
    const std::string value = fmt::format("v{}", s.var);
    if (packed(s.array)) {
      c.line(fmt::format("sn_packed<{}>::put(a{}, {}, {});", c.storage_type(c.dtype(s.var)),
                         s.array, c.index(s.at), value));
      return;
    }
    c.line(fmt::format("a{}[{}] = {};", s.array, c.index(s.at),
                       shared(s.array) ? c.stored(c.dtype(s.var), value) : value));
  }
  void operator()(const LaneReduce& s) const { c.lane_reduce(s); }
  void operator()(const Barrier&) const { c.barrier(); }
  void operator()(const Random& s) const {
    c.define(s.var,
             fmt::format("sn_random_{}({}, {}, {}, {})", random_name(s.kind), c.random_source(s),
                         vars_text(s.args), c.site_text(s.site), c.index(s.element, Width::Wide)));
  }
  void operator()(const Check& s) const {
    const std::string ignored =
        s.ignore ? fmt::format("v{} == {}", s.value, integer_literal(*s.ignore, c.dtype(s.value)))
                 : "false";
    c.define(s.var,
             fmt::format("sn_check(faults + {}, v{}, {}, {}, {}, {})", s.fault, s.value,
                         integer_literal(s.low, DType::I64), integer_literal(s.high, DType::I64),
                         ignored, c.index(s.position, Width::Wide)));
  }
};

void CPrinter::block(const Block& body) {
  for (const Stmt& stmt : body) std::visit(Writer{*this}, stmt.what);
}

void CPrinter::print() {
  SINTER_CHECK(p_.body.size() == 1 && std::holds_alternative<For>(p_.body.front().what),
               "{}: a program is one loop over blocks", p_.symbol);
  head();
  block(p_.body);
  close();
}

}  // namespace sinter::detail
