#pragma once
// How an op that a kernel template carries out (passes/native.h) runs on CUDA.
//
// An op becomes a list of launches and fills, in order. A launch names a kernel by symbol and whole
// source: the constants that fix its shape, the prelude and files of codegen/templates/. Equal
// sources are one kernel. Nothing here needs a GPU; addresses are known to the backend alone, so an
// argument says which operand's or result's address goes where.

#include <sinter/ir/graph.h>

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace sinter {

// The storage of an operand or result. Strides are in elements, one for each axis of the value's
// shape; the last one is 1 unless the axis has one element.
struct TemplateTensor {
  TensorType type;
  std::vector<int64_t> strides;
};
TemplateTensor dense_tensor(TensorType type);

// Where the first element of an operand or result lies, or the op's scratch memory (index 0), and
// so many bytes on.
struct TemplatePointer {
  enum Of : uint8_t { Operand, Result, Scratch } of = Operand;
  size_t index = 0;
  int64_t offset = 0;
};

// A tensor of 16-bit elements that the tensor memory accelerator reads or writes in boxes (Hopper
// and later), innermost axis first; see runtime/cuda/tensor_map.h.
struct TensorMapSpec {
  TemplatePointer base;
  std::array<int64_t, 4> dims{};     // elements
  std::array<int64_t, 3> strides{};  // bytes, of axes 1 to 3
  std::array<int, 4> box{};          // elements
  int swizzle = 128;                 // bytes
};

// One parameter of a kernel: bytes by value, with addresses written into them, or a tensor map.
struct TemplateArgument {
  struct Patch {
    size_t at = 0;  // bytes into the value
    TemplatePointer pointer;
  };
  std::vector<unsigned char> bytes;
  std::vector<Patch> patches;
  std::optional<TensorMapSpec> map;

  template <typename T>
  static TemplateArgument value(const T& of) {
    static_assert(std::is_trivially_copyable_v<T>);
    TemplateArgument argument;
    argument.bytes.resize(sizeof(T));
    std::memcpy(argument.bytes.data(), &of, sizeof(T));
    return argument;
  }
  static TemplateArgument pointer(TemplatePointer to) {
    TemplateArgument argument = value(uint64_t{0});
    argument.patches.push_back({0, to});
    return argument;
  }
  static TemplateArgument tensor_map(TensorMapSpec spec) {
    TemplateArgument argument;
    argument.map = std::move(spec);
    return argument;
  }
};

struct TemplateKernel {
  std::string symbol;
  std::string source;  // self-contained, for NVRTC
  int block = 1;       // threads
  int64_t shared_bytes = 0;
  bool fmad = false;  // contraction allowed
};

struct TemplateLaunch {
  TemplateKernel kernel;
  int64_t grid = 1;
  std::vector<TemplateArgument> arguments;
};
// 32-bit words set to one value.
struct TemplateFill {
  TemplatePointer to;
  uint32_t value = 0;
  int64_t words = 0;
};
using TemplateAction = std::variant<TemplateLaunch, TemplateFill>;

// An op with the storage of its operands (null where absent) and results.
struct TemplateCall {
  const Op& op;
  const Target& target;
  std::vector<std::optional<TemplateTensor>> operands;
  std::vector<TemplateTensor> results;
};
// All tensors dense.
TemplateCall dense_call(const Op& op, const Target& target);

// What the kernel named on the op does on this target. Throws InternalError where the op names
// none, or has operands that the kernel does not take: the pass `native` makes no such op.
std::vector<TemplateAction> template_actions(const TemplateCall& call);

// `constants` ("constexpr int kTile = 64;\n…"), the prelude, and the named template files in order.
std::string template_source(std::string_view constants,
                            std::initializer_list<std::string_view> files);

}  // namespace sinter
