// Launches of codegen/templates/embedding_backward.cuh.

#include <fmt/format.h>
#include <sinter/codegen/detail/template_builders.h>
#include <sinter/ir/ops/embedding.h>
#include <sinter/passes/native_embedding.h>

#include <bit>

namespace sinter::detail {

namespace {

constexpr int kSortThreads = 1024, kSumThreads = 128, kFinishThreads = 256;
constexpr int64_t kSortShared = (256 * 32 + 32) * 4;

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

std::string constants(DType element, DType id, int64_t vector, int64_t rows) {
  bool wide = element == DType::F64;
  std::string_view names[] = {"double", "float", "bf16", "f16"};
  std::string_view name = wide                     ? names[0]
                          : element == DType::F32  ? names[1]
                          : element == DType::BF16 ? names[2]
                                                   : names[3];
  bool narrow = element == DType::BF16 || element == DType::F16;
  std::string text =
      fmt::format("using Element = {};\nusing Sum = {};\nusing Id = {};\n", name,
                  wide ? "double" : "float", id == DType::I64 ? "int64_t" : "int32_t");
  text += fmt::format("constexpr int kVector = {};\nconstexpr int kRows = {};\n", vector, rows);
  text += fmt::format(
      "__device__ __forceinline__ Sum to_sum(Element e) {{ return {}; }}\n"
      "__device__ __forceinline__ Element to_element(Sum s) {{ return {}; }}\n",
      narrow ? fmt::format("{}_to_f32(e)", name) : "e",
      narrow ? fmt::format("f32_to_{}(s)", name) : "s");
  return text;
}

}  // namespace

std::vector<TemplateAction> build_embedding_backward(const TemplateCall& call) {
  const TensorType& y = call.results[0].type;
  EmbeddingScratch s = embedding_scratch(call.op);
  int64_t vocab = y.shape[0], width = y.shape[1];
  int64_t vector = 16 / size_of(y.dtype);
  if (width % vector != 0) vector = 1;
  std::string source =
      template_source(constants(y.dtype, call.operands[0]->type.dtype, vector, s.rows),
                      {"ptx.cuh", "embedding_backward.cuh"});

  auto operand = [](size_t i) {
    return TemplateArgument::pointer({TemplatePointer::Operand, i, 0});
  };
  auto scratch = [](int64_t offset) {
    return TemplateArgument::pointer({TemplatePointer::Scratch, 0, offset});
  };
  auto integer = [](int64_t v) { return TemplateArgument::value(static_cast<int32_t>(v)); };
  auto wide = [](int64_t v) { return TemplateArgument::value(v); };
  TemplateArgument result = TemplateArgument::pointer({TemplatePointer::Result, 0, 0});

  // Digits of 8 bits of the largest key, which is the vocabulary's size.
  int64_t passes = divide_up(std::bit_width(static_cast<uint64_t>(vocab)), 8);
  int64_t column_blocks = divide_up(width, kSumThreads * vector);
  std::vector<TemplateAction> actions;
  actions.emplace_back(TemplateFill{{TemplatePointer::Scratch, 0, s.ranges}, 0, 2 * vocab});
  actions.emplace_back(TemplateLaunch{
      {"sinter_sort_ids", source, kSortThreads, kSortShared, false},
      1,
      {operand(0), integer(s.elements), integer(vocab), integer(passes), scratch(s.keys),
       scratch(s.order), scratch(s.spare_keys), scratch(s.spare_order)}});
  actions.emplace_back(TemplateLaunch{
      {"sinter_sum_runs", source, kSumThreads, 0, false},
      s.chunks * column_blocks,
      {scratch(s.keys), scratch(s.order), integer(s.elements), integer(vocab), operand(1),
       wide(width), integer(column_blocks), result, scratch(s.partials), scratch(s.ranges)}});
  actions.emplace_back(
      TemplateLaunch{{"sinter_finish_rows", source, kFinishThreads, 0, false},
                     divide_up(vocab * (width / vector), kFinishThreads),
                     {scratch(s.ranges), scratch(s.partials), wide(vocab), wide(width), result}});
  return actions;
}

}  // namespace sinter::detail
