#include <sinter/codegen/template_launch.h>

#include <sinter/codegen/detail/template_builders.h>
#include <sinter/codegen/templates.h>
#include <sinter/ir/diagnostic.h>

namespace sinter {

TemplateTensor dense_tensor(TensorType type) {
  TemplateTensor tensor;
  tensor.strides.resize(type.shape.size());
  int64_t stride = 1;
  for (size_t i = type.shape.size(); i-- > 0;) {
    tensor.strides[i] = stride;
    stride *= type.shape[i];
  }
  tensor.type = std::move(type);
  return tensor;
}

TemplateCall dense_call(const Op& op, const Target& target) {
  TemplateCall call{op, target, {}, {}};
  for (Value v : op.operands())
    call.operands.push_back(v ? std::optional(dense_tensor(v.type())) : std::nullopt);
  for (size_t i = 0; i < op.num_results(); ++i)
    call.results.push_back(dense_tensor(op.result(i).type()));
  return call;
}

std::vector<TemplateAction> template_actions(const TemplateCall& call) {
  for (const detail::TemplateBuilder& builder : detail::template_builders())
    if (call.op.is(builder.op) && call.op.native() == builder.kernel) return builder.build(call);
  SINTER_CHECK(false, "{} has no kernel template '{}'", call.op.name(), call.op.native());
}

std::string template_source(std::string_view constants,
                            std::initializer_list<std::string_view> files) {
  std::string source(template_text("prelude.cuh"));
  source += constants;
  for (std::string_view file : files) {
    std::string_view text = template_text(file);
    SINTER_CHECK(!text.empty(), "there is no template {}", file);
    source += text;
  }
  return source;
}

}  // namespace sinter
