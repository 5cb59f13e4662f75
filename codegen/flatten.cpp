#include <sinter/codegen/detail/flat.h>
#include <sinter/codegen/detail/text.h>
#include <sinter/ir/diagnostic.h>

#include <algorithm>

namespace sinter::detail {
namespace {

class Flattener {
 public:
  explicit Flattener(const LoopProgram& program) : p_(program) {}

  FlatProgram run() {
    out_.lanes = p_.target.is_cuda() ? p_.block : 1;
    out_.arrays.resize(static_cast<size_t>(p_.num_arrays));
    var_state_.assign(p_.var_types.size(), Unknown);
    array_state_.assign(static_cast<size_t>(p_.num_arrays), Unknown);
    block(p_.body, 0);
    return std::move(out_);
  }

 private:
  // Unknown until written; then in scope; out of scope after the block that wrote it.
  enum State : uint8_t { Unknown, Live, Dead };
  enum LoopState : uint8_t { NoLoop, Uniform, Lanes, Ended };

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw InternalError(fmt::format("interpreter: {}: `{}`: {}", p_.symbol,
                                    stmt_ ? statement_text(p_, *stmt_) : "program",
                                    fmt::format(format, std::forward<Args>(args)...)));
  }
  template <typename... Args>
  void require(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) refuse(format, std::forward<Args>(args)...);
  }

  DType type_of(Var v) const { return p_.var_types[static_cast<size_t>(v)]; }

  int read(Var v) const {
    require(v >= 0 && static_cast<size_t>(v) < p_.var_types.size(), "there is no variable v{}", v);
    State state = var_state_[static_cast<size_t>(v)];
    require(state != Unknown, "v{} is read before it is written", v);
    require(state == Live, "v{} is read outside the block that wrote it", v);
    return v;
  }
  int write(Var v) {
    require(v >= 0 && static_cast<size_t>(v) < p_.var_types.size(), "there is no variable v{}", v);
    require(var_state_[static_cast<size_t>(v)] == Unknown, "v{} is written by two statements", v);
    var_state_[static_cast<size_t>(v)] = Live;
    live_vars_.push_back(v);
    return v;
  }
  int array(Array a) const {
    require(a >= 0 && a < p_.num_arrays, "there is no array a{}", a);
    require(array_state_[static_cast<size_t>(a)] == Live, "a{} is not allocated here", a);
    return a;
  }
  int buffer(int b) const {
    require(b >= 0 && static_cast<size_t>(b) < p_.buffers.size(), "there is no buffer {}", b);
    return b;
  }

  int index(const IndexExpr& e) {
    FlatIndex flat;
    flat.constant = e.constant();
    for (const IndexExpr::Term& t : e.terms()) {
      FlatIndex::Term term{t.coefficient, FlatIndex::Loop, t.atom->id, t.atom->divisor};
      switch (t.atom->kind) {
        case IndexAtom::Axis: {
          const auto id = static_cast<size_t>(term.id);
          const bool open = term.id >= 0 && id < loop_state_.size() &&
                            (loop_state_[id] == Uniform || loop_state_[id] == Lanes);
          require(open, "i{} is no loop around this statement", term.id);
          if (loop_state_[id] == Lanes) term.kind = FlatIndex::Lane;
          break;
        }
        case IndexAtom::Gathered:
          term.kind = FlatIndex::Variable;
          read(term.id);
          require(!is_float(type_of(term.id)), "v{} is no integer", term.id);
          break;
        case IndexAtom::Div:
        case IndexAtom::Mod:
          term.kind = t.atom->kind == IndexAtom::Div ? FlatIndex::Div : FlatIndex::Mod;
          term.id = index(*t.atom->of);
          break;
      }
      const bool below = term.kind == FlatIndex::Div || term.kind == FlatIndex::Mod;
      const bool varies = below ? !out_.indices[static_cast<size_t>(term.id)].uniform
                                : term.kind != FlatIndex::Loop;
      if (varies) flat.uniform = false;
      flat.terms.push_back(term);
    }
    out_.indices.push_back(std::move(flat));
    return static_cast<int>(out_.indices.size()) - 1;
  }

  int guard(const Guard& g) {
    if (g.always()) return -1;
    FlatGuard flat;
    flat.never = g.never;
    for (const GuardTerm& t : g.terms) flat.terms.push_back({index(t.e), t.low, t.high});
    out_.guards.push_back(std::move(flat));
    return static_cast<int>(out_.guards.size()) - 1;
  }

  void block(const Block& statements, int depth) {
    out_.max_depth = std::max(out_.max_depth, depth);
    const size_t vars = live_vars_.size(), arrays = live_arrays_.size();
    for (const Stmt& stmt : statements) {
      const Stmt* outer = std::exchange(stmt_, &stmt);
      const size_t at = out_.ops.size();
      out_.ops.emplace_back();
      FlatOp op;
      op.stmt = &stmt;
      std::visit([&](const auto& s) { fill(op, s); }, stmt.what);
      out_.ops[at] = op;
      if (auto* loop = std::get_if<For>(&stmt.what)) {
        block(loop->body, depth);
        loop_state_[static_cast<size_t>(loop->loop)] = Ended;
        out_.ops[at].end = out_.ops.size();
      } else if (auto* branch = std::get_if<If>(&stmt.what)) {
        block(branch->body, depth + 1);
        out_.ops[at].otherwise = out_.ops.size();
        block(branch->otherwise, depth + 1);
        out_.ops[at].end = out_.ops.size();
      }
      stmt_ = outer;
    }
    for (; live_vars_.size() > vars; live_vars_.pop_back())
      var_state_[static_cast<size_t>(live_vars_.back())] = Dead;
    for (; live_arrays_.size() > arrays; live_arrays_.pop_back())
      array_state_[static_cast<size_t>(live_arrays_.back())] = Dead;
  }

  void fill(FlatOp& op, const For& s) {
    op.kind = FlatOp::For;
    op.loop = s.loop;
    op.extent = s.extent;
    op.lanes = s.level == Level::Lane;
    const auto id = static_cast<size_t>(s.loop);
    require(s.loop >= 0, "a loop needs an id");
    if (id >= loop_state_.size()) loop_state_.resize(id + 1, NoLoop);
    require(loop_state_[id] == NoLoop || loop_state_[id] == Ended, "i{} is already a loop here",
            s.loop);
    if (op.lanes)
      require(s.extent == out_.lanes, "{} lanes in a block of {}", s.extent, out_.lanes);
    loop_state_[id] = op.lanes ? Lanes : Uniform;
    out_.loops = std::max(out_.loops, s.loop + 1);
  }
  void fill(FlatOp& op, const If& s) {
    op.kind = FlatOp::If;
    op.guard = guard(s.guard);
  }
  void fill(FlatOp& op, const Let& s) {
    op.row = &intrinsic(s.fn);
    require(s.fn != Fn::Param, "a parameter is no statement");
    require(s.args.size() == static_cast<size_t>(op.row->arity), "{} arguments for {}",
            s.args.size(), op.row->name);
    for (size_t i = 0; i < s.args.size(); ++i) op.arg[i] = read(s.args[i]);
    op.var = write(s.var);
    op.type = type_of(s.var);
    if (!s.args.empty()) op.from = type_of(s.args[0]);
    if (s.fn == Fn::Literal) {
      op.kind = FlatOp::Literal;
      op.literal = canonical(op.type, s.literal);
      return;
    }
    if (s.fn == Fn::Cast) {
      op.kind = FlatOp::Cast;
      return;
    }
    const size_t first = s.fn == Fn::Select ? 1 : 0;
    for (size_t i = first; i < s.args.size(); ++i)
      require(type_of(s.args[i]) == type_of(s.args.back()), "operands of types {} and {}",
              to_string(type_of(s.args[i])), to_string(type_of(s.args.back())));
    require(op.type == (op.row->gives_bool ? DType::Bool : type_of(s.args.back())),
            "the result of {} is no {}", op.row->name, to_string(op.type));
    if (s.fn == Fn::Select) {
      require(op.from == DType::Bool, "a condition of type {}", to_string(op.from));
      op.kind = FlatOp::Select;
    } else {
      arithmetic(op, op.from);
    }
  }
  // Which column of the table computes on `type`.
  void arithmetic(FlatOp& op, DType type) const {
    op.kind = type == DType::F64 ? FlatOp::F64 : type == DType::F32 ? FlatOp::F32 : FlatOp::Integer;
    const bool defined = op.kind == FlatOp::F64   ? op.row->f64 != nullptr
                         : op.kind == FlatOp::F32 ? op.row->f32 != nullptr
                                                  : !is_float(type) && op.row->integer != nullptr;
    require(defined, "{} is not defined for {}", op.row->name, to_string(type));
  }
  void fill(FlatOp& op, const LetIndex& s) {
    op.kind = FlatOp::Index;
    op.index = index(s.value);
    op.var = write(s.var);
    op.type = type_of(s.var);
  }
  void fill(FlatOp& op, const LetGuard& s) {
    op.kind = FlatOp::Guard;
    op.guard = guard(s.guard);
    op.var = write(s.var);
    op.type = type_of(s.var);
    require(op.type == DType::Bool, "a guard is bool");
  }
  void fill(FlatOp& op, const Load& s) {
    op.kind = FlatOp::Load;
    op.buffer = buffer(s.buffer);
    op.from = p_.buffers[static_cast<size_t>(s.buffer)].type.dtype;
    op.guard = guard(s.guard);
    op.index = index(s.at);
    op.var = write(s.var);
    op.type = type_of(s.var);
    op.literal = canonical(op.type, s.otherwise);
    require(op.type == op.from, "a buffer of {}", to_string(op.from));
  }
  void vector(FlatOp& op, int b, Array a, const IndexExpr& at, int width, bool rounds = false) {
    op.buffer = buffer(b);
    op.array = array(a);
    op.index = index(at);
    op.width = width;
    op.type = p_.buffers[static_cast<size_t>(b)].type.dtype;
    const FlatProgram::ArrayInfo& info = out_.arrays[static_cast<size_t>(a)];
    op.from = info.type;
    require(op.from == op.type || rounds, "an array of {} and a buffer of {}", to_string(op.from),
            to_string(op.type));
    require(width >= 1 && (width & (width - 1)) == 0, "width {} is no power of two", width);
    require(width <= info.size, "width {} and an array of {}", width, info.size);
  }
  void fill(FlatOp& op, const LoadVector& s) {
    op.kind = FlatOp::LoadVector;
    vector(op, s.buffer, s.array, s.at, s.width);
  }
  void store(FlatOp& op, int b) {
    op.buffer = buffer(b);
    op.type = p_.buffers[static_cast<size_t>(b)].type.dtype;
    require(p_.buffers[static_cast<size_t>(b)].output, "an input is written");
  }
  void fill(FlatOp& op, const Store& s) {
    op.kind = FlatOp::Store;
    store(op, s.buffer);
    op.index = index(s.at);
    op.var = read(s.var);
    require(type_of(s.var) == op.type, "a value of {} for a buffer of {}",
            to_string(type_of(s.var)), to_string(op.type));
  }
  void fill(FlatOp& op, const StoreVector& s) {
    op.kind = FlatOp::StoreVector;
    store(op, s.buffer);
    const bool narrow = is_float(op.type) && size_of(op.type) == 2;
    vector(op, s.buffer, s.array, s.at, s.width,
           narrow && out_.arrays[static_cast<size_t>(array(s.array))].type == DType::F32);
  }
  void fill(FlatOp& op, const Alloc& s) {
    op.kind = FlatOp::Alloc;
    require(s.array >= 0 && s.array < p_.num_arrays, "there is no array a{}", s.array);
    State& state = array_state_[static_cast<size_t>(s.array)];
    require(state == Unknown, "a{} is allocated twice", s.array);
    require(s.size > 0, "an array of {} elements", s.size);
    state = Live;
    live_arrays_.push_back(s.array);
    out_.arrays[static_cast<size_t>(s.array)] = {s.type, s.size, s.space};
    op.array = s.array;
    op.extent = s.size;
  }
  void fill(FlatOp& op, const ArrayLoad& s) {
    op.kind = FlatOp::ArrayLoad;
    op.array = array(s.array);
    op.index = index(s.at);
    op.var = write(s.var);
    op.type = type_of(s.var);
    require(op.type == out_.arrays[static_cast<size_t>(s.array)].type, "an array of {}",
            to_string(out_.arrays[static_cast<size_t>(s.array)].type));
  }
  void fill(FlatOp& op, const ArrayStore& s) {
    op.kind = FlatOp::ArrayStore;
    op.array = array(s.array);
    op.index = index(s.at);
    op.var = read(s.var);
    op.type = type_of(s.var);
    require(op.type == out_.arrays[static_cast<size_t>(s.array)].type, "an array of {}",
            to_string(out_.arrays[static_cast<size_t>(s.array)].type));
  }
  void fill(FlatOp& op, const LaneReduce& s) {
    op.kind = FlatOp::LaneReduce;
    op.row = &intrinsic(s.combine);
    op.arg[0] = read(s.value);
    op.var = write(s.var);
    op.from = type_of(s.value);
    op.type = type_of(s.var);
    op.width = s.width;
    require(op.type == op.from, "a value of {}", to_string(op.from));
    require(op.row->arity == 2, "{} does not combine two values", op.row->name);
    const bool power = s.width >= 1 && s.width <= 32 && (s.width & (s.width - 1)) == 0;
    require(power, "width {} is no power of two up to 32", s.width);
    require(out_.lanes % s.width == 0, "groups of {} lanes in a block of {}", s.width, out_.lanes);
    FlatOp column = op;  // checks that the table has the type
    arithmetic(column, op.from);
  }
  void fill(FlatOp& op, const Barrier&) { op.kind = FlatOp::Barrier; }
  void fill(FlatOp& op, const Random& s) {
    op.kind = FlatOp::Random;
    require(s.args.size() == 4, "{} arguments instead of seed0, seed1, step, offset",
            s.args.size());
    require(s.site >= 0 && static_cast<size_t>(s.site) < p_.sites.size(), "there is no site {}",
            s.site);
    for (size_t i = 0; i < 4; ++i) op.arg[i] = read(s.args[i]);
    op.index = index(s.element);
    op.var = write(s.var);
    op.type = type_of(s.var);
    require(op.type == (s.kind == RandomKind::Half ? DType::I32 : DType::F32), "it gives no {}",
            to_string(op.type));
  }
  void fill(FlatOp& op, const Check& s) {
    op.kind = FlatOp::Check;
    op.arg[0] = read(s.value);
    op.from = type_of(s.value);
    op.index = index(s.position);
    op.var = write(s.var);
    op.type = type_of(s.var);
    require(op.type == op.from && is_integer(op.type), "a value of {}", to_string(op.from));
    require(s.fault >= 0 && static_cast<size_t>(s.fault) < p_.faults.size(), "there is no fault {}",
            s.fault);
  }

  const LoopProgram& p_;
  FlatProgram out_;
  const Stmt* stmt_ = nullptr;
  std::vector<State> var_state_, array_state_;
  std::vector<LoopState> loop_state_;
  std::vector<int> live_vars_, live_arrays_;
};

}  // namespace

FlatProgram flatten(const LoopProgram& program) {
  return Flattener(program).run();
}

}  // namespace sinter::detail
