#pragma once
// The CUDA texts of codegen/templates/, which are compiled into the library.

#include <string_view>

namespace sinter {

// The text of codegen/templates/NAME ("prelude.cuh"); empty where there is no such file.
std::string_view template_text(std::string_view name);

}  // namespace sinter
