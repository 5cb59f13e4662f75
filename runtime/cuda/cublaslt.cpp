#ifdef SINTER_HAVE_CUDA

#include <sinter/runtime/cuda/cublaslt.h>

#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/cuda/detail/driver_api.h>
#include <sinter/runtime/detail/shared_library.h>

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace sinter::cuda {
namespace {

#define SINTER_CUBLASLT_FUNCTIONS(X)      \
  X(cublasLtCreate)                       \
  X(cublasLtGetStatusName)                \
  X(cublasLtGetVersion)                   \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmulAlgoConfigGetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)

struct CublasLt {
#define SINTER_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  SINTER_CUBLASLT_FUNCTIONS(SINTER_CUBLASLT_MEMBER)
#undef SINTER_CUBLASLT_MEMBER
  std::string problem;
};

CublasLt open_cublaslt() {
  const int driver_version = detail::driver_state().version;
  const std::vector<int> versions = driver_version > 0 && driver_version < 13000
                                        ? std::vector<int>{12, 13}
                                        : std::vector<int>{13, 12};
  CublasLt api;
  const sinter::detail::SharedLibrary library(
      sinter::detail::toolkit_library_candidates("libcublasLt", versions));
  if (!library.is_open()) {
    api.problem = fmt::format(
        "cuBLASLt not found: install the CUDA toolkit's cuBLAS (12.4 to 13), or set SINTER_NVRTC "
        "to "
        "the folder of libcublasLt.so ({})",
        library.error());
    return api;
  }
#define SINTER_CUBLASLT_LOAD(name)                                        \
  api.name = reinterpret_cast<decltype(api.name)>(library.symbol(#name)); \
  if (api.name == nullptr)                                                \
    api.problem = fmt::format("{} lacks {}: CUDA 12.4 or newer is needed", library.path(), #name);
  SINTER_CUBLASLT_FUNCTIONS(SINTER_CUBLASLT_LOAD)
#undef SINTER_CUBLASLT_LOAD
  return api;
}

const CublasLt& cublaslt_state() {
  static const CublasLt api = open_cublaslt();
  return api;
}

const CublasLt& cublaslt() {
  const CublasLt& api = cublaslt_state();
  if (!api.problem.empty()) throw DeviceError(api.problem);
  return api;
}

[[noreturn]] void fail_lt(std::string_view call, cublasStatus_t status, const MatmulSpec& spec) {
  throw DeviceError(fmt::format("{} failed: {}, for matmul {}", call,
                                cublaslt().cublasLtGetStatusName(status), spec.str()));
}

void check_lt(cublasStatus_t status, std::string_view call, const MatmulSpec& spec) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_lt(call, status, spec);
}

// Descriptors, freed by the function that CublasLt's member `kDestroy` points to.
template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* object) const noexcept {
    (cublaslt_state().*kDestroy)(object);
  }
};
template <typename T, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<kDestroy>>;
using Description = Owned<cublasLtMatmulDesc_t, &CublasLt::cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &CublasLt::cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &CublasLt::cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType type) {
  switch (type) {
    case DType::F64:
      return CUDA_R_64F;
    case DType::F32:
      return CUDA_R_32F;
    case DType::BF16:
      return CUDA_R_16BF;
    case DType::F16:
      return CUDA_R_16F;
    default:
      break;
  }
  SINTER_CHECK(false, "cuBLASLt has no matmul of {}", to_string(type));
}

// cuBLASLt counts a batch in 32 bits, and its kernels put it on a grid axis of 65,535.
constexpr int64_t kMaxBatch = 65535;

// Strides with the defaults filled in.
struct Strides {
  int64_t row_a, row_b, row_c;
  int64_t batch_a, batch_b, batch_c;
};

Strides given_strides(const MatmulSpec& spec) {
  Strides strides{};
  strides.row_a = spec.row_stride_a != 0 ? spec.row_stride_a : spec.transpose_a ? spec.m : spec.k;
  strides.row_b = spec.row_stride_b != 0 ? spec.row_stride_b : spec.transpose_b ? spec.k : spec.n;
  strides.row_c = spec.row_stride_c != 0 ? spec.row_stride_c : spec.n;
  strides.batch_a = spec.batch_stride_a;
  strides.batch_b = spec.batch_stride_b;
  strides.batch_c = spec.batch_stride_c;
  return strides;
}

// What the algorithm is chosen for: every operand dense, none shared.
Strides dense_strides(const MatmulSpec& spec) {
  MatmulSpec dense = spec;
  dense.row_stride_a = dense.row_stride_b = dense.row_stride_c = 0;
  dense.batch_stride_a = spec.m * spec.k;
  dense.batch_stride_b = spec.k * spec.n;
  dense.batch_stride_c = spec.m * spec.n;
  return given_strides(dense);
}

Layout make_layout(const MatmulSpec& spec, DType type, int64_t rows, int64_t columns,
                   int64_t row_stride, int64_t batch, int64_t batch_stride) {
  const CublasLt& api = cublaslt();
  cublasLtMatrixLayout_t layout = nullptr;
  // A row-major matrix is its transpose in column-major order.
  check_lt(api.cublasLtMatrixLayoutCreate(&layout, data_type(type), static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), row_stride),
           "cublasLtMatrixLayoutCreate", spec);
  Layout owned(layout);
  const auto count = static_cast<int32_t>(batch);
  check_lt(api.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                sizeof count),
           "cublasLtMatrixLayoutSetAttribute", spec);
  check_lt(api.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &batch_stride, sizeof batch_stride),
           "cublasLtMatrixLayoutSetAttribute", spec);
  return owned;
}

struct Layouts {
  Layout a, b, c;
};

Layouts make_layouts(const MatmulSpec& spec, const Strides& strides, int64_t batch) {
  const auto [rows_a, columns_a] =
      spec.transpose_a ? std::pair(spec.k, spec.m) : std::pair(spec.m, spec.k);
  const auto [rows_b, columns_b] =
      spec.transpose_b ? std::pair(spec.n, spec.k) : std::pair(spec.k, spec.n);
  return {make_layout(spec, spec.input, rows_a, columns_a, strides.row_a, batch, strides.batch_a),
          make_layout(spec, spec.input, rows_b, columns_b, strides.row_b, batch, strides.batch_b),
          make_layout(spec, spec.output, spec.m, spec.n, strides.row_c, batch, strides.batch_c)};
}

void set_bias(cublasLtMatmulDesc_t description, DevicePtr bias, const MatmulSpec& spec) {
  check_lt(cublaslt().cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                     &bias, sizeof bias),
           "cublasLtMatmulDescSetAttribute", spec);
}

Description make_description(const MatmulSpec& spec) {
  const CublasLt& api = cublaslt();
  const bool is_f64 = spec.input == DType::F64;
  const cublasComputeType_t compute = is_f64 ? CUBLAS_COMPUTE_64F
                                      : spec.input == DType::F32 && spec.allow_tf32
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t description = nullptr;
  check_lt(api.cublasLtMatmulDescCreate(&description, compute, is_f64 ? CUDA_R_64F : CUDA_R_32F),
           "cublasLtMatmulDescCreate", spec);
  Description owned(description);
  // D^T = op(B)^T · op(A)^T: B comes first, and a transposition stays one.
  const cublasOperation_t first = spec.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = spec.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  check_lt(api.cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                              sizeof first),
           "cublasLtMatmulDescSetAttribute", spec);
  check_lt(api.cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                              sizeof second),
           "cublasLtMatmulDescSetAttribute", spec);
  if (spec.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    check_lt(api.cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                &epilogue, sizeof epilogue),
             "cublasLtMatmulDescSetAttribute", spec);
    // Its type is D's by default. Where it lies is said at each run; the heuristics are told how it
    // is aligned, as all that is passed.
    set_bias(description, static_cast<DevicePtr>(spec.alignment), spec);
  }
  return owned;
}

struct Choice {
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace = 0;
};

// The alignments that a matrix really has: its first element's, kept by rows and batches or not.
uint32_t operand_alignment(int64_t address, int64_t row, int64_t batch_stride, int64_t batch,
                           DType type) {
  int64_t bits = address | (row * size_of(type));
  if (batch > 1) bits |= batch_stride * size_of(type);
  return static_cast<uint32_t>(std::clamp<int64_t>(bits & -bits, 1, 16));
}

// One handle per device, kept for the life of the process, and the algorithms chosen on it.
class Library {
 public:
  static Library& of(Device& device, const MatmulSpec& spec) {
    static std::mutex& mutex = *new std::mutex;
    static auto& libraries = *new std::map<int, std::unique_ptr<Library>>;
    std::lock_guard lock(mutex);
    std::unique_ptr<Library>& library = libraries[device.ordinal()];
    if (!library) library.reset(new Library(device, spec));
    return *library;
  }

  cublasLtHandle_t handle() const { return handle_; }

  // The choice for the logical product, or nullopt-like state when it does not run on `layouts`.
  Choice choose(const MatmulSpec& spec, const Description& description, const Layouts& layouts,
                const Strides& strides, int64_t batch) {
    std::lock_guard lock(mutex_);
    const Key key{spec.m,          spec.n,      spec.k,           batch,
                  spec.input,      spec.output, spec.transpose_a, spec.transpose_b,
                  spec.accumulate, spec.bias,   spec.allow_tf32,  spec.workspace};
    auto entry = choices_.find(key);
    if (entry == choices_.end()) {
      const Strides dense = dense_strides(spec);
      const Layouts dense_layouts = make_layouts(spec, dense, batch);
      const Choice choice = ask(spec, description, dense_layouts, dense, 256, batch, 1).front();
      entry = choices_.emplace(key, choice).first;
    }
    if (auto usable = check(entry->second, spec, description, layouts, strides, batch))
      return *usable;
    return ask(spec, description, layouts, strides, spec.alignment, batch, 1).front();
  }

  // The choice with the workspace that it needs on `layouts`, if it runs on them.
  std::optional<Choice> check(const Choice& choice, const MatmulSpec& spec,
                              const Description& description, const Layouts& layouts,
                              const Strides& strides, int64_t batch) const {
    // The given addresses and strides may be less aligned than the algorithm needs. Its check looks
    // at the layouts alone, so the alignments are compared here.
    const Strides dense = dense_strides(spec);
    if (!(alignments(spec, strides, spec.alignment, batch) >= alignments(spec, dense, 256, batch)))
      return std::nullopt;
    cublasLtMatmulHeuristicResult_t result{};
    if (cublaslt().cublasLtMatmulAlgoCheck(handle_, description.get(), layouts.b.get(),
                                           layouts.a.get(), layouts.c.get(), layouts.c.get(),
                                           &choice.algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
        result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > spec.workspace)
      return std::nullopt;
    return Choice{choice.algorithm, result.workspaceSize};
  }

 private:
  friend class sinter::cuda::MatmulPlan;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, DType, DType, bool, bool, bool, bool,
                         bool, std::size_t>;

  struct Alignments {
    uint32_t a, b, c;
    friend bool operator>=(const Alignments& x, const Alignments& y) {
      return x.a >= y.a && x.b >= y.b && x.c >= y.c;
    }
  };

  Library(Device& device, const MatmulSpec& spec) {
    device.make_current();
    check_lt(cublaslt().cublasLtCreate(&handle_), "cublasLtCreate", spec);
  }

  static Alignments alignments(const MatmulSpec& spec, const Strides& strides, int64_t address,
                               int64_t batch) {
    return {operand_alignment(address, strides.row_a, strides.batch_a, batch, spec.input),
            operand_alignment(address, strides.row_b, strides.batch_b, batch, spec.input),
            operand_alignment(address, strides.row_c, strides.batch_c, batch, spec.output)};
  }

  // The heuristic's first choices, one at least and `count` at most.
  std::vector<Choice> ask(const MatmulSpec& spec, const Description& description,
                          const Layouts& layouts, const Strides& strides, int64_t address,
                          int64_t batch, int count) const {
    const CublasLt& api = cublaslt();
    cublasLtMatmulPreference_t created = nullptr;
    check_lt(api.cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate", spec);
    const Preference preference(created);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_lt(api.cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value,
                                                        sizeof value),
               "cublasLtMatmulPreferenceSetAttribute", spec);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(spec.workspace));
    // Splits of k are added in the compute type, or not at all.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    const Alignments aligned = alignments(spec, strides, address, batch);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned.b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned.a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned.c);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned.c);

    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
    int found = 0;
    const cublasStatus_t status = api.cublasLtMatmulAlgoGetHeuristic(
        handle_, description.get(), layouts.b.get(), layouts.a.get(), layouts.c.get(),
        layouts.c.get(), preference.get(), count, results.data(), &found);
    check_lt(status, "cublasLtMatmulAlgoGetHeuristic", spec);
    if (found == 0 || results[0].state != CUBLAS_STATUS_SUCCESS) {
      fail_lt("cublasLtMatmulAlgoGetHeuristic",
              found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : results[0].state, spec);
    }
    std::vector<Choice> choices;
    for (int i = 0; i < found; ++i)
      if (const auto& r = results[static_cast<size_t>(i)]; r.state == CUBLAS_STATUS_SUCCESS)
        choices.push_back({r.algo, r.workspaceSize});
    return choices;
  }

  std::mutex mutex_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Choice> choices_;
};

void validate(const MatmulSpec& spec) {
  SINTER_CHECK(spec.m >= 0 && spec.n >= 0 && spec.k >= 0 && spec.batch >= 0, "matmul {}",
               spec.str());
  SINTER_CHECK(
      spec.output == spec.input ||
          (spec.output == DType::F32 && (spec.input == DType::BF16 || spec.input == DType::F16)),
      "matmul {} has no such output type", spec.str());
  SINTER_CHECK(spec.alignment > 0 && (spec.alignment & (spec.alignment - 1)) == 0,
               "matmul {} with alignment {}", spec.str(), spec.alignment);
  const Strides strides = given_strides(spec);
  SINTER_CHECK(strides.row_a >= (spec.transpose_a ? spec.m : spec.k) &&
                   strides.row_b >= (spec.transpose_b ? spec.k : spec.n) && strides.row_c >= spec.n,
               "matmul {} with rows that overlap", spec.str());
  SINTER_CHECK(spec.batch <= 1 || strides.batch_c != 0 || spec.m * spec.n == 0,
               "matmul {} writes every matrix of the batch to one place", spec.str());
  SINTER_CHECK(!spec.bias || (!spec.accumulate && spec.input != DType::F64),
               "matmul {} adds no row", spec.str());
}

template <typename T>
T algorithm_attribute(const Choice& choice, cublasLtMatmulAlgoConfigAttributes_t which) {
  T value{};
  std::size_t written = 0;
  cublaslt().cublasLtMatmulAlgoConfigGetAttribute(&choice.algorithm, which, &value, sizeof value,
                                                  &written);
  return value;
}

}  // namespace

std::string MatmulSpec::str() const {
  const auto shape = [](bool transposed, int64_t rows, int64_t columns) {
    return transposed ? fmt::format("({}x{})^T", columns, rows)
                      : fmt::format("{}x{}", rows, columns);
  };
  return fmt::format("{}[{} , {}]{} -> {}{}", to_string(input), shape(transpose_a, m, k),
                     shape(transpose_b, k, n), batch != 1 ? fmt::format(" batch {}", batch) : "",
                     to_string(output),
                     accumulate ? " accumulated"
                     : bias     ? " plus bias"
                                : "") +
         (allow_tf32 ? " tf32" : "");
}

bool cublaslt_available(std::string* why) {
  const CublasLt& api = cublaslt_state();
  if (why != nullptr) *why = api.problem;
  return api.problem.empty();
}

std::size_t cublaslt_version() {
  return cublaslt().cublasLtGetVersion();
}

namespace {

// What encoded() wrote; nullopt for any other text.
std::optional<Choice> decoded(const std::string& text) {
  Choice choice;
  constexpr std::size_t kDigits = 16;
  if (text.size() != std::size(choice.algorithm.data) * kDigits) return std::nullopt;
  for (std::size_t i = 0; i < std::size(choice.algorithm.data); ++i) {
    const char* begin = text.data() + i * kDigits;
    uint64_t word = 0;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, word, 16);
    if (error != std::errc() || end != begin + kDigits) return std::nullopt;
    choice.algorithm.data[i] = word;
  }
  return choice;
}

}  // namespace

struct MatmulPlan::State {
  // The batch in pieces that cuBLASLt takes.
  struct Piece {
    int64_t first = 0;
    Layouts layouts;
    Choice choice;
  };
  Device* device = nullptr;
  MatmulSpec spec;
  Strides strides{};
  cublasLtHandle_t handle = nullptr;
  Description description;
  std::vector<Piece> pieces;
};

MatmulPlan::MatmulPlan(Device& device, const MatmulSpec& spec, const std::string& encoded)
    : state_(std::make_unique<State>()) {
  validate(spec);
  state_->device = &device;
  state_->spec = spec;
  state_->strides = given_strides(spec);
  if (spec.m * spec.n * spec.batch == 0 || spec.k == 0) return;  // nothing to multiply

  device.make_current();
  Library& library = Library::of(device, spec);
  state_->handle = library.handle();
  state_->description = make_description(spec);
  for (int64_t first = 0; first < spec.batch; first += kMaxBatch) {
    const int64_t batch = std::min(spec.batch - first, kMaxBatch);
    State::Piece& piece = state_->pieces.emplace_back();
    piece.first = first;
    piece.layouts = make_layouts(spec, state_->strides, batch);
    if (std::optional<Choice> named = decoded(encoded))
      if (auto usable = library.check(*named, spec, state_->description, piece.layouts,
                                      state_->strides, batch)) {
        piece.choice = *usable;
        continue;
      }
    piece.choice = library.choose(spec, state_->description, piece.layouts, state_->strides, batch);
  }
}

std::vector<MatmulPlan> MatmulPlan::candidates(Device& device, const MatmulSpec& spec, int count) {
  std::vector<MatmulPlan> plans;
  if (spec.m * spec.n * spec.k * spec.batch == 0 || spec.batch > kMaxBatch) return plans;
  const MatmulPlan first(device, spec);
  const State& s = *first.state_;
  const std::vector<Choice> choices = Library::of(device, spec)
                                          .ask(spec, s.description, s.pieces[0].layouts, s.strides,
                                               spec.alignment, spec.batch, count);
  for (const Choice& choice : choices) {
    MatmulPlan plan(device, spec);
    plan.state_->pieces[0].choice = choice;
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::string MatmulPlan::encoded() const {
  if (state_->pieces.empty()) return "";
  std::string text;
  for (uint64_t word : state_->pieces.front().choice.algorithm.data)
    text += fmt::format("{:016x}", word);
  return text;
}

MatmulPlan::~MatmulPlan() = default;
MatmulPlan::MatmulPlan(MatmulPlan&&) noexcept = default;
MatmulPlan& MatmulPlan::operator=(MatmulPlan&&) noexcept = default;

const MatmulSpec& MatmulPlan::spec() const {
  return state_->spec;
}

std::size_t MatmulPlan::workspace_bytes() const {
  std::size_t bytes = 0;
  for (const State::Piece& piece : state_->pieces) bytes = std::max(bytes, piece.choice.workspace);
  return bytes;
}

std::string MatmulPlan::algorithm() const {
  if (state_->pieces.empty()) return "none";
  const Choice& choice = state_->pieces.front().choice;
  return fmt::format("algo {} tile {} stages {} split-k {}",
                     algorithm_attribute<int32_t>(choice, CUBLASLT_ALGO_CONFIG_ID),
                     algorithm_attribute<uint32_t>(choice, CUBLASLT_ALGO_CONFIG_TILE_ID),
                     algorithm_attribute<uint32_t>(choice, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                     algorithm_attribute<int32_t>(choice, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

void MatmulPlan::run(const Stream& stream, DevicePtr a, DevicePtr b, DevicePtr c, DevicePtr d,
                     DevicePtr workspace) const {
  const State& state = *state_;
  const MatmulSpec& spec = state.spec;
  if (spec.m * spec.n * spec.batch == 0) return;
  const auto input_size = static_cast<uint64_t>(size_of(spec.input));
  const auto output_size = static_cast<uint64_t>(size_of(spec.output));

  if (spec.k == 0) {
    // An empty sum: zero, or C or the bias as it is.
    const std::size_t pitch = static_cast<std::size_t>(state.strides.row_c) * output_size;
    const std::size_t width = static_cast<std::size_t>(spec.n) * output_size;
    for (int64_t i = 0; i < spec.batch; ++i) {
      const uint64_t offset = static_cast<uint64_t>(i * state.strides.batch_c) * output_size;
      for (int64_t row = 0; spec.bias && row < spec.m; ++row)
        copy_on_device(stream, d + offset + static_cast<uint64_t>(row) * pitch, c, width);
      if (spec.bias) continue;
      if (!spec.accumulate) {
        fill_rows(stream, d + offset, pitch, 0, width, static_cast<std::size_t>(spec.m));
        continue;
      }
      for (int64_t row = 0; c != d && row < spec.m; ++row) {
        const uint64_t at = offset + static_cast<uint64_t>(row) * pitch;
        copy_on_device(stream, d + at, c + at, width);
      }
    }
    return;
  }

  state.device->make_current();
  const float one_f32 = 1;
  const float beta_f32 = spec.accumulate ? 1 : 0;
  const double one_f64 = 1;
  const double beta_f64 = beta_f32;
  const bool is_f64 = spec.input == DType::F64;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address is what the library takes
  const auto pointer = [](DevicePtr address) { return reinterpret_cast<void*>(address); };
  if (spec.bias) set_bias(state.description.get(), c, spec);
  for (const State::Piece& piece : state.pieces) {
    const auto at = [&](DevicePtr base, int64_t stride, uint64_t size) {
      return pointer(base + static_cast<uint64_t>(piece.first * stride) * size);
    };
    void* output = at(d, state.strides.batch_c, output_size);
    // Without beta C is not read, but it must be a valid operand all the same.
    const void* addend = spec.accumulate ? at(c, state.strides.batch_c, output_size) : output;
    const cublasStatus_t status = cublaslt().cublasLtMatmul(
        state.handle, state.description.get(),
        is_f64 ? static_cast<const void*>(&one_f64) : &one_f32,
        at(b, state.strides.batch_b, input_size), piece.layouts.b.get(),
        at(a, state.strides.batch_a, input_size), piece.layouts.a.get(),
        is_f64 ? static_cast<const void*>(&beta_f64) : &beta_f32, addend, piece.layouts.c.get(),
        output, piece.layouts.c.get(), &piece.choice.algorithm, pointer(workspace),
        piece.choice.workspace, stream.handle());
    check_lt(status, "cublasLtMatmul", spec);
  }
}

}  // namespace sinter::cuda

#endif  // SINTER_HAVE_CUDA
