// The rules of the kernel for the gradient of embedding: ids sorted, then runs of equal ones added.

#include <sinter/ir/ops/embedding.h>
#include <sinter/passes/detail/native_rules.h>
#include <sinter/passes/native_embedding.h>

#include <algorithm>
#include <limits>

namespace sinter {

namespace {

// Below this many ids it is cheaper for each element of the result to look at all of them.
constexpr int64_t kFewIds = 64;
// Positions are 32-bit; one block sorts, and takes some milliseconds for a million ids.
constexpr int64_t kMostIds = int64_t{1} << 22;

std::optional<std::string> declines(const Op& op, const Target&) {
  int64_t ids = op.operand(0).type().elements(), vocab = op.result().dim(0);
  if (op.result().dim(1) == 0) return "the rows are empty";
  if (ids < kFewIds) return fmt::format("{} ids are too few to sort", ids);
  if (ids > kMostIds) return fmt::format("{} ids are too many for one block to sort", ids);
  if (vocab >= std::numeric_limits<int32_t>::max())
    return fmt::format("{} rows are more than 32 bits count", vocab);
  return std::nullopt;
}

}  // namespace

EmbeddingScratch embedding_scratch(const Op& op) {
  EmbeddingScratch s;
  const TensorType& y = op.result().type();
  s.elements = op.operand(0).type().elements();
  // As many partial sums for a thread to add up as rows before.
  while (s.rows < 256 && s.rows * 1024 < s.elements) s.rows *= 2;
  s.chunks = (s.elements + s.rows - 1) / s.rows;
  auto add = [&](int64_t bytes) {
    int64_t at = s.bytes;
    s.bytes += (bytes + 255) / 256 * 256;
    return at;
  };
  s.keys = add(4 * s.elements);
  s.order = add(4 * s.elements);
  s.spare_keys = add(4 * s.elements);
  s.spare_order = add(4 * s.elements);
  s.ranges = add(8 * y.shape[0]);
  s.partials = add(2 * s.chunks * y.shape[1] * size_of(compute_type(y.dtype)));
  return s;
}

void detail::add_embedding_rules(std::vector<NativeRule>& rules) {
  rules.push_back({"embedding_backward", "sorted", declines,
                   [](const Op& op, const Target&) { return embedding_scratch(op).bytes; }});
}

}  // namespace sinter
