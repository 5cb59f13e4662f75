#pragma once
// The ops of the registry as text, JSON and the Markdown of docs/ops.md. All of it is asked of the
// definitions; nothing about an op is written down here.

#include <string>
#include <string_view>

namespace sinter::cli {

// `format`: text, json or markdown.
std::string list_ops(std::string_view format);

}  // namespace sinter::cli
