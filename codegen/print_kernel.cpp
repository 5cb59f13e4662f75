#include <sinter/codegen/detail/text.h>
#include <sinter/codegen/kernel.h>
#include <sinter/ir/diagnostic.h>

namespace sinter {
namespace {

constexpr std::string_view kAxisNames[] = {"p", "q", "r"};

std::string atom_name(const IndexAtom& leaf) {
  if (leaf.kind == IndexAtom::Gathered) return fmt::format("%{}", leaf.id);
  return std::string(kAxisNames[leaf.id]);
}

std::string axes_text(AxisSet axes) {
  std::string out;
  for (size_t a = 0; a < 3; ++a) {
    if ((axes >> a & 1U) == 0) continue;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", kAxisNames[a]);
  }
  return out;
}

class KernelText {
 public:
  explicit KernelText(const Kernel& kernel) : k_(kernel) {}

  std::string str() const {
    std::string out = fmt::format("kernel @{}({}) {{\n", k_.stem, extents());
    for (const KernelBuffer& b : k_.buffers)
      out += fmt::format("  {}{}: {}\n", b.output ? "out " : "", b.name, b.type.str());
    for (size_t i = 0; i < k_.nodes.size(); ++i) {
      const KernelNode& n = k_.nodes[i];
      out += fmt::format("  %{} = {} : {}{}\n", i, node(n), to_string(n.type), domain(n));
    }
    for (const KernelStore& s : k_.stores)
      out += fmt::format("  store {}[{}] = %{} over {}\n", buffer(s.buffer), s.at.str(atom_name),
                         s.node, s.axes ? axes_text(s.axes) : "nothing");
    return out + "}\n";
  }

 private:
  std::string extents() const {
    std::string out = fmt::format("p: {}, q: {}", k_.extent[0], k_.extent[1]);
    if (k_.kind == Kernel::Column || k_.extent[2] != 1) out += fmt::format(", r: {}", k_.extent[2]);
    return out;
  }
  const std::string& buffer(int b) const { return k_.buffers.at(static_cast<size_t>(b)).name; }
  static std::string guard(const Guard& g) { return detail::guard_text(g, atom_name); }
  static std::string args(const KernelNode& n) {
    std::string out;
    for (int a : n.args) out += fmt::format("{}%{}", out.empty() ? "" : ", ", a);
    return out;
  }

  // Where it varies over less than the whole kernel.
  std::string domain(const KernelNode& n) const {
    const AxisSet whole = axis_bit(kAxisP) | axis_bit(kAxisQ);
    if (n.kind == KernelNode::Literal || (n.domain & whole) == whole) return "";
    return n.domain ? fmt::format("  // over {}", axes_text(n.domain)) : "  // one scalar";
  }

  std::string node(const KernelNode& n) const {
    switch (n.kind) {
      case KernelNode::Literal:
        return detail::cell_text(n.type, n.literal);
      case KernelNode::Index:
        return "index " + n.index.str(atom_name);
      case KernelNode::Guard:
        return "guard " + guard(n.guard);
      case KernelNode::Load: {
        std::string out = fmt::format("load {}[{}]", buffer(n.buffer), n.index.str(atom_name));
        if (!n.guard.always())
          out +=
              fmt::format(" if {} else {}", guard(n.guard), detail::cell_text(n.type, n.literal));
        return out;
      }
      case KernelNode::Scalar:
        return fmt::format("{} {}", intrinsic(n.fn).name, args(n));
      case KernelNode::Reduce:
        return fmt::format("reduce {} {} over {} {{lanes = {}, vector = {}}}", intrinsic(n.fn).name,
                           args(n), kAxisNames[n.axis], n.order.lanes, n.order.vector);
      case KernelNode::Prefix:
        return fmt::format("prefix {} {} along q {{lanes = {}, vector = {}{}{}}}",
                           intrinsic(n.fn).name, args(n), n.prefix.lanes, n.prefix.vector,
                           n.prefix.reverse ? ", reverse" : "",
                           n.prefix.exclusive ? ", exclusive" : "");
      case KernelNode::Random:
        return fmt::format("random {} {} {{site = {}}} at {}", detail::random_name(n.random),
                           args(n), n.site, n.index.str(atom_name));
      case KernelNode::Check: {
        const std::string ignore = n.ignore ? fmt::format("ignore = {}, ", *n.ignore) : "";
        return fmt::format("check {} in {}..{} {{{}fault = {}}} at {}", args(n), n.low, n.high,
                           ignore, n.fault, n.index.str(atom_name));
      }
    }
    return "";
  }

  const Kernel& k_;
};

}  // namespace

std::string print(const Kernel& kernel) {
  return KernelText(kernel).str();
}

}  // namespace sinter
