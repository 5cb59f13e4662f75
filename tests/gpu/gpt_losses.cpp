// A GPT trained on the GPU in f32 follows the f64 reference, from the same weights on the same
// data.

#include <sinter/frontends/train/trainer.h>
#include <sinter/runtime/cuda/driver.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <vector>

using namespace sinter;

namespace {

// Bytes with structure to learn: words of a small alphabet, each drawn by a fixed recurrence.
data::Batch words(int64_t batch, int64_t context, uint64_t seed) {
  data::Batch out{Tensor({DType::I32, {batch, context}}), Tensor({DType::I32, {batch, context}})};
  uint64_t s = seed * 2654435761U + 12345;
  for (int64_t b = 0; b < batch; ++b) {
    int32_t last = 32;
    for (int64_t i = 0; i <= context; ++i) {
      s = s * 6364136223846793005ULL + 1442695040888963407ULL;
      const auto draw = static_cast<int32_t>((s >> 33) % 4);
      const int32_t now = last == 32 ? 97 + draw * 3 : (draw == 0 ? 32 : 97 + (last + draw) % 26);
      if (i < context) out.ids.as<int32_t>()[b * context + i] = last;
      if (i < context) out.targets.as<int32_t>()[b * context + i] = now;
      last = now;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("gpt on cuda: the first 20 losses agree with the f64 reference within 1e-4") {
  if (cuda::device_count() == 0) SINTER_SKIP("no CUDA device");
  train::TrainConfig config;
  config.model.layers = 2;
  config.model.heads = 6;
  config.model.width = 384;
  config.model.context = 256;
  config.batch = 4;
  CompileOptions cuda, reference;
  cuda.device = DeviceKind::Cuda;
  reference.device = DeviceKind::Reference64;
  train::GptTrainer fast(config, cuda), exact(config, reference);
  fast.init();
  exact.init();
  for (const std::string& name : fast.weight_names()) exact.set_state(name, fast.state(name));
  double first = 0, last = 0;
  for (int64_t i = 0; i < 20; ++i) {
    const data::Batch batch = words(config.batch, config.model.context, static_cast<uint64_t>(i));
    const double a = fast.step(batch, i, 1e-3).loss, b = exact.step(batch, i, 1e-3).loss;
    CAPTURE(i);
    MESSAGE("step ", i, ": cuda ", a, ", f64 ", b, ", relative ", std::abs(a - b) / b);
    CHECK(std::abs(a - b) <= 1e-4 * b);
    if (i == 0) first = b;
    last = b;
  }
  CHECK(last < first - 1);
}
