#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/arithmetic.h>
#include <sinter/ir/ops/contraction.h>
#include <sinter/ir/ops/detail/build.h>
#include <sinter/ir/ops/detail/composite.h>
#include <sinter/ir/ops/reduce.h>
#include <sinter/ir/ops/registry.h>
#include <sinter/ir/ops/shape.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>
#include <map>
#include <set>

namespace sinter {

using detail::sample;
using List = std::vector<int64_t>;

namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// "ij,jk->ik" as the labels of each operand and of the result.
struct Equation {
  std::vector<std::string> operands;
  std::string result;
  std::string problem;  // "" when the text is well formed
};

Equation parse(std::string_view text) {
  Equation e;
  auto refuse = [&](std::string problem) {
    e.problem = std::move(problem);
    return e;
  };
  e.operands.emplace_back();
  bool arrow = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == ' ') continue;
    if (c == '.') return refuse("an ellipsis is not supported: give each axis a label");
    if (c == '-' && i + 1 < text.size() && text[i + 1] == '>' && !arrow) {
      arrow = true;
      ++i;
    } else if (c == ',' && !arrow) {
      e.operands.emplace_back();
    } else if (is_letter(c)) {
      (arrow ? e.result : e.operands.back()).push_back(c);
    } else {
      return refuse(fmt::format("'{}' is neither a label, a comma nor ->", c));
    }
  }
  std::map<char, int> count;
  for (const std::string& labels : e.operands)
    for (char c : labels) ++count[c];
  if (!arrow)
    for (auto [label, times] : count)
      if (times == 1) e.result.push_back(label);
  std::set<char> seen;
  for (char c : e.result) {
    if (!count.contains(c)) return refuse(fmt::format("no operand has the result's label '{}'", c));
    if (!seen.insert(c).second)
      return refuse(fmt::format("the label '{}' stands twice in the result", c));
  }
  return e;
}

bool has(const std::string& labels, char c) {
  return labels.find(c) != std::string::npos;
}

// An operand under way: each axis has a label of its own.
struct Term {
  Value value;
  std::string labels;

  int64_t axis(char c) const { return static_cast<int64_t>(labels.find(c)); }
  // Only the labels in `wanted`, the others summed over.
  void keep(const std::set<char>& wanted) {
    List gone;
    std::string left;
    for (char c : labels)
      if (wanted.contains(c))
        left.push_back(c);
      else
        gone.push_back(axis(c));
    if (gone.empty()) return;
    value = sum(value, gone);
    labels = left;
  }
  // With its axes in this order, which names each label once.
  void arrange(const std::string& order) {
    if (labels == order) return;
    List axes;
    for (char c : order) axes.push_back(axis(c));
    value = permute(value, axes);
    labels = order;
  }
  // The axes of a repeated label become their diagonal.
  void take_diagonals() {
    for (size_t i = 0; i < labels.size();) {
      size_t again = labels.find(labels[i], i + 1);
      if (again == std::string::npos) {
        ++i;
        continue;
      }
      char c = labels[i];
      value = diagonal(value, 0, static_cast<int64_t>(i), static_cast<int64_t>(again));
      labels.erase(again, 1);
      labels.erase(i, 1);
      labels.push_back(c);
    }
  }
};

// a times b; what is not in `wanted` is summed over.
Term product(Term a, Term b, const std::set<char>& wanted) {
  std::set<char> for_a = wanted, for_b = wanted;
  for (char c : b.labels) for_a.insert(c);
  for (char c : a.labels) for_b.insert(c);
  a.keep(for_a);
  b.keep(for_b);
  Term out;
  DotGeneralAttrs attrs;
  std::string free_a, free_b;
  for (char c : a.labels) {
    if (!has(b.labels, c)) {
      free_a.push_back(c);
    } else if (wanted.contains(c)) {
      attrs.a_batch.push_back(a.axis(c));
      attrs.b_batch.push_back(b.axis(c));
      out.labels.push_back(c);
    } else {
      attrs.a_contract.push_back(a.axis(c));
      attrs.b_contract.push_back(b.axis(c));
    }
  }
  for (char c : b.labels)
    if (!has(a.labels, c)) free_b.push_back(c);
  std::string batch = out.labels;
  out.labels += free_a + free_b;
  if (!attrs.a_contract.empty()) {
    out.value = dot_general(a.value, b.value, std::move(attrs));
    return out;
  }
  // Nothing to add up: a product of broadcast operands.
  a.arrange(batch + free_a);
  b.arrange(batch + free_b);
  Shape shape_a = a.value.shape(), shape_b = b.value.shape();
  shape_a.insert(shape_a.end(), free_b.size(), 1);
  shape_b.insert(shape_b.begin() + static_cast<int64_t>(batch.size()), free_a.size(), 1);
  out.value = mul(reshape(a.value, shape_a), reshape(b.value, shape_b));
  return out;
}

struct Einsum {
  static constexpr std::string_view name = "einsum";
  static constexpr std::string_view doc =
      "The sum of products of the operands (one float type) that `equation` describes, as "
      "\"ij,jk->ik\"; contracted from the left, each product as matmul does.";
  static constexpr OperandSpec operands[] = {variadic("x")};
  static constexpr OpKind kind = OpKind::Composite;
  using Attrs = EinsumAttrs;
  static constexpr NonDifferentiable vjp = kThroughExpansion;
  static constexpr auto jvp = Jvp::through_expand;
  static constexpr auto batch = Batch::through_expand;
  static constexpr Autocast autocast = Autocast::Inside;

  static Inferred infer(const InferContext& c) {
    const std::string& text = c.attrs<Attrs>().equation;
    Equation e = parse(text);
    if (!e.problem.empty()) return c.error("equation \"{}\": {}", text, e.problem);
    if (e.operands.size() != c.num_operands())
      return c.error("equation \"{}\" has {} operands, the op {}", text, e.operands.size(),
                     c.num_operands());
    struct Seen {
      int64_t extent;
      size_t operand;
    };
    std::map<char, Seen> seen;
    for (size_t i = 0; i < c.num_operands(); ++i) {
      if (auto refused = detail::require_float(c, i)) return *refused;
      if (c.type(i).dtype != c.type(0).dtype)
        return c.error("the dtypes of {} and {} differ", c.describe(0), c.describe(i));
      const std::string& labels = e.operands[i];
      if (labels.size() != c.shape(i).size())
        return c.error("\"{}\" labels {} axes, {} has {}", labels, labels.size(), c.describe(i),
                       c.rank(i));
      for (size_t k = 0; k < labels.size(); ++k) {
        auto [it, fresh] = seen.emplace(labels[k], Seen{c.shape(i)[k], i});
        if (!fresh && it->second.extent != c.shape(i)[k])
          return c.error("label '{}' has extent {} in {} and {} in {}", labels[k],
                         it->second.extent, c.describe(it->second.operand), c.shape(i)[k],
                         c.describe(i));
      }
    }
    TensorType type{c.type(0).dtype, {}};
    for (char label : e.result) type.shape.push_back(seen.at(label).extent);
    return std::vector{type};
  }
  static Cost cost(const Op& op) {
    Cost cost = Cost::bytes_moved(op, 0);
    Equation e = parse(op.attrs<Attrs>().equation);
    std::set<char> seen;
    double all = 1;
    for (size_t i = 0; i < e.operands.size(); ++i)
      for (size_t k = 0; k < e.operands[i].size(); ++k)
        if (seen.insert(e.operands[i][k]).second)
          all *= static_cast<double>(op.operand(i).shape()[k]);
    cost.flops = 2.0 * all;
    return cost;
  }
  static std::vector<Value> expand(const Op& op) {
    Equation e = parse(op.attrs<Attrs>().equation);
    std::vector<Term> terms;
    for (size_t i = 0; i < e.operands.size(); ++i) {
      terms.push_back({op.operand(i), e.operands[i]});
      terms.back().take_diagonals();
    }
    const std::set<char> result(e.result.begin(), e.result.end());
    Term total = terms[0];
    for (size_t i = 1; i < terms.size(); ++i) {
      std::set<char> wanted = result;
      for (size_t k = i + 1; k < terms.size(); ++k)
        wanted.insert(terms[k].labels.begin(), terms[k].labels.end());
      total = product(total, terms[i], wanted);
    }
    total.keep(result);
    total.arrange(e.result);
    return {total.value};
  }
  static std::vector<Sample> samples() {
    auto equation = [](const char* text) { return AttrMap{{"equation", std::string(text)}}; };
    return {sample({"f32[2,3]", "f32[3,4]"}, equation("ij,jk->ik")),
            sample({"f32[2,3]"}, equation("ab->ba")),
            sample({"f32[3,3]"}, equation("ii")),
            sample({"f32[2,3,3]"}, equation("bii->bi")),
            sample({"f32[3]", "f32[2]"}, equation("i,j")),
            sample({"f32[2,2,3,2]", "f32[2,2,4,2]"}, equation("bhqd, bhkd -> bhqk")),
            sample({"bf16[2,3]", "bf16[3]"}, equation("ij,j->i")),
            sample({"f32[2,3]", "f32[3,4]", "f32[4,2]"}, equation("ij,jk,kl->li")),
            sample({"f32[2,3]", "f32[2,4]"}, equation("ab,ac->a")),
            sample({"f32[]", "f32[2]"}, equation(",i->i")),
            sample({"f32[0,3]", "f32[3,1]"}, equation("ij,jk")),
            sample({"f32[2,0]", "f32[0,3]"}, equation("ij,jk"))};
  }
};

}  // namespace

Value einsum(std::string equation, std::vector<Value> operands, SourceLocation loc) {
  if (operands.empty()) throw Error(Diagnostic{loc, "einsum: takes at least 1 operand, got 0"});
  Graph& graph = detail::graph_of("einsum", "x", operands[0], loc);
  return build_op(graph, "einsum", std::move(operands), EinsumAttrs{std::move(equation)},
                  std::move(loc))
      .result();
}

void register_einsum(OpRegistry& r) {
  r.add<Einsum>();
}

}  // namespace sinter
