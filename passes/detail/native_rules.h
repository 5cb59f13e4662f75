#pragma once
// The rules of each family of kernel templates; see passes/native.h.

#include <sinter/passes/native.h>

#include <vector>

namespace sinter::detail {

void add_attention_rules(std::vector<NativeRule>& rules);
void add_embedding_rules(std::vector<NativeRule>& rules);

}  // namespace sinter::detail
