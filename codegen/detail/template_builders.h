#pragma once
// Who builds the launches of which kernel template.

#include <sinter/codegen/template_launch.h>

namespace sinter::detail {

struct TemplateBuilder {
  std::string_view op, kernel;  // as a rule of passes/native.h has them
  std::vector<TemplateAction> (*build)(const TemplateCall& call);
};
std::span<const TemplateBuilder> template_builders();

std::vector<TemplateAction> build_embedding_backward(const TemplateCall& call);
std::vector<TemplateAction> build_hopper_attention(const TemplateCall& call);
std::vector<TemplateAction> build_portable_attention(const TemplateCall& call);
std::vector<TemplateAction> build_plain_attention(const TemplateCall& call);

}  // namespace sinter::detail
