#include <sinter/ir/ops/detail/window.h>
#include <sinter/ir/ops/view.h>

#include <algorithm>

namespace sinter::detail {

using List = std::vector<int64_t>;

Window window_of(const Shape& shape, const List& kernel, const WindowLists& lists) {
  Window window(kernel.size());
  size_t lead = shape.size() - kernel.size();
  auto entry = [](const List* list, size_t i, int64_t otherwise) {
    return list == nullptr || list->empty() ? otherwise : (*list)[i];
  };
  for (size_t i = 0; i < kernel.size(); ++i)
    window[i] = {shape[lead + i], kernel[i], entry(lists.stride, i, 1), entry(lists.padding, i, 0),
                 entry(lists.dilation, i, 1)};
  return window;
}

std::optional<Diagnostic> refuse_window(const InferContext& c, const Shape& shape,
                                        const List& kernel, const WindowLists& lists) {
  struct Named {
    const char* name;
    const List* list;
    int64_t least;
  };
  for (Named n : {Named{"stride", lists.stride, 1}, Named{"padding", lists.padding, 0},
                  Named{"dilation", lists.dilation, 1}}) {
    if (n.list == nullptr || n.list->empty()) continue;
    if (n.list->size() != kernel.size())
      return c.error("{} needs {} entries, one for each axis of the kernel", n.name, kernel.size());
    for (int64_t v : *n.list)
      if (v < n.least) return c.error("{} holds {}, less than {}", n.name, v, n.least);
  }
  for (int64_t k : kernel)
    if (k < 1) return c.error("the kernel has extent {}", k);
  Window window = window_of(shape, kernel, lists);
  for (size_t i = 0; i < window.size(); ++i)
    if (const WindowAxis& a = window[i]; a.reach() > a.extent + 2 * a.padding)
      return c.error("a window of {} elements does not fit into axis {} of {} with padding {}",
                     a.reach(), shape.size() - kernel.size() + i, c.describe(0), a.padding);
  return std::nullopt;
}

Value tap_of(Value x, const Window& window, const List& tap, Number value) {
  size_t rank = x.shape().size(), lead = rank - window.size();
  List start(rank, 0), limit = x.shape(), stride(rank, 1), low(rank, 0), high(rank, 0);
  bool padded = false;
  for (size_t i = 0; i < window.size(); ++i) {
    const WindowAxis& a = window[i];
    int64_t first = tap[i] * a.dilation, last = first + (a.outputs() - 1) * a.stride;
    low[lead + i] = high[lead + i] = a.padding;
    padded = padded || a.padding > 0;
    start[lead + i] = first;
    limit[lead + i] = last + 1;
    stride[lead + i] = a.stride;
  }
  if (padded) x = pad(x, low, high, value);
  return slice(x, start, limit, stride);
}

Value spread_tap(Value y, const Window& window, const List& tap) {
  size_t rank = y.shape().size(), lead = rank - window.size();
  List start(rank, 0), limit = y.shape(), low(rank, 0), high(rank, 0), interior(rank, 0);
  bool cut = false, spaced = false;
  for (size_t i = 0; i < window.size(); ++i) {
    const WindowAxis& a = window[i];
    // Outputs o with 0 <= o * stride + shift < extent.
    int64_t shift = tap[i] * a.dilation - a.padding, outputs = a.outputs();
    int64_t first = shift >= 0 ? 0 : (-shift + a.stride - 1) / a.stride;
    int64_t end = a.extent - shift <= 0 ? 0 : (a.extent - shift - 1) / a.stride + 1;
    end = std::min(end, outputs);
    if (first >= end) return {};
    cut = cut || first > 0 || end < outputs;
    spaced = spaced || a.stride > 1;
    start[lead + i] = first;
    limit[lead + i] = end;
    low[lead + i] = first * a.stride + shift;
    high[lead + i] = a.extent - 1 - ((end - 1) * a.stride + shift);
    interior[lead + i] = a.stride - 1;
  }
  if (cut) y = slice(y, start, limit);
  if (!spaced) interior.clear();
  return pad(y, low, high, 0.0, interior);
}

bool tiles_exactly(const Window& window) {
  return std::all_of(window.begin(), window.end(), [](const WindowAxis& a) {
    return a.padding == 0 && a.dilation == 1 && a.stride == a.kernel && a.extent % a.kernel == 0;
  });
}

}  // namespace sinter::detail
