#pragma once
// One graph on many paths: the interpreter in every pass setting, bit for bit against one another,
// and executors against the f64 reference, within a bound that the graph's own f32 error sets.

#include <sinter/codegen/loops.h>
#include <sinter/tests/fuzz/lib/specimen.h>

#include <functional>
#include <optional>
#include <span>

namespace sinter::test {

// A way through the passes.
struct Setting {
  std::string name;                    // "all passes", "without cse"
  std::vector<std::string> disabled;   // as sinter-run's --disable
  std::vector<PipelineStep> pipeline;  // empty: the default one
  std::string target;                  // as sinter-run's --target; empty: the module's
};
// All passes, each pass of the default pipeline switched off that can be, all of those at once, and
// all passes for other targets than the module's.
std::vector<Setting> all_settings();

struct Failure {
  enum Kind : uint8_t { Throws, Bits, Error } kind = Throws;
  std::string setting;  // where; "" for the first one
  std::string what;     // output, element and values, or what was thrown
};
std::string_view to_string(Failure::Kind kind);

// What the f64 reference says, and how far it is from the f32 one.
struct Right {
  std::vector<Tensor> wide;  // floats as f64
  // By output: 8·|ref32 - ref64| + 1e-6·scale, the most of all elements, and of ref32 rounded to
  // nearest, up and down.
  std::vector<double> allowed;
  bool ill = false;  // the graph's own f32 reference is off by more than 1e-2
};
Right right_of(const Specimen& specimen);

// Outputs in the graph's order against the reference; floats within `allowed`, others equal.
std::optional<Failure> check_error(const Specimen& specimen, const Right& right,
                                   const std::vector<Tensor>& results);

// The kernels of a module that the passes have been over.
std::vector<LoopProgram> kernels_of(const Module& module);

std::vector<Tensor> run_on(const Specimen& specimen, DeviceKind device, const Setting& setting);

struct Comparison {
  std::optional<Failure> failure;
  bool ill = false;
  int ran = 0;  // settings that gave other code than one before
};
// The interpreter in each setting, the first of which the others are held against; those without
// canonicalize against one another too, as that pass may change the sign of a zero. A setting that
// makes attention one op where the first did not, or the reverse, is held against the reference, as
// is one for another target. Kernels of CUDA targets are printed, too.
Comparison compare_settings(const Specimen& specimen, std::span<const Setting> settings);

// Specimens as one module, compiled once for `device`, each against its reference. Where that
// throws, each by itself. By specimen. With `arch`, which is for the interpreter, kernels are made
// for that target, and NVRTC compiles them too.
std::vector<Comparison> compare_on(DeviceKind device, std::span<const Specimen> specimens,
                                   const std::string& arch = "");

}  // namespace sinter::test
