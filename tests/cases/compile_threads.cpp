// CC-13: threads that compile at once, and what they share.

#include <sinter/ir/ops.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

using namespace sinter;

namespace {

// Graph number `number`: no two have a kernel in common.
Module graph_of(int number) {
  Module module;
  Graph& graph = module.add_graph("f");
  Value x = graph.add_input("x", {DType::F32, {64, 8}});
  graph.add_output("y", sum(tanh(x * (number + 2.0)), {1}));
  return module;
}

}  // namespace

TEST_CASE("CC-13: eight threads compile and run twenty graphs each, half of them equal") {
  bool have_cpu = false;
  for (const DeviceEntry& d : list_devices())
    have_cpu = have_cpu || (d.kind == DeviceKind::Cpu && d.unavailable.empty());
  if (!have_cpu) SINTER_SKIP("no C++ compiler");
  const test::TemporaryFolder folder;
  CompileOptions options;
  options.cache_dir = folder.path;
  const Tensor x = fill({DType::F32, {64, 8}}, 3);

  std::mutex mutex;
  std::string problem;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      try {
        for (int i = 0; i < 20; ++i) {
          // Every other one is known to all threads; of its own a thread has one.
          int number = i % 2 == 0 ? i / 2 : 100 + t;
          Module module = graph_of(number);
          Tensor y = make_session(compile(module, options))->run("f", {{"x", x}}).at("y");
          CompileOptions reference;
          reference.device = DeviceKind::Reference;
          Tensor expected = make_session(compile(module, reference))->run("f", {{"x", x}}).at("y");
          for (int64_t k = 0; k < y.size(); ++k)
            if (std::abs(y.at(k) - expected.at(k)) > 1e-5)
              throw Error(fmt::format("graph {}: {} is not {}", number, y.at(k), expected.at(k)));
        }
      } catch (const std::exception& e) {
        std::lock_guard lock(mutex);
        problem = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(problem == "");
  // Each of the 10 + 8 graphs went to the compiler once.
  CHECK(DiskCache::of(folder.path).stats().compiles == 18);
}
