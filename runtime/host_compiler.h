#pragma once
// Compiles generated C++ with the system's compiler and loads it.
//
// The compiler is SINTER_CXX, else CXX, else c++, g++ or clang++, whichever is found first; without
// one the constructor throws DeviceError, and callers fall back to the reference. Sources include
// no headers and export extern "C" symbols. Floating point is IEEE as written: no contraction, no
// fast-math. Units compile in parallel, equal ones once; results are kept in the disk cache under
// the full source, the flags, the compiler's version and the instruction set that -march=native
// stands for. Nothing is left in the temporary folder.

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sinter {

class DiskCache;

struct HostSource {
  std::string name;       // names the unit in messages and dumps: "add_rms_norm_1f3a"
  std::string text;       // C++17
  std::string dump_path;  // where the caller has written `text`, if anywhere
};

// A loaded shared object; symbols live as long as it does.
class HostModule {
 public:
  HostModule(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  ~HostModule();
  HostModule(const HostModule&) = delete;
  HostModule& operator=(const HostModule&) = delete;

  // DeviceError where it is missing.
  void* symbol(const std::string& name) const;
  template <typename Function>
  Function* function(const std::string& name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* handle_;
  std::string name_;
};

struct HostCompilerOptions {
  std::string compiler;            // a path or a name on PATH; overrides the environment
  std::vector<std::string> flags;  // after sinter's own
  std::string dump_folder;         // where a unit that does not compile is kept; else SINTER_DUMP
  DiskCache* cache = nullptr;      // null: nothing is kept
};

class HostCompiler {
 public:
  explicit HostCompiler(HostCompilerOptions options = {});

  // One module for each source, in order; equal texts share one. A unit that does not compile
  // throws DeviceError with the compiler's log and the place of the source.
  // `reasons` receives for each source why it was compiled (compile_reason.h), "" where it was not.
  std::vector<std::shared_ptr<const HostModule>> compile(
      std::span<const HostSource> sources, std::vector<std::string>* reasons = nullptr) const;

  // The compiler's program and its leading arguments ("ccache", "g++").
  const std::vector<std::string>& command() const { return command_; }
  const std::vector<std::string>& flags() const { return flags_; }
  // What the cache key says of compiler and machine: all predefined macros, version and instruction
  // set among them.
  const std::string& identity() const { return identity_; }

 private:
  std::shared_ptr<const HostModule> build(const HostSource& source, const std::string& stem,
                                          std::string& reason) const;
  std::string version() const;
  std::string compile_unit(const HostSource& source, const std::string& stem) const;
  [[noreturn]] void refuse(const HostSource& source, const std::string& log) const;

  HostCompilerOptions options_;
  std::vector<std::string> command_, flags_;
  std::string identity_;
};

}  // namespace sinter
