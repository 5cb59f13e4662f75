#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>
#include <sinter/passes/detail/util.h>
#include <sinter/passes/pass.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

namespace sinter {

std::string Remark::str() const {
  if (!location.known()) return fmt::format("remark: [{}] {}", pass, message);
  return fmt::format("{}: remark: [{}] {}", location.str(), pass, message);
}

std::string_view PassContext::option(std::string_view key, std::string_view otherwise) const {
  auto it = options_.find(key);
  return it == options_.end() ? otherwise : std::string_view(it->second);
}

bool PassContext::has_option(std::string_view key) const {
  return options_.contains(key);
}

void PassContext::remark(const SourceLocation& location, std::string message) {
  remarks_.push_back({pass_, location, std::move(message)});
}

namespace {

bool contains(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string pipeline_text(const std::vector<PipelineStep>& steps, size_t begin) {
  std::string out;
  for (size_t i = begin; i < steps.size(); ++i) {
    if (i > begin) out += ",";
    out += steps[i].pass->name;
    if (steps[i].options.empty()) continue;
    std::string options;
    for (const auto& [key, value] : steps[i].options)
      options += fmt::format("{}{}={}", options.empty() ? "" : " ", key, value);
    out += fmt::format("{{{}}}", options);
  }
  return out;
}

// The steps as --disable leaves them.
std::vector<PipelineStep> enabled(const std::vector<PipelineStep>& steps,
                                  const std::vector<std::string>& disabled) {
  for (const std::string& name : disabled) {
    const PassInfo* pass = find_pass(name);
    if (pass == nullptr) throw Error(fmt::format("there is no pass '{}' to switch off", name));
    if (pass->disabling == PassInfo::Refused)
      throw Error(fmt::format("pass {} cannot be switched off", name));
  }
  std::vector<PipelineStep> out;
  for (PipelineStep step : steps) {
    if (contains(disabled, step.pass->name)) {
      if (step.pass->disabling == PassInfo::Removes) continue;
      step.options["off"] = "true";
    }
    out.push_back(std::move(step));
  }
  return out;
}

// Keeps the module as it was before the first pass, so that the state before any pass can be had
// again: the passes are deterministic, and a copy costs less than printing before each of them.
class Reproducer {
 public:
  Reproducer(const Module& module, const std::vector<PipelineStep>& steps)
      : start_(module.clone()), steps_(steps) {}

  // The text that makes pass `failed` fail when sinter-opt reads it.
  std::string text(size_t failed) const {
    PrintOptions with_locations;
    with_locations.locations = true;
    std::unique_ptr<Module> module = start_->clone();
    size_t from = failed;
    try {
      std::vector<Remark> remarks;
      std::map<std::string, MemoryPlan> plans;
      for (size_t i = 0; i < failed; ++i) {
        PassContext context(steps_[i].pass->name, steps_[i].options, remarks, plans);
        steps_[i].pass->run(*module, context);
      }
    } catch (const std::exception&) {
      module = start_->clone();
      from = 0;
    }
    return fmt::format("// RUN: sinter-opt %s --passes='{}'\n{}", pipeline_text(steps_, from),
                       print(*module, with_locations));
  }

  // Writes it to the dump folder, else, if `somewhere`, to the temporary one; the path, or "".
  std::string write(const std::string& dump_dir, size_t failed, bool somewhere) const {
    std::string content;
    try {
      content = text(failed);
    } catch (const std::exception&) {
      return "";
    }
    std::string path = dump_dir + "/reproducer.sir";
    if (!dump_dir.empty() && detail::write_text(path, content)) return path;
    if (!somewhere) return "";
    std::error_code none;
    path = fmt::format("{}/sinter-reproducer-{}.sir",
                       std::filesystem::temp_directory_path(none).string(), ::getpid());
    return !none && detail::write_text(path, content) ? path : "";
  }

 private:
  std::unique_ptr<Module> start_;
  const std::vector<PipelineStep>& steps_;
};

}  // namespace

void PassManager::run(Module& module, const std::vector<PipelineStep>& all_steps) {
  using Clock = std::chrono::steady_clock;
  std::vector<PipelineStep> steps = enabled(all_steps, disabled);
  for (const std::string& name : print_after)
    if (name != "all" && find_pass(name) == nullptr)
      throw Error(fmt::format("there is no pass '{}' to print after", name));
  PrintOptions options;
  options.locations = locations;
  bool watch = !print_after.empty() && on_print;
  std::string before = watch ? print(module, options) : "";
  Reproducer reproducer(module, steps);

  for (size_t i = 0; i < steps.size(); ++i) {
    const PassInfo& pass = *steps[i].pass;
    PassContext context(pass.name, steps[i].options, remarks_, plans);
    auto start = Clock::now();
    bool ran = false;
    try {
      pass.run(module, context);
      ran = true;
      if (verify_each) verify(module);
    } catch (const Error& e) {
      // A user's mistake needs no report to us, unless a pass is what made the module wrong.
      if (!ran || pass.name == "verify") {
        reproducer.write(dump_dir, i, false);
        throw;
      }
      std::string path = reproducer.write(dump_dir, i, true);
      throw InternalError(fmt::format("pass {} left a broken module: {}{}", pass.name, e.what(),
                                      path.empty() ? "" : "\nreproducer: " + path));
    } catch (const InternalError& e) {
      std::string path = reproducer.write(dump_dir, i, true);
      throw InternalError(fmt::format("pass {}: {}{}", pass.name, e.what(),
                                      path.empty() ? "" : "\nreproducer: " + path));
    }
    timings_.push_back(
        {std::string(pass.name), std::chrono::duration<double>(Clock::now() - start).count()});
    if (watch) {
      std::string after = print(module, options);
      if (after != before && (contains(print_after, "all") || contains(print_after, pass.name)))
        on_print(fmt::format("// after {}\n{}", pass.name, after));
      before = std::move(after);
    }
    ++count_;
    if (!dump_dir.empty()) {
      PrintOptions with_locations;
      with_locations.locations = true;
      std::string path = fmt::format("{}/{:02}-{}.sir", dump_dir, count_, pass.name);
      if (!detail::write_text(path, print(module, with_locations)))
        remarks_.push_back({"dump", {}, path + " cannot be written"});
    }
  }
}

}  // namespace sinter
