#pragma once
// Windows sliding over the trailing axes of a tensor: the geometry of convolutions and pools.

#include <sinter/ir/op_def.h>

namespace sinter::detail {

// Along one axis: output o reads the operand at o * stride + tap * dilation - padding, for each tap
// in 0..kernel-1; what lies outside is padding.
struct WindowAxis {
  int64_t extent = 0;  // of the operand
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
  int64_t reach() const { return (kernel - 1) * dilation + 1; }
  int64_t outputs() const { return (extent + 2 * padding - reach()) / stride + 1; }
};
using Window = std::vector<WindowAxis>;

// Lists of an op's attributes with one entry for each axis; an empty one means `otherwise` for all.
struct WindowLists {
  const std::vector<int64_t>*stride, *padding, *dilation;  // null: the default
};
// The window over the trailing axes of `shape`, with the kernel's extents.
Window window_of(const Shape& shape, const std::vector<int64_t>& kernel, const WindowLists& lists);
// The refusal of lists that do not fit, or of a window that is larger than the padded operand.
std::optional<Diagnostic> refuse_window(const InferContext& c, const Shape& shape,
                                        const std::vector<int64_t>& kernel,
                                        const WindowLists& lists);

// Calls f(tap) for each tap in row-major order, tap having one entry for each axis.
template <typename F>
void for_each_tap(const Window& window, F f) {
  std::vector<int64_t> tap(window.size(), 0);
  int64_t count = 1;
  for (const WindowAxis& a : window) count *= a.kernel;
  for (int64_t i = 0; i < count; ++i) {
    f(tap);
    for (size_t k = window.size(); k-- > 0;) {
      if (++tap[k] < window[k].kernel) break;
      tap[k] = 0;
    }
  }
}

// What each window reads at `tap`: x padded by `value`, [lead…, outputs…], with as many leading
// axes as x has beside the window's.
Value tap_of(Value x, const Window& window, const std::vector<int64_t>& tap, Number value);
// The transpose of that: y [lead…, outputs…] at the places of x [lead…, extents…] that its windows
// read at `tap`, zeros elsewhere. Null where no window reads x there.
Value spread_tap(Value y, const Window& window, const std::vector<int64_t>& tap);
// Windows that stand side by side and cover the operand exactly.
bool tiles_exactly(const Window& window);

}  // namespace sinter::detail
