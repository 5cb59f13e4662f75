// sinter-opt: reads a module, runs passes, prints what comes out.
//
// The result goes to standard output; remarks, prints and timing to standard error, errors as
// `FILE:LINE:COL: error: …`. Exit status 1 on any error.

#include <sinter/frontends/cli/common.h>
#include <sinter/frontends/cli/emit.h>
#include <sinter/frontends/cli/op_list.h>
#include <sinter/ir/text.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>
#include <sinter/runtime/disk_cache.h>

#include <CLI/CLI.hpp>

namespace sinter {
namespace {

struct Options {
  std::string file, passes, target, emit = "ir", graph, format = "text";
  std::vector<std::string> disable, print_after;
  bool remarks = false, timing = false, locations = false;
  bool list_passes = false, list_ops = false;
};

using cli::err, cli::out, cli::read_source;

void list_passes() {
  for (const PassInfo& pass : pass_registry()) {
    out(fmt::format("{:<14} {}\n", pass.name, pass.summary));
    if (!pass.options.empty()) out(fmt::format("{:<14} {{{}}}\n", "", pass.options));
  }
}

Target named_target(const std::string& name) {
  if (auto target = Target::named(name)) return *target;
  throw Error(fmt::format("there is no target '{}'", name));
}

void emit(const Options& o, const Module& module, const PassManager& manager) {
  const Graph* only = o.graph.empty() ? nullptr : module.find(o.graph);
  if (!o.graph.empty() && only == nullptr)
    throw Error(fmt::format("there is no graph @{}", o.graph));
  PrintOptions options;
  options.locations = o.locations;
  if (o.emit == "ir") return out(only ? print(*only, options) : print(module, options));
  if (o.emit == "plan") {
    for (const auto& [name, plan] : manager.plans)
      if (o.graph.empty() || name == o.graph) out(plan.str());
    return;
  }
  out(emit_kernels(module, o.emit, o.graph));
}

void run(const Options& o) {
  std::string source = read_source(o.file);
  std::unique_ptr<Module> module = parse_module(source, o.file == "-" ? "<stdin>" : o.file);
  if (!o.target.empty())
    module->target = named_target(o.target);
  else if ((o.emit == "cuda" || o.emit == "cubin") && !module->target.is_cuda())
    module->target = named_target("sm_90a");
  PassManager manager;
  manager.disabled = o.disable;
  manager.print_after = o.print_after;
  manager.locations = o.locations;
  manager.on_print = err;
  std::string problem;
  manager.dump_dir = detail::dump_folder("", problem);
  if (!problem.empty()) err(fmt::format("warning: {}\n", problem));
  auto report = [&] {
    if (o.remarks)
      for (const Remark& remark : manager.remarks()) err(remark.str() + "\n");
    if (o.timing)
      for (const auto& [pass, seconds] : manager.timings())
        err(fmt::format("{:<14} {:9.3f} ms\n", pass, seconds * 1e3));
    if (o.timing && o.emit == "cubin") {
      CacheStats stats = DiskCache::global().stats();
      err(fmt::format("NVRTC: {} kernels compiled, {} from the cache\n", stats.compiles,
                      stats.hits));
    }
  };
  try {
    std::vector<PipelineStep> steps = parse_pipeline(o.passes);
    if (o.emit != "ir")
      for (PipelineStep& step : rest_of_pipeline(steps)) steps.push_back(std::move(step));
    manager.run(*module, steps);
    emit(o, *module, manager);
  } catch (...) {
    report();
    throw;
  }
  report();
}

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Runs passes over a module of sinter's IR and prints the result.", "sinter-opt");
  app.add_option("FILE", o.file, "The module to read; - for standard input");
  app.add_option("--passes", o.passes, "Passes to run, as in 'autodiff{of=l wrt=w},cse'");
  app.add_option("--target", o.target, "host, sm_80, sm_86, sm_89, sm_90a or sm_120");
  app.add_option(
      "--emit", o.emit,
      "ir; or kernel, loops, cuda, cpp, cubin or plan, for which the rest of the default "
      "pipeline runs first");
  app.add_option("--disable", o.disable, "Passes to switch off")->delimiter(',');
  app.add_option("--print-after", o.print_after, "Prints the module after these passes, or all")
      ->delimiter(',');
  app.add_flag("--remarks", o.remarks, "Prints what the passes decided, and why");
  app.add_flag("--timing", o.timing, "Prints how long each pass took");
  app.add_flag("--locations", o.locations, "Prints source locations");
  app.add_option("--graph", o.graph, "Prints this graph alone");
  app.add_flag("--list-passes", o.list_passes, "Prints the passes and stops");
  app.add_flag("--list-ops", o.list_ops, "Prints the ops and stops");
  app.add_option("--format", o.format, "text, json or markdown, for --list-ops")
      ->check(CLI::IsMember({"text", "json", "markdown"}));
  try {
    app.parse(argc, argv);
    if (!o.list_passes && !o.list_ops && o.file.empty()) throw CLI::RequiredError("FILE");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 1;
  }
  try {
    if (o.list_passes) list_passes();
    if (o.list_ops) out(cli::list_ops(o.format));
    if (!o.list_passes && !o.list_ops) run(o);
    return 0;
  } catch (const Error& e) {
    // Mistakes that have no line of their own still name the file.
    bool placed = e.diagnostic().location.known() || o.file.empty();
    err(placed ? fmt::format("{}\n", e.what()) : fmt::format("{}: {}\n", o.file, e.what()));
  } catch (const std::exception& e) {
    err(fmt::format("sinter-opt: {}\n", e.what()));
  }
  return 1;
}

}  // namespace
}  // namespace sinter

int main(int argc, char** argv) {
  return sinter::main(argc, argv);
}
