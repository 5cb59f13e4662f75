#include <sinter/codegen/detail/template_builders.h>

namespace sinter::detail {

std::span<const TemplateBuilder> template_builders() {
  static constexpr TemplateBuilder kAll[] = {
      {"embedding_backward", "sorted", build_embedding_backward},
  };
  return kAll;
}

}  // namespace sinter::detail
