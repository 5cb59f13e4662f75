#ifdef SINTER_HAVE_CUDA

#include <sinter/runtime/cuda/tune.h>

#include <fmt/format.h>
#include <sinter/runtime/log.h>

#include <algorithm>
#include <limits>

namespace sinter::cuda {
namespace {

constexpr int kCandidates = 8, kRounds = 5;
constexpr double kNoise = 0.02;
constexpr int64_t kBeyondCache = int64_t{192} << 20;  // more than any card's second level holds
constexpr double kRoundMilliseconds = 2;

// Operands and results of one product, several times over.
class Operands {
 public:
  Operands(const Stream& stream, const MatmulSpec& spec) {
    sizes_[0] = spec.batch * spec.m * spec.k * size_of(spec.input);
    sizes_[1] = spec.batch * spec.k * spec.n * size_of(spec.input);
    sizes_[2] = spec.batch * spec.m * spec.n * size_of(spec.output);
    int64_t bytes = 0;
    for (int64_t& size : sizes_) bytes += size = (size + 255) / 256 * 256;
    int64_t room = stream.device().free_memory() / 2 / std::max<int64_t>(bytes, 1);
    copies_ =
        std::clamp<int64_t>(std::min(kBeyondCache / std::max<int64_t>(bytes, 1) + 1, room), 1, 64);
    buffer_ = DeviceBuffer(stream.device(), static_cast<size_t>(copies_ * bytes));
    // Small numbers in every float type.
    fill_bytes(stream, buffer_.address(), 0x3c, buffer_.size());
    bytes_ = bytes;
  }
  int64_t copies() const { return copies_; }
  void run(const Stream& stream, const MatmulPlan& plan, int64_t turn, DevicePtr workspace) const {
    DevicePtr a = buffer_.address() + static_cast<uint64_t>(turn % copies_ * bytes_);
    DevicePtr b = a + static_cast<uint64_t>(sizes_[0]), d = b + static_cast<uint64_t>(sizes_[1]);
    plan.run(stream, a, b, d, d, workspace);
  }

 private:
  int64_t sizes_[3] = {}, bytes_ = 0, copies_ = 1;
  DeviceBuffer buffer_;
};

// Milliseconds of one run, the best of several rounds.
double time_of(const Stream& stream, const MatmulPlan& plan, const Operands& operands,
               DevicePtr workspace) {
  Event begin(stream.device()), end(stream.device());
  auto round = [&](int64_t runs) {
    stream.record(begin);
    for (int64_t i = 0; i < runs; ++i) operands.run(stream, plan, i, workspace);
    stream.record(end);
    end.synchronize();
    return end.milliseconds_since(begin) / static_cast<double>(runs);
  };
  round(1);
  double once = std::max(round(operands.copies()), 1e-4);
  auto runs = static_cast<int64_t>(std::clamp(kRoundMilliseconds / once, 1.0, 200.0));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRounds; ++i) best = std::min(best, round(runs));
  return best;
}

}  // namespace

void tune_products(Device& device, const std::vector<MatmulSpec>& products, TuningRecord& record) {
  Stream stream(device);
  DeviceBuffer workspace(device, kMatmulWorkspace);
  for (const MatmulSpec& spec : products) {
    if (record.choices.contains(spec.str())) continue;
    std::vector<MatmulPlan> candidates = MatmulPlan::candidates(device, spec, kCandidates);
    if (candidates.empty()) continue;
    Operands operands(stream, spec);
    size_t best = 0;
    double first = 0, least = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      double t = time_of(stream, candidates[i], operands, workspace.address());
      if (i == 0) first = least = t;
      if (t < least && t < (1 - kNoise) * first) {
        least = t;
        best = i;
      }
    }
    record.choices[spec.str()] = candidates[best].encoded();
    log_info(fmt::format("tuned {}: choice {} of {}, {:.4f} ms, the first takes {:.4f}", spec.str(),
                         best + 1, candidates.size(), least, first));
  }
  stream.synchronize();
}

}  // namespace sinter::cuda

#endif
