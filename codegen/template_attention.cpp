// Launches of the attention templates, codegen/templates/flash_*.cuh.

#include <sinter/codegen/detail/template_builders.h>
#include <sinter/codegen/flash_hopper_source.h>
#include <sinter/codegen/flash_source.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/ops/attention.h>
#include <sinter/passes/native_attention.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sinter::detail {

namespace {

#include <sinter/codegen/templates/flash_params.cuh>

// The parameters of one call; the kernels of an op share them.
class Parameters {
 public:
  explicit Parameters(const TemplateCall& call) : call_(call), c_(call.op) {
    const auto& a = call.op.attrs<AttentionAttrs>();
    p_.batch = static_cast<int>(c_.batch);
    p_.heads = static_cast<int>(c_.heads);
    p_.kv_heads = static_cast<int>(c_.kv_heads);
    p_.queries = static_cast<int>(c_.queries);
    p_.keys = static_cast<int>(c_.keys);
    p_.window = static_cast<int>(std::min<int64_t>(a.window, int64_t{1} << 30));
    p_.scale = a.scale != 0 ? a.scale : 1.0 / std::sqrt(static_cast<double>(c_.head_dim));
    p_.softcap = a.softcap;
    tensor("q", offsetof(FlashParams, q), p_.q_strides);
    tensor("k", offsetof(FlashParams, k), p_.k_strides);
    tensor("v", offsetof(FlashParams, v), p_.v_strides);
    if (c_.backward) {
      tensor("y", offsetof(FlashParams, y), p_.y_strides);
      tensor("dy", offsetof(FlashParams, dy), p_.dy_strides);
      operand("lse", offsetof(FlashParams, lse));
      operand("dlse", offsetof(FlashParams, dlse));
      patch(offsetof(FlashParams, delta), {TemplatePointer::Scratch, 0, 0});
      if (call.op.native().rfind("portable", 0) == 0) {
        PortableScratch scratch = attention_portable_scratch(c_, call.target);
        patch(offsetof(FlashParams, sums), {TemplatePointer::Scratch, 0, scratch.sums});
        patch(offsetof(FlashParams, turns), {TemplatePointer::Scratch, 0, scratch.turns});
        p_.section = flash_section(c_.tiles(FlashKernel::Backward, call.target),
                                   c_.batch * c_.kv_heads, c_.keys, call.target.multiprocessors);
      }
      result(0, offsetof(FlashParams, dq), p_.dq_strides);
      result(1, offsetof(FlashParams, dk), p_.dk_strides);
      result(2, offsetof(FlashParams, dv), p_.dv_strides);
    } else {
      result(0, offsetof(FlashParams, y), p_.y_strides);
      if (a.lse) patch(offsetof(FlashParams, lse), {TemplatePointer::Result, 1, 0});
    }
    scores("mask", offsetof(FlashParams, mask), p_.mask_strides);
    scores("bias", offsetof(FlashParams, bias), p_.bias_strides);
    operand("kv_length", offsetof(FlashParams, kv_length));
    operand("boundaries", offsetof(FlashParams, cu_lengths));
    if (Value b = c_.operand("boundaries")) p_.documents = static_cast<int>(b.dim(1)) - 1;
    operand("slopes", offsetof(FlashParams, slopes));
    if (a.p > 0) {
      operand("seed", offsetof(FlashParams, seed));
      operand("step", offsetof(FlashParams, step));
      operand("offset", offsetof(FlashParams, offset));
      p_.site = static_cast<unsigned>(a.site);
      p_.threshold = static_cast<unsigned>(std::llround(65536.0 * a.p));
      p_.keep_scale = a.p < 1 ? 1.0 / (1.0 - a.p) : 0.0;
    }
  }

  // The map of an operand or result that the feeding thread asks for in boxes.
  TemplateArgument map(FlashHopperUnit unit, FlashHopperOperand which, std::string_view name,
                       const FlashInstance& instance, const FlashHopperTiles& tiles) const {
    TensorMapSpec spec;
    const TemplateTensor* tensor = nullptr;
    if (size_t i = index_of(name); i < call_.operands.size()) {
      tensor = &*call_.operands[i];
      spec.base = {TemplatePointer::Operand, i, 0};
    } else {
      size_t r = name == "dk" ? 1 : name == "dv" ? 2 : 0;
      tensor = &call_.results[r];
      spec.base = {TemplatePointer::Result, r, 0};
    }
    const Shape& shape = tensor->type.shape;
    spec.dims = {shape[3], shape[2], shape[1], shape[0]};
    for (size_t i = 0; i < 3; ++i)  // an axis of one element may have any stride
      spec.strides[i] = shape[2 - i] == 1 ? 16 : 2 * tensor->strides[2 - i];
    FlashHopperBox box = flash_hopper_box(unit, which, instance, tiles);
    spec.box = {box.columns, box.rows, 1, 1};
    spec.swizzle = box.swizzle;
    return TemplateArgument::tensor_map(spec);
  }

  TemplateArgument argument() const {
    TemplateArgument argument = TemplateArgument::value(p_);
    argument.patches = patches_;
    return argument;
  }

 private:
  void patch(size_t at, TemplatePointer pointer) { patches_.push_back({at, pointer}); }
  size_t index_of(std::string_view name) const {
    const auto& specs = call_.op.def().operands;
    for (size_t i = 0; i < specs.size() && i < call_.operands.size(); ++i)
      if (specs[i].name == name && call_.operands[i]) return i;
    return call_.operands.size();
  }
  // False where the operand is absent.
  bool operand(std::string_view name, size_t at) {
    size_t i = index_of(name);
    if (i == call_.operands.size()) return false;
    patch(at, {TemplatePointer::Operand, i, 0});
    return true;
  }
  static FlashStrides strides_of(const TemplateTensor& t) {
    return {t.strides[0], t.strides[1], t.strides[2]};
  }
  void tensor(std::string_view name, size_t at, FlashStrides& strides) {
    SINTER_CHECK(operand(name, at), "{} without {}", call_.op.name(), name);
    strides = strides_of(*call_.operands[index_of(name)]);
  }
  void result(size_t i, size_t at, FlashStrides& strides) {
    patch(at, {TemplatePointer::Result, i, 0});
    strides = strides_of(call_.results[i]);
  }
  // What is broadcast to the scores.
  void scores(std::string_view name, size_t at, long long (&strides)[4]) {
    if (!operand(name, at)) return;
    const TemplateTensor& t = *call_.operands[index_of(name)];
    size_t rank = t.type.shape.size();
    for (size_t i = 0; i < rank; ++i)
      strides[4 - rank + i] = t.type.shape[i] == 1 ? 0 : t.strides[i];
  }

  const TemplateCall& call_;
  AttentionCall c_;
  FlashParams p_{};
  std::vector<TemplateArgument::Patch> patches_;
};

FlashInstance instance_of(const AttentionCall& c) {
  const auto& a = c.op.attrs<AttentionAttrs>();
  FlashInstance i;
  i.element = c.element;
  i.head_dim = static_cast<int>(c.head_dim);
  i.value_dim = static_cast<int>(c.value_dim);
  i.causal = a.causal;
  i.window = a.window > 0;
  i.softcap = a.softcap > 0;
  i.mask = c.has("mask");
  if (Value bias = c.operand("bias")) i.bias = bias.dtype();
  i.kv_length = c.has("kv_length");
  i.documents = c.has("boundaries");
  i.slopes = c.has("slopes");
  i.dropout = a.p > 0;
  return i;
}

std::vector<TemplateAction> launches(const TemplateCall& call,
                                     std::initializer_list<FlashKernel> kernels,
                                     bool ordered = true) {
  AttentionCall c(call.op);
  FlashInstance instance = instance_of(c);
  TemplateArgument parameters = Parameters(call).argument();
  std::vector<TemplateAction> actions;
  for (FlashKernel kernel : kernels) {
    FlashTiles tiles = c.tiles(kernel, call.target);
    SINTER_CHECK(tiles.exists(), "{}: no tiles for head sizes {} and {}", call.op.name(),
                 c.head_dim, c.value_dim);
    TemplateLaunch launch;
    launch.kernel = {std::string(flash_entry(kernel)),
                     flash_source(kernel, instance, tiles, ordered), tiles.threads(),
                     static_cast<int64_t>(tiles.shared_bytes), false};
    launch.grid = flash_blocks(kernel, tiles, c.batch, c.heads, c.kv_heads, c.queries, c.keys);
    launch.arguments.push_back(parameters);
    actions.emplace_back(std::move(launch));
  }
  return actions;
}

std::vector<TemplateAction> hopper_backward(const TemplateCall& call) {
  using Operand = FlashHopperOperand;
  constexpr auto kUnit = FlashHopperUnit::Backward;
  AttentionCall c(call.op);
  FlashInstance instance = instance_of(c);
  FlashHopperTiles tiles = c.hopper_tiles();
  HopperScratch scratch = attention_hopper_scratch(c);
  Parameters parameters(call);
  TemplateArgument values = parameters.argument();
  auto map = [&](Operand which, std::string_view name) {
    return parameters.map(kUnit, which, name, instance, tiles);
  };
  auto space = [](int64_t offset) {
    return TemplateArgument::pointer({TemplatePointer::Scratch, 0, offset});
  };
  bool ordered = call.op.native() != "hopper_unordered";
  std::string source = flash_hopper_source(kUnit, instance, tiles, ordered);
  int64_t query_tiles = c.batch * c.heads * ((c.queries + tiles.tile_m - 1) / tiles.tile_m);
  int64_t key_tiles = (c.keys + tiles.tile_n - 1) / tiles.tile_n;
  int64_t heads = c.batch * c.kv_heads, blocks = call.target.multiprocessors;
  // Which sum comes when is known from the boundaries: were they not to rise, blocks that share a
  // head would wait for turns that never come.
  int parts =
      instance.documents && ordered
          ? 1
          : flash_hopper_backward_parts(static_cast<int>(heads), static_cast<int>(key_tiles),
                                        static_cast<int>(blocks), instance.causal);
  constexpr int kRowThreads = 256;
  auto shared = static_cast<int64_t>(tiles.shared_bytes);
  std::vector<TemplateAction> actions;
  actions.emplace_back(
      TemplateLaunch{{"flash_hopper_prepare", source, kRowThreads, 0, false},
                     query_tiles,
                     {values, space(scratch.rows), space(scratch.sums), space(scratch.turns)}});
  actions.emplace_back(TemplateLaunch{
      {"flash_hopper_backward", source, tiles.threads(), shared, false},
      flash_hopper_backward_blocks(static_cast<int>(heads), parts, static_cast<int>(blocks)),
      {map(Operand::Q, "q"), map(Operand::K, "k"), map(Operand::V, "v"), map(Operand::Dy, "dy"),
       map(Operand::Dk, "dk"), map(Operand::Dv, "dv"), values, space(scratch.rows),
       space(scratch.sums), space(scratch.turns), TemplateArgument::value(int32_t{parts})}});
  actions.emplace_back(TemplateLaunch{{"flash_hopper_finish", source, kRowThreads, 0, false},
                                      query_tiles,
                                      {values, space(scratch.sums)}});
  return actions;
}

}  // namespace

std::vector<TemplateAction> build_hopper_attention(const TemplateCall& call) {
  if (call.op.is("attention_backward")) return hopper_backward(call);
  using Operand = FlashHopperOperand;
  constexpr auto kUnit = FlashHopperUnit::Forward;
  AttentionCall c(call.op);
  FlashInstance instance = instance_of(c);
  FlashHopperTiles tiles = c.hopper_tiles();
  Parameters parameters(call);
  TemplateLaunch launch;
  launch.kernel = {"flash_hopper_forward", flash_hopper_source(kUnit, instance, tiles),
                   tiles.threads(), static_cast<int64_t>(tiles.shared_bytes), false};
  launch.grid =
      std::min<int64_t>(call.target.multiprocessors,
                        c.batch * c.heads * ((c.queries + tiles.tile_m - 1) / tiles.tile_m));
  for (auto [which, name] : {std::pair{Operand::Q, "q"}, std::pair{Operand::K, "k"},
                             std::pair{Operand::V, "v"}, std::pair{Operand::Y, "y"}})
    launch.arguments.push_back(parameters.map(kUnit, which, name, instance, tiles));
  launch.arguments.push_back(parameters.argument());
  return {std::move(launch)};
}

std::vector<TemplateAction> build_portable_attention(const TemplateCall& call) {
  if (call.op.is("attention")) return launches(call, {FlashKernel::Forward});
  bool ordered = call.op.native() != "portable_unordered";
  std::vector<TemplateAction> actions = launches(
      call, {FlashKernel::Delta, FlashKernel::Backward, FlashKernel::BackwardFinish}, ordered);
  PortableScratch s = attention_portable_scratch(AttentionCall(call.op), call.target);
  int64_t begin = ordered ? s.turns : s.sums, end = ordered ? s.bytes : s.turns;
  actions.insert(actions.begin(),
                 TemplateFill{{TemplatePointer::Scratch, 0, begin}, 0, (end - begin) / 4});
  return actions;
}

std::vector<TemplateAction> build_plain_attention(const TemplateCall& call) {
  if (call.op.is("attention")) return launches(call, {FlashKernel::PlainForward});
  return launches(call,
                  {FlashKernel::Delta, FlashKernel::PlainBackwardKv, FlashKernel::PlainBackwardQ});
}

}  // namespace sinter::detail
