// Random graphs: pass settings against one another, executors against the f64 reference, and what
// a failure looks like.
//
// SINTER_FUZZ_COUNT and SINTER_FUZZ_SEED ask for more or other graphs than the usual ones. Failing
// graphs are written to the folder `fuzz` of the working directory. The program `fuzz` does the
// same by itself, and on CUDA.

#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>
#include <sinter/tests/fuzz/lib/generate.h>
#include <sinter/tests/fuzz/lib/session.h>
#include <sinter/tests/fuzz/lib/shrink.h>
#include <sinter/tests/support.h>

#include <cstdlib>

namespace sinter::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

void compare_random(FuzzOptions options) {
  options.count = from_environment("SINTER_FUZZ_COUNT", options.count);
  options.first_seed = static_cast<uint64_t>(from_environment("SINTER_FUZZ_SEED", 1));
  FuzzResult result = run_fuzz(options);
  for (const std::string& failure : result.failures) FAIL_CHECK(failure);
  CHECK(result.graphs == options.count);
  CHECK(result.ill * 20 <= result.graphs);
  MESSAGE(result.summary());
}

// A pass with a fault: it takes a difference for its opposite.
void swap_differences(Module& module, PassContext&) {
  for (const auto& graph : module.graphs())
    for (Op& op : *graph) {
      if (!op.is("sub")) continue;
      Value a = op.operand(0);
      op.set_operand(0, op.operand(1));
      op.set_operand(1, a);
    }
}

Setting with_pass(const PassInfo& pass) {
  Setting setting{"with a faulty pass", {}, default_pipeline(), {}};
  setting.pipeline.insert(setting.pipeline.begin(), {&pass, {}});
  return setting;
}

}  // namespace

TEST_CASE("random graphs have one result in every pass setting, near the f64 reference") {
  FuzzOptions options;
  options.count = kSanitized ? 100 : 500;
  compare_random(options);
}

TEST_CASE("random graphs on the host's compiler are near the f64 reference") {
  FuzzOptions options;
  options.device = DeviceKind::Cpu;
  options.count = kSanitized ? 30 : 200;
  options.batch = 100;
  for (const DeviceEntry& entry : list_devices())
    if (entry.kind == DeviceKind::Cpu && !entry.unavailable.empty())
      SINTER_SKIP(entry.unavailable.c_str());
  compare_random(options);
}

TEST_CASE("a random graph is the same for the same seed, verifies and round-trips") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Specimen a = generate(seed), b = generate(seed);
    verify(*a.module);
    std::string text = print(*a.module, {.locations = true});
    CHECK(text == print(*b.module, {.locations = true}));
    CHECK(a.flags() == b.flags());
    CHECK(print(*parse_module(text, "random.sir"), {.locations = true}) == text);
  }
}

TEST_CASE("random graphs use nearly every op of the registry") {
  for (uint64_t seed = 1; seed <= 400; ++seed) generate(seed);
  std::string missing;
  size_t absent = 0, all = 0;
  for (const OpDef* def : OpRegistry::get().all()) {
    ++all;
    if (generated_ops().contains(def->name)) continue;
    ++absent;
    missing += " " + def->name;
  }
  CAPTURE(missing);
  CHECK(absent * 5 <= all);
  for (const char* name : {"attention", "dropout", "custom_vjp", "random_bernoulli"}) {
    CAPTURE(name);
    CHECK(generated_ops().contains(name));
  }
}

TEST_CASE("a faulty pass is seen, and what it fails on is shrunk to the op that it breaks") {
  PassInfo faulty{"swap-differences", "breaks sub", "", &swap_differences, PassInfo::Removes};
  std::vector<Setting> settings{{"all passes", {}, {}, {}}, with_pass(faulty)};
  int seen = 0;
  for (uint64_t seed = 1; seed < 200 && seen < 3; ++seed) {
    Specimen specimen = generate(seed);
    if (specimen.graph().size() < 12) continue;
    auto failure = compare_settings(specimen, settings).failure;
    if (!failure) continue;
    ++seen;
    CAPTURE(seed);
    CHECK(failure->kind == Failure::Bits);
    CHECK(failure->setting == "with a faulty pass");
    Specimen small = shrink(specimen, [&](const Specimen& s) {
      auto found = compare_settings(s, settings).failure;
      return found && found->kind == Failure::Bits;
    });
    std::string text = print(*small.module);
    CAPTURE(text);
    CHECK(text.find("sub") != std::string::npos);
    CHECK(small.graph().size() <= 5);
    CHECK(small.graph().outputs().size() == 1);
    std::string message = report_settings(specimen, *failure, settings, "fuzz/faulty");
    CHECK(message.find(fmt::format("seed {}", seed)) != std::string::npos);
    CHECK(message.find("sinter-run FILE --device=interpreter") != std::string::npos);
    CHECK(std::filesystem::exists(fmt::format("fuzz/faulty/interpreter_{}.sir", seed)));
  }
  CHECK(seen == 3);
}

TEST_CASE("a result off by little more than the reference's own error is seen") {
  Specimen specimen = generate(3);
  auto results = run_on(specimen, DeviceKind::Interpreter, {});
  Right right = right_of(specimen);
  CHECK(!check_error(specimen, right, results));
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].size() == 0 || results[i].dtype() != DType::F32) continue;
    auto wrong = results;
    wrong[i] = results[i].clone();
    wrong[i].as<float>()[0] += static_cast<float>(4 * right.allowed[i] + 1e-30);
    auto failure = check_error(specimen, right, wrong);
    REQUIRE(failure);
    CHECK(failure->kind == Failure::Error);
    CHECK(failure->what.find(specimen.graph().outputs()[i].name) == 0);
  }
}

}  // namespace sinter::test
