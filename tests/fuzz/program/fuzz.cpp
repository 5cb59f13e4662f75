// Compares random graphs: `fuzz --count 2000 --seed 1 --device interpreter|cpu|cuda`.
//
// interpreter: every pass setting, bits equal, other targets, and the f64 reference. cpu and cuda:
// the f64 reference, --batch graphs to a module. So too --compile: NVRTC makes machine code of the
// kernels that the interpreter runs. A seed names a graph together with --most-ops and
// --most-elements, and with the ops of the registry. Exit status 1 when something failed; each
// failure is shrunk to a .sir file below --out.

#include <sinter/tests/fuzz/lib/generate.h>
#include <sinter/tests/fuzz/lib/session.h>

#include <CLI/CLI.hpp>
#include <cstdio>

int main(int argc, char** argv) {
  using namespace sinter::test;
  FuzzOptions options;
  options.progress = [](const std::string& line) {
    std::fputs(line.c_str(), stdout);
    std::fflush(stdout);
  };
  std::string device = "interpreter";
  bool ops = false;
  CLI::App app{"compares random graphs on one device against the reference"};
  app.add_option("--count", options.count, "graphs");
  app.add_option("--seed", options.first_seed, "the seed of the first graph; the rest count on");
  app.add_option("--device", device, "interpreter, cpu or cuda");
  app.add_option("--compile", options.arch,
                 "on the interpreter: makes kernels for this target, sm_90a say, and has NVRTC "
                 "compile them, in place of the pass settings");
  app.add_option("--batch", options.batch,
                 "graphs to a module on cpu and cuda, and with --compile");
  app.add_option("--most-ops", options.generator.most_ops, "ops of a graph before its gradients");
  app.add_option("--most-elements", options.generator.most_elements, "elements of a value");
  app.add_option("--out", options.folder, "where failing graphs are written");
  app.add_option("--most-failures", options.most_failures, "stops after so many");
  app.add_flag("--ops", ops, "prints how often each op took part");
  CLI11_PARSE(app, argc, argv);
  if (!parse_device(device, options.device)) {
    std::fprintf(stderr, "there is no device '%s' to fuzz\n", device.c_str());
    return 1;
  }
  if (!options.arch.empty() && options.device != sinter::DeviceKind::Interpreter) {
    std::fprintf(stderr, "--compile goes with the interpreter\n");
    return 1;
  }
  FuzzResult result = run_fuzz(options);
  std::puts(result.summary().c_str());
  if (ops)
    for (const auto& [name, count] : generated_ops())
      std::printf("%8lld %s\n", static_cast<long long>(count), name.c_str());
  return result.failures.empty() ? 0 : 1;
}
