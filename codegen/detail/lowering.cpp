#include <sinter/codegen/detail/lowering.h>

#include <fmt/format.h>
#include <sinter/ir/diagnostic.h>
#include <xxhash.h>

namespace sinter::detail {

Lowering::Lowering(const Kernel& kernel, const Target& target, bool gated)
    : k_(kernel), s_(make_schedule(kernel, target, gated)) {
  out_.target = target;
  out_.gated = gated && s_.cuda;
  out_.buffers = kernel.buffers;
  out_.faults = kernel.faults;
  out_.grid = s_.grid;
  out_.block = s_.cuda ? s_.block : 1;
  out_.blocks = s_.blocks;
  vars_.assign(k_.nodes.size(), -1);
  vector_array_.assign(k_.nodes.size(), -1);
  reduced_array_.assign(k_.nodes.size(), -1);
  holds_.assign(k_.nodes.size(), false);
}

LoopProgram Lowering::run() {
  in_loop(s_.cuda ? Level::Grid : Level::Cores, s_.grid, [&](const IndexExpr& b) { grid(b); });
  out_.body = std::move(root_);
  SINTER_CHECK(!s_.cuda || out_.shared_bytes <= out_.target.shared_memory,
               "{}: {} bytes of shared memory, a block of {} has {}", k_.stem, out_.shared_bytes,
               out_.target.arch, out_.target.shared_memory);
  std::string text = print(out_);
  out_.symbol =
      fmt::format("{}_{:08x}", k_.stem, XXH3_64bits(text.data(), text.size()) & 0xffffffff);
  return std::move(out_);
}

void Lowering::compute(int i) {
  const KernelNode& n = node(i);
  if (var(i) >= 0) return;
  Var v = -1;
  auto arg = [&](size_t a) {
    Var x = var(n.args[a]);
    SINTER_CHECK(x >= 0, "node %{} reads %{}, which is not computed yet", i, n.args[a]);
    return x;
  };
  switch (n.kind) {
    case KernelNode::Literal:
      v = literal(n.type, n.literal);
      break;
    case KernelNode::Index:
      v = new_var(n.type);
      emit(LetIndex{v, translate(n.index)});
      break;
    case KernelNode::Guard:
      v = new_var(n.type);
      emit(LetGuard{v, guard_of(i)});
      break;
    case KernelNode::Load: {
      if (Array a = vector_array_[static_cast<size_t>(i)]; a >= 0) {
        v = array_load(a, n.type, slot_);
        break;
      }
      v = new_var(n.type);
      sinter::Load load;
      load.var = v;
      load.buffer = n.buffer;
      load.at = translate(n.index);
      load.guard = guard_of(i);
      // Past the last row nothing is read that another lane may be writing in place. Where a value
      // is checked it has to be one of the last row.
      if (!checks_) load.guard.add(row_guard_);
      load.otherwise = n.literal;
      emit(std::move(load));
      break;
    }
    case KernelNode::Scalar: {
      if (int other = chosen(i); other != i) {
        v = var(other);
        SINTER_CHECK(v >= 0, "node %{} reads %{}, which is not computed yet", i, other);
        break;
      }
      Let let;
      let.fn = n.fn;
      for (size_t a = 0; a < n.args.size(); ++a) let.args.push_back(arg(a));
      v = let.var = new_var(n.type);
      emit(std::move(let));
      break;
    }
    case KernelNode::Random: {
      sinter::Random r;
      r.kind = n.random;
      r.site = site(n.site);
      for (size_t a = 0; a < n.args.size(); ++a) r.args.push_back(arg(a));
      r.element = translate(n.index);
      v = r.var = new_var(n.type);
      emit(std::move(r));
      break;
    }
    case KernelNode::Check: {
      sinter::Check c;
      c.value = arg(0);
      c.fault = n.fault;
      c.low = n.low;
      c.high = n.high;
      c.ignore = n.ignore;
      c.position = translate(n.index);
      v = c.var = new_var(n.type);
      emit(std::move(c));
      break;
    }
    case KernelNode::Prefix:
      SINTER_CHECK(false, "a prefix is computed by the loop that runs along it");
      break;
    case KernelNode::Reduce:
      v = array_load(reduced_array_[static_cast<size_t>(i)], n.type, slot_);
      break;
  }
  var(i) = v;
}

}  // namespace sinter::detail
