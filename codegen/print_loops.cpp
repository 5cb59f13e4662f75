#include <sinter/codegen/detail/text.h>
#include <sinter/codegen/loops.h>
#include <sinter/ir/attributes.h>
#include <sinter/ir/diagnostic.h>

namespace sinter {

std::string_view to_string(Level level) {
  switch (level) {
    case Level::Grid:
      return "grid";
    case Level::Lane:
      return "lane";
    case Level::Vector:
      return "vector";
    case Level::Serial:
      return "serial";
    case Level::Cores:
      return "cores";
    case Level::Simd:
      return "simd";
  }
  return "";
}

namespace detail {

std::string loop_atom_name(const IndexAtom& leaf) {
  return fmt::format("{}{}", leaf.kind == IndexAtom::Axis ? 'i' : 'v', leaf.id);
}

std::string cell_text(DType type, Cell value) {
  if (is_float(type)) return to_string(AttrValue(value.f));
  if (type == DType::Bool) return value.i ? "true" : "false";
  return fmt::format("{}", value.i);
}

std::string guard_text(const Guard& guard, const AtomName& name) {
  if (guard.never) return "false";
  std::string out;
  for (const GuardTerm& t : guard.terms) {
    const bool low = t.e.low() < t.low, high = t.e.high() >= t.high;
    if (!low && !high) continue;
    if (!out.empty()) out += " and ";
    if (low) out += fmt::format("{} <= ", t.low);
    out += t.e.str(name);
    if (high) out += fmt::format(" < {}", t.high);
  }
  return out.empty() ? "true" : out;
}

std::string_view random_name(RandomKind kind) {
  switch (kind) {
    case RandomKind::Half:
      return "half";
    case RandomKind::Uniform:
      return "uniform";
    case RandomKind::Normal:
      return "normal";
  }
  return "";
}

namespace {

// Text of one statement; the visitor's overloads are in the order of Stmt's alternatives.
struct StatementText {
  const LoopProgram& p;

  static std::string index(const IndexExpr& e) { return e.str(loop_atom_name); }
  static std::string guard(const Guard& g) { return guard_text(g, loop_atom_name); }
  DType type(Var v) const { return p.var_types.at(static_cast<size_t>(v)); }
  std::string typed(Var v) const { return std::string(to_string(type(v))); }
  const std::string& buffer(int b) const { return p.buffers.at(static_cast<size_t>(b)).name; }
  static std::string vars(const std::vector<Var>& args) {
    std::string out;
    for (Var v : args) out += fmt::format("{}v{}", out.empty() ? "" : ", ", v);
    return out;
  }

  std::string operator()(const For& s) const {
    return fmt::format("for {} i{} in 0..{}", to_string(s.level), s.loop, s.extent);
  }
  std::string operator()(const If& s) const { return "if " + guard(s.guard); }
  std::string operator()(const Let& s) const {
    const std::string what = s.fn == Fn::Literal
                                 ? cell_text(type(s.var), s.literal)
                                 : fmt::format("{} {}", intrinsic(s.fn).name, vars(s.args));
    return fmt::format("let v{} = {} : {}", s.var, what, typed(s.var));
  }
  std::string operator()(const LetIndex& s) const {
    return fmt::format("let v{} = index {} : {}", s.var, index(s.value), typed(s.var));
  }
  std::string operator()(const LetGuard& s) const {
    return fmt::format("let v{} = guard {} : {}", s.var, guard(s.guard), typed(s.var));
  }
  std::string operator()(const Load& s) const {
    std::string condition;
    if (!s.guard.always())
      condition =
          fmt::format(" if {} else {}", guard(s.guard), cell_text(type(s.var), s.otherwise));
    return fmt::format("let v{} = load {}[{}]{} : {}", s.var, buffer(s.buffer), index(s.at),
                       condition, typed(s.var));
  }
  std::string operator()(const LoadVector& s) const {
    return fmt::format("a{} = load vector {} {}[{}]", s.array, s.width, buffer(s.buffer),
                       index(s.at));
  }
  std::string operator()(const Store& s) const {
    return fmt::format("store {}[{}] = v{}", buffer(s.buffer), index(s.at), s.var);
  }
  std::string operator()(const StoreVector& s) const {
    return fmt::format("store vector {} {}[{}] = a{}", s.width, buffer(s.buffer), index(s.at),
                       s.array);
  }
  std::string operator()(const Alloc& s) const {
    return fmt::format("alloc {} a{} : {}[{}]",
                       s.space == Space::Shared ? "shared"
                       : s.packed               ? "pairs"
                                                : "registers",
                       s.array, to_string(s.type), s.size);
  }
  std::string operator()(const ArrayLoad& s) const {
    return fmt::format("let v{} = a{}[{}] : {}", s.var, s.array, index(s.at), typed(s.var));
  }
  std::string operator()(const ArrayStore& s) const {
    return fmt::format("a{}[{}] = v{}", s.array, index(s.at), s.var);
  }
  std::string operator()(const LaneReduce& s) const {
    return fmt::format("let v{} = lane_reduce {} v{} {{width = {}}} : {}", s.var,
                       intrinsic(s.combine).name, s.value, s.width, typed(s.var));
  }
  std::string operator()(const Barrier&) const { return "barrier"; }
  std::string operator()(const Random& s) const {
    return fmt::format("let v{} = random {} {} {{site = site{}}} at {} : {}", s.var,
                       random_name(s.kind), vars(s.args), s.site, index(s.element), typed(s.var));
  }
  std::string operator()(const Check& s) const {
    const std::string ignore = s.ignore ? fmt::format("ignore = {}, ", *s.ignore) : "";
    return fmt::format("let v{} = check v{} in {}..{} {{{}fault = {}}} at {} : {}", s.var, s.value,
                       s.low, s.high, ignore, s.fault, index(s.position), typed(s.var));
  }
};

void print_block(const LoopProgram& program, const Block& block, int depth, std::string& out) {
  for (const Stmt& stmt : block) {
    out.append(static_cast<size_t>(2 * depth), ' ');
    out += statement_text(program, stmt);
    const Block *body = nullptr, *otherwise = nullptr;
    if (auto* loop = std::get_if<For>(&stmt.what)) body = &loop->body;
    if (auto* branch = std::get_if<If>(&stmt.what)) {
      body = &branch->body;
      if (!branch->otherwise.empty()) otherwise = &branch->otherwise;
    }
    out += body ? " {\n" : "\n";
    if (!body) continue;
    print_block(program, *body, depth + 1, out);
    out.append(static_cast<size_t>(2 * depth), ' ');
    out += otherwise ? "} else {\n" : "}\n";
    if (!otherwise) continue;
    print_block(program, *otherwise, depth + 1, out);
    out.append(static_cast<size_t>(2 * depth), ' ');
    out += "}\n";
  }
}

}  // namespace

std::string statement_text(const LoopProgram& program, const Stmt& stmt) {
  return std::visit(StatementText{program}, stmt.what);
}

}  // namespace detail

std::string print(const LoopProgram& program) {
  std::string out = fmt::format("loops @{}(", program.symbol);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const KernelBuffer& b = program.buffers[i];
    out += fmt::format("{}{}{}: {}", i ? ", " : "", b.output ? "out " : "", b.name, b.type.str());
  }
  out += fmt::format(") {} {{grid = {}", program.target.arch, program.grid);
  if (program.target.is_cuda())
    out += fmt::format(", block = {}{}, shared = {}{}", program.block,
                       program.blocks > 0 ? fmt::format(", blocks = {}", program.blocks) : "",
                       program.shared_bytes, program.gated ? ", gated" : "");
  out += "} {\n";
  for (size_t i = 0; i < program.faults.size(); ++i)
    out += fmt::format("  fault {} \"{}\" in {}..{}\n", i, program.faults[i].what,
                       program.faults[i].low, program.faults[i].high);
  detail::print_block(program, program.body, 1, out);
  return out + "}\n";
}

}  // namespace sinter
