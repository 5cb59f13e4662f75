#pragma once
// Builds loop programs by hand, for tests: statements go into the innermost open block.

#include <sinter/codegen/loops.h>
#include <sinter/ir/diagnostic.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace sinter::test {

class LoopBuilder {
 public:
  LoopBuilder(std::string symbol, std::string_view arch, int block = 1) {
    p.symbol = std::move(symbol);
    p.target.arch = std::string(arch);
    p.block = block;
    open_.push_back(&p.body);
  }

  int input(DType type, Shape shape) { return buffer("in", inputs_++, type, shape, false); }
  int output(DType type, Shape shape) { return buffer("out", outputs_++, type, shape, true); }
  int fault(std::string what, int64_t low, int64_t high) {
    KernelFault f;
    f.what = std::move(what);
    f.low = low;
    f.high = high;
    p.faults.push_back(std::move(f));
    return static_cast<int>(p.faults.size()) - 1;
  }

  // The loop's variable goes to `body`.
  template <typename F>
  void loop(Level level, int64_t extent, F&& body) {
    For s;
    s.loop = loops_++;
    s.extent = extent;
    s.level = level;
    if (level == Level::Grid || level == Level::Cores) p.grid = extent;
    s.body = nested([&, id = s.loop] { body(IndexExpr::axis(id, extent)); });
    add(std::move(s));
  }
  template <typename F>
  void when(const IndexExpr& e, int64_t low, int64_t high, F&& body) {
    If s;
    s.guard.add(e, low, high);
    s.body = nested(body);
    add(std::move(s));
  }

  Var var(DType type) {
    p.var_types.push_back(type);
    return static_cast<int>(p.var_types.size()) - 1;
  }
  Var literal(DType type, double value) {
    Cell cell{};
    if (is_float(type))
      cell.f = value;
    else
      cell.i = static_cast<int64_t>(value);
    return literal(type, cell);
  }
  Var literal(DType type, Cell value) {
    Let s;
    s.var = var(type);
    s.literal = value;
    return add(std::move(s));
  }
  // Of the type of the last argument, or bool.
  Var let(Fn fn, std::vector<Var> args) {
    Let s;
    s.fn = fn;
    s.var = var(intrinsic(fn).gives_bool ? DType::Bool : type_of(args.back()));
    s.args = std::move(args);
    return add(std::move(s));
  }
  Var cast(Var v, DType type) {
    Let s;
    s.fn = Fn::Cast;
    s.var = var(type);
    s.args = {v};
    return add(std::move(s));
  }
  Var index(const IndexExpr& e, DType type = DType::I64) { return add(LetIndex{var(type), e}); }
  Var guard(const Guard& g) { return add(LetGuard{var(DType::Bool), g}); }
  Var load(int b, const IndexExpr& at, Guard g = {}, Cell otherwise = {}) {
    const DType type = p.buffers[static_cast<size_t>(b)].type.dtype;
    return add(Load{var(type), b, at, std::move(g), otherwise});
  }
  void store(int b, const IndexExpr& at, Var v) { push(Store{b, at, v}); }
  Array alloc(DType type, int64_t size, Space space = Space::Registers) {
    array_types_.push_back(type);
    if (space == Space::Shared) p.shared_bytes += size * size_of(type);
    push(Alloc{p.num_arrays, type, size, space});
    return p.num_arrays++;
  }
  void load_vector(Array a, int b, const IndexExpr& at, int width) {
    push(LoadVector{a, b, at, width});
  }
  void store_vector(int b, const IndexExpr& at, Array a, int width) {
    push(StoreVector{b, at, a, width});
  }
  Var get(Array a, const IndexExpr& at) {
    return add(ArrayLoad{var(array_types_[static_cast<size_t>(a)]), a, at});
  }
  void set(Array a, const IndexExpr& at, Var v) { push(ArrayStore{a, at, v}); }
  Var lane_reduce(Fn combine, Var v, int width) {
    return add(LaneReduce{var(type_of(v)), combine, v, width});
  }
  void barrier() { push(Barrier{}); }
  Var random(RandomKind kind, uint32_t site, std::vector<Var> args, const IndexExpr& element) {
    const DType type = kind == RandomKind::Half ? DType::I32 : DType::F32;
    p.sites.push_back(site);
    int index = static_cast<int>(p.sites.size()) - 1;
    return add(Random{var(type), kind, index, std::move(args), element});
  }
  Var check(Var v, int fault, int64_t low, int64_t high, std::optional<int64_t> ignore,
            const IndexExpr& position) {
    return add(Check{var(type_of(v)), v, fault, low, high, ignore, position});
  }
  DType type_of(Var v) const { return p.var_types[static_cast<size_t>(v)]; }

  LoopProgram p;

 private:
  int buffer(const char* stem, int number, DType type, Shape shape, bool output) {
    p.buffers.push_back({stem + std::to_string(number), {type, std::move(shape)}, output});
    return static_cast<int>(p.buffers.size()) - 1;
  }
  template <typename F>
  Block nested(F&& body) {
    Block block;
    open_.push_back(&block);
    body();
    open_.pop_back();
    return block;
  }
  template <typename S>
  void push(S s) {
    open_.back()->push_back(Stmt{std::move(s)});
  }
  void add(For s) { push(std::move(s)); }
  void add(If s) { push(std::move(s)); }
  template <typename S>
  Var add(S s) {
    const Var v = s.var;
    push(std::move(s));
    return v;
  }

  std::vector<Block*> open_;
  std::vector<DType> array_types_;
  int loops_ = 0, inputs_ = 0, outputs_ = 0;
};

inline constexpr const char* kCudaTargets[] = {"sm_80", "sm_89", "sm_90a", "sm_120"};

}  // namespace sinter::test
