#include <sinter/codegen/detail/template_builders.h>

namespace sinter::detail {

std::span<const TemplateBuilder> template_builders() {
  static constexpr TemplateBuilder kAll[] = {
      {"embedding_backward", "sorted", build_embedding_backward},
      {"attention", "hopper", build_hopper_attention},
      {"attention", "portable", build_portable_attention},
      {"attention", "plain", build_plain_attention},
      {"attention_backward", "hopper", build_hopper_attention},
      {"attention_backward", "hopper_unordered", build_hopper_attention},
      {"attention_backward", "portable", build_portable_attention},
      {"attention_backward", "portable_unordered", build_portable_attention},
      {"attention_backward", "plain", build_plain_attention},
  };
  return kAll;
}

}  // namespace sinter::detail
