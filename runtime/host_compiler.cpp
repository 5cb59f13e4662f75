#include <sinter/runtime/host_compiler.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/compile_reason.h>
#include <sinter/runtime/disk_cache.h>
#include <sinter/runtime/thread_pool.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <unordered_map>

extern char** environ;

namespace sinter {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

bool write_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  return out.good();
}

// A folder that goes away with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string base = environment("TMPDIR");
    // mkdtemp replaces the six letters.
    path_ = (base.empty() ? "/tmp" : base) + "/sinter-XXXXXX";
    if (!mkdtemp(path_.data()))
      throw DeviceError(fmt::format("cannot make a temporary folder '{}': {}; set TMPDIR", path_,
                                    std::strerror(errno)));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool is_program(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

// The program's path, as a shell would find it; empty when there is none.
std::string find_program(const std::string& name) {
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  const std::string path = environment("PATH");
  for (size_t begin = 0; begin <= path.size();) {
    size_t end = path.find(':', begin);
    if (end == std::string::npos) end = path.size();
    if (end > begin) {
      std::string candidate = path.substr(begin, end - begin) + "/" + name;
      if (is_program(candidate)) return candidate;
    }
    begin = end + 1;
  }
  return "";
}

// "ccache g++" as its words, the first one found on PATH; empty when it cannot be.
std::vector<std::string> find_command(const std::string& text) {
  if (std::string whole = find_program(text); !whole.empty()) return {whole};
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (words.empty()) return {};
  words[0] = find_program(words[0]);
  if (words[0].empty()) return {};
  return words;
}

std::vector<std::string> find_compiler(const std::string& wanted) {
  const std::string set = environment("SINTER_CXX");
  const std::string& asked = wanted.empty() ? set : wanted;
  if (!asked.empty()) {
    auto command = find_command(asked);
    if (command.empty())
      throw DeviceError(fmt::format(
          "no C++ compiler found: '{}' is not a program; set SINTER_CXX to a C++ compiler", asked));
    return command;
  }
  for (const std::string& name :
       {environment("CXX"), std::string("c++"), std::string("g++"), std::string("clang++")})
    if (auto command = find_command(name); !command.empty()) return command;
  throw DeviceError(
      "no C++ compiler found: tried CXX, and c++, g++ and clang++ on PATH; set SINTER_CXX to a C++ "
      "compiler");
}

// Runs a program with both its output streams in the file `log` (standard output in `output`, where
// given); its exit status, or -1 when it did not start or did not end by itself.
int run_program(const std::vector<std::string>& arguments, const std::string& log,
                const std::string& output = "") {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // Messages in English and plain text, whatever the user's locale.
  std::string locale = "LC_ALL=C";
  std::vector<char*> envp;
  for (char** entry = environ; *entry; ++entry)
    if (std::strncmp(*entry, "LC_ALL=", 7) != 0) envp.push_back(*entry);
  envp.push_back(locale.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (output.empty())
    posix_spawn_file_actions_adddup2(&actions, 2, 1);
  else
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    write_file(log, fmt::format("cannot start {}: {}\n", arguments[0], std::strerror(error)));
    return -1;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return 0;  // a host that ignores SIGCHLD: the output file will tell
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Loads a shared object; null, and why, when the loader refuses it.
void* load(const std::string& path, std::string& why) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* text = dlerror();
    why = text ? text : "unknown error";
  }
  return handle;
}

// The first processor's description, without what changes from moment to moment.
std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(in, line) && !line.empty();)
    if (line.find("MHz") == std::string::npos && line.find("bogomips") == std::string::npos)
      text += line + '\n';
  return text;
}

// Which compiler on which processor: the files that a command names, by place, size and time.
CacheKey compiler_key(const std::vector<std::string>& command,
                      const std::vector<std::string>& flags) {
  std::string files, words;
  for (const std::string& word : command) {
    std::error_code error;
    const fs::path file = fs::canonical(find_program(word), error);
    struct stat info {};
    if (!error && stat(file.c_str(), &info) == 0)
      files += fmt::format("{} {} {} {}\n", file.string(), info.st_size, info.st_mtim.tv_sec,
                           info.st_mtim.tv_nsec);
  }
  for (const auto* list : {&command, &flags})
    for (const std::string& word : *list) words += word + '\n';
  return cache_key({"host compiler", files, words, processor()});
}

}  // namespace

HostModule::~HostModule() {
  dlclose(handle_);
}

void* HostModule::symbol(const std::string& name) const {
  void* address = dlsym(handle_, name.c_str());
  if (!address) throw DeviceError(fmt::format("host unit {} has no symbol {}", name_, name));
  return address;
}

HostCompiler::HostCompiler(HostCompilerOptions options) : options_(std::move(options)) {
  command_ = find_compiler(options_.compiler);
  if (options_.dump_folder.empty()) options_.dump_folder = environment("SINTER_DUMP");
  const std::vector<std::string> common = {
      "-O3",   "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
      "-fPIC", "-w"};

  // What a compiler answered once holds while its files and the processor are the same: a start
  // with a warm cache runs no compiler at all.
  const auto set_flags = [&](std::string_view machine) {
    flags_ = common;
    if (!machine.empty()) flags_.insert(flags_.begin() + 1, std::string(machine));
    flags_.insert(flags_.end(), options_.flags.begin(), options_.flags.end());
  };
  set_flags("");
  const CacheKey key = compiler_key(command_, flags_);
  if (options_.cache)
    if (const auto known = options_.cache->load(key)) {
      const size_t line = known->find('\n');
      set_flags(std::string_view(*known).substr(0, line));
      identity_ = known->substr(line + 1);
      return;
    }

  // The predefined macros name the compiler's version and every instruction set that "native" turns
  // on. Compilers that do not know -march=native get -mcpu, or code for the generic machine.
  TemporaryFolder folder;
  const std::string log = folder.path() + "/log", macros = folder.path() + "/macros";
  for (const char* machine : {"-march=native", "-mcpu=native", ""}) {
    set_flags(machine);
    std::vector<std::string> arguments = command_;
    arguments.insert(arguments.end(), flags_.begin(), flags_.end());
    for (const char* flag : {"-dM", "-E", "-x", "c++", "/dev/null"}) arguments.push_back(flag);
    if (run_program(arguments, log, macros) == 0) {
      identity_ = read_file(macros);
      if (identity_.empty()) continue;
      if (options_.cache) options_.cache->store(key, fmt::format("{}\n{}", machine, identity_));
      return;
    }
  }
  throw DeviceError(fmt::format("the C++ compiler {} does not work:\n{}set SINTER_CXX to another",
                                command_[0], read_file(log)));
}

// "12.2.0", as the compiler's macros have it.
std::string HostCompiler::version() const {
  constexpr std::string_view kMacro = "#define __VERSION__ \"";
  size_t begin = identity_.find(kMacro);
  if (begin == std::string::npos) return "";
  begin += kMacro.size();
  return identity_.substr(begin, identity_.find('"', begin) - begin);
}

void HostCompiler::refuse(const HostSource& source, const std::string& log) const {
  std::string place = source.dump_path;
  if (place.empty() && !options_.dump_folder.empty()) {
    const std::string folder = options_.dump_folder + "/kernels";
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    if (write_file(folder + "/" + source.name + ".cpp", source.text))
      place = folder + "/" + source.name + ".cpp";
  }
  if (!place.empty()) write_file(place + ".log", log);
  throw DeviceError(fmt::format(
      "host unit {} does not compile with {}; {}\n{}", source.name, command_[0],
      place.empty() ? "set SINTER_DUMP=DIR to keep its source" : "its source is " + place, log));
}

std::string HostCompiler::compile_unit(const HostSource& source, const std::string& stem) const {
  const std::string input = stem + ".cpp", output = stem + ".o.so", log = stem + ".log";
  if (!write_file(input, source.text))
    throw DeviceError(fmt::format("cannot write {}; set TMPDIR to a folder with room", input));
  std::vector<std::string> arguments = command_;
  arguments.insert(arguments.end(), flags_.begin(), flags_.end());
  // --as-needed leaves out the C++ library, of which no unit uses anything.
  for (const std::string& flag :
       {std::string("-shared"), std::string("-Wl,--as-needed"), std::string("-o"), output, input})
    arguments.push_back(flag);
  const int status = run_program(arguments, log);
  std::string object = status == 0 ? read_file(output) : "";
  if (object.empty()) refuse(source, read_file(log));
  return object;
}

std::shared_ptr<const HostModule> HostCompiler::build(const HostSource& source,
                                                      const std::string& stem,
                                                      std::string& reason) const {
  const auto load_bytes = [&](const std::string& bytes, std::string& why) -> void* {
    const std::string path = stem + ".so";
    if (!write_file(path, bytes))
      throw DeviceError(fmt::format("cannot write {}; set TMPDIR to a folder with room", path));
    void* handle = load(path, why);
    unlink(path.c_str());
    return handle;
  };
  std::string why;
  void* handle = nullptr;
  if (options_.cache) {
    std::string settings;
    for (const auto* list : {&command_, &flags_})
      for (const std::string& word : *list) settings += word + '\n';
    const CacheKey key = cache_key({"host", identity_, settings, source.text});
    auto bytes = options_.cache->get_or_compile(key, [&](const std::string& fault) {
      std::string object = compile_unit(source, stem);
      std::string command, flags;
      for (const std::string& word : command_) command += word + ' ';
      for (const std::string& word : flags_) flags += word + ' ';
      const CompileSettings made_with = {{"compiler", command + version()},
                                         {"options", flags},
                                         {"processor", cache_key({identity_}).hex().substr(0, 8)}};
      reason = compile_reason(*options_.cache, "host", source.text, made_with, fault);
      return object;
    });
    handle = load_bytes(*bytes, why);
    if (!handle) {  // an entry that this machine cannot load: make it anew
      reason = "its cache entry cannot be loaded here";
      std::string fresh = compile_unit(source, stem);
      handle = load_bytes(fresh, why);
      if (handle) options_.cache->store(key, std::move(fresh));
    }
  } else {
    reason = kCacheNotUsed;
    handle = load_bytes(compile_unit(source, stem), why);
  }
  if (!handle)
    throw DeviceError(fmt::format("host unit {} does not load: {} (TMPDIR must allow execution)",
                                  source.name, why));
  return std::make_shared<HostModule>(handle, source.name);
}

std::vector<std::shared_ptr<const HostModule>> HostCompiler::compile(
    std::span<const HostSource> sources, std::vector<std::string>* reasons) const {
  std::vector<size_t> unique;                // first source of each text
  std::vector<size_t> slot(sources.size());  // into `unique`
  std::unordered_map<std::string_view, size_t> seen;
  for (size_t i = 0; i < sources.size(); ++i) {
    auto [entry, added] = seen.try_emplace(sources[i].text, unique.size());
    if (added) unique.push_back(i);
    slot[i] = entry->second;
  }
  TemporaryFolder folder;
  std::vector<std::shared_ptr<const HostModule>> built(unique.size());
  std::vector<std::string> why(unique.size());
  ThreadPool::global().parallel_for(
      0, static_cast<int64_t>(unique.size()), [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
          built[i] = build(sources[unique[i]], fmt::format("{}/{}", folder.path(), i), why[i]);
      });
  std::vector<std::shared_ptr<const HostModule>> modules(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) modules[i] = built[slot[i]];
  if (reasons != nullptr) {
    reasons->assign(sources.size(), "");
    for (size_t i = 0; i < unique.size(); ++i) (*reasons)[unique[i]] = why[i];
  }
  return modules;
}

}  // namespace sinter
