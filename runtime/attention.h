#pragma once
// Which attention a compile uses.
//
//   CompileOptions options;
//   choose_attention(options, AttentionChoice::Composed);

#include <sinter/runtime/executable.h>

namespace sinter {

enum class AttentionChoice : uint8_t {
  Auto,  // attention written out becomes the op, and kernels of the device's own run where there
         // are some for it
  Composed,  // neither: attention is products and a softmax, as it is without fuse-attention
  Flash,     // as Auto, and an Error where attention stays composed, which says why
};
// auto, composed or flash; nullopt for any other.
std::optional<AttentionChoice> parse_attention(std::string_view name);
// Sets `disabled` and `pipeline` to that end. Throws Error for Flash on a device that runs no
// kernels.
void choose_attention(CompileOptions& options, AttentionChoice choice);

}  // namespace sinter
