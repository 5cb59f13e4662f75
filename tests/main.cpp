// The main program of every doctest binary. Exit status: 0 all passed, 1 a failure, 2 the filter
// matched no case, 77 a case was skipped and none failed.

#define DOCTEST_CONFIG_IMPLEMENT
#include <dlfcn.h>
#include <sinter/tests/support.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kNoCase = 2;
constexpr int kSkipped = 77;

bool skipped = false;
unsigned cases_run = 0;

// Counts cases, since doctest itself calls a run without any a success.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases_run = stats.numTestCasesPassingFilters;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("counter", 1, Counter);

// Asks the driver itself, so that a fault in sinter's own detection cannot skip the GPU tests.
bool gpu_present() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return false;
  auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  return init != nullptr && count != nullptr && init(0) == 0 && count(&devices) == 0 && devices > 0;
}

}  // namespace

namespace sinter::test {

void note_skip(const char* file, int line, const char* reason) {
  skipped = true;
  std::printf("%s:%d: skipped: %s\n", file, line, reason);
}

std::string data_path(const std::string& name) {
  const char* folder = std::getenv("SINTER_TEST_DATA");
  return std::string(folder != nullptr ? folder : SINTER_TEST_DATA) + "/" + name;
}

}  // namespace sinter::test

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const bool needs_gpu = std::getenv("SINTER_TEST_NEEDS_GPU") != nullptr;
  if (needs_gpu && !gpu_present()) {
    std::printf("skipped: no CUDA device\n");
    return kSkipped;
  }
  const int status = context.run();
  if (context.shouldExit() || status != 0) return status;
  if (cases_run == 0) {
    std::fprintf(stderr, "no test case matches\n");
    return kNoCase;
  }
  return skipped ? kSkipped : 0;
}
