#include <sinter/frontends/checkpoint/checksum.h>
#include <sinter/frontends/data/text.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/philox.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 4096;
constexpr size_t kBlocksPerValidation = 10;
constexpr int32_t kNoTarget = -100;
// Apart from the sites of a module, which are numbered from 0.
constexpr uint32_t kBatchSite = 0xFFFFFFFFu;

constexpr std::array<std::string_view, 5> kPatterns{"*.h", "*.cpp", "*.cuh", "*.md", "*.sir"};

bool is_source(std::string_view path) {
  return std::any_of(kPatterns.begin(), kPatterns.end(),
                     [&](std::string_view p) { return path.ends_with(p.substr(1)); });
}

bool counts(std::string_view path) {
  return is_source(path) && !path.starts_with("tests/golden/");
}

std::string shell_quoted(std::string_view text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// What git tracks below the folder; nothing when it is no checkout, or git is not there.
std::vector<std::string> tracked_files(const std::string& folder) {
  std::string command = fmt::format("git -C {} ls-files -z -- ", shell_quoted(folder));
  for (std::string_view p : kPatterns) command += fmt::format("{} ", shell_quoted(p));
  command += "2>/dev/null";
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::vector<std::string> files;
  if (!pipe) return files;
  std::string name;
  for (int c = 0; (c = std::fgetc(pipe.get())) != EOF;) {
    if (c != 0) {
      name += static_cast<char>(c);
      continue;
    }
    if (fs::is_regular_file(fs::path(folder) / name)) files.push_back(name);
    name.clear();
  }
  return files;
}

std::vector<std::string> walked_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error);
  if (error) throw Error(fmt::format("cannot read folder '{}': {}", folder, error.message()));
  for (; it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (error) throw Error(fmt::format("cannot read folder '{}': {}", folder, error.message()));
    std::string name = it->path().filename();
    if (it->is_directory(error)) {
      if (name.starts_with('.') || name.starts_with("build")) it.disable_recursion_pending();
    } else if (it->is_regular_file(error) && !name.starts_with('.')) {
      files.push_back(it->path().lexically_relative(folder));
    }
  }
  return files;
}

std::string read_file(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw Error(fmt::format("cannot read '{}': {}", path, std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> part;
  while (size_t n = std::fread(part.data(), 1, part.size(), file.get()))
    text.append(part.data(), n);
  if (std::ferror(file.get()))
    throw Error(fmt::format("cannot read '{}': {}", path, std::strerror(errno)));
  return text;
}

bool is_sinter_tree(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "ir/ops.h", error) && fs::exists(folder / "frontends/sinter.h", error);
}

void copy_window(std::string_view stream, size_t start, size_t count, int32_t* ids,
                 int32_t* targets) {
  for (size_t i = 0; i < count; ++i) {
    ids[i] = static_cast<unsigned char>(stream[start + i]);
    targets[i] = static_cast<unsigned char>(stream[start + i + 1]);
  }
}

}  // namespace

std::vector<std::string> source_files(const std::string& folder) {
  std::vector<std::string> files = tracked_files(folder);
  if (files.empty()) files = walked_files(folder);
  std::erase_if(files, [](const std::string& f) { return !counts(f); });
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_text(const std::string& path) {
  std::string text;
  if (fs::is_directory(path)) {
    for (const std::string& f : source_files(path)) text += read_file(fs::path(path) / f);
    if (text.empty())
      throw Error(fmt::format("folder '{}' has no *.h, *.cpp, *.cuh, *.md or *.sir text", path));
  } else {
    text = read_file(path);
    if (text.empty()) throw Error(fmt::format("'{}' is empty", path));
  }
  return text;
}

std::string sinter_tree() {
  std::error_code error;
  for (fs::path start : {fs::read_symlink("/proc/self/exe", error), fs::current_path(error)})
    for (fs::path p = start; !p.empty(); p = p.parent_path()) {
      if (is_sinter_tree(p)) return p;
      if (p == p.parent_path()) break;
    }
  return "";
}

ByteText::ByteText(std::string_view text, int64_t length, int64_t vocab)
    : checksum_(sinter::checksum(text.data(), text.size())), length_(length) {
  if (static_cast<int64_t>(text.size()) <= length)
    throw Error(fmt::format("the data has {} bytes, shorter than the context of {} and one more",
                            text.size(), length));
  for (size_t i = 0; i < text.size(); ++i)
    if (auto byte = static_cast<unsigned char>(text[i]); byte >= vocab)
      throw Error(fmt::format("token {} at byte {} of the data is outside the vocabulary of {}",
                              static_cast<int>(byte), i, vocab));
  if (text.size() < kBlocksPerValidation * kBlock) {
    size_t cut = text.size() - text.size() / kBlocksPerValidation;
    training_ = text.substr(0, cut);
    validation_ = text.substr(cut);
  } else {
    for (size_t start = 0, i = 0; start < text.size(); start += kBlock, ++i) {
      bool judge = i % kBlocksPerValidation == kBlocksPerValidation - 1;
      (judge ? validation_ : training_) += text.substr(start, kBlock);
    }
  }
  // Little text: a window of each part is worth more than parts without overlap.
  auto window = static_cast<size_t>(length) + 1;
  if (training_.size() < window) training_ = text;
  if (validation_.size() < 2) validation_ = text.substr(text.size() - window);
}

Batch ByteText::batch(int64_t rows, uint64_t seed, uint32_t step) const {
  TensorType type{DType::I32, {rows, length_}};
  Batch batch{Tensor::uninitialized(type), Tensor::uninitialized(type)};
  RandomStream stream{
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, step, kBatchSite, 0};
  uint64_t places = training_.size() - static_cast<size_t>(length_);
  for (int64_t row = 0; row < rows; ++row) {
    PhiloxBlock words = stream.words(static_cast<uint64_t>(row));
    uint64_t start = (words[0] | static_cast<uint64_t>(words[1]) << 32) % places;
    copy_window(training_, start, static_cast<size_t>(length_),
                batch.ids.as<int32_t>() + row * length_,
                batch.targets.as<int32_t>() + row * length_);
  }
  return batch;
}

int64_t ByteText::validation_batches(int64_t rows) const {
  auto tokens = static_cast<int64_t>(validation_.size()) - 1;
  int64_t windows = (tokens + length_ - 1) / length_;
  return (windows + rows - 1) / rows;
}

Batch ByteText::validation_batch(int64_t rows, int64_t index) const {
  TensorType type{DType::I32, {rows, length_}};
  Batch batch{Tensor(type), Tensor::full(type, kNoTarget)};
  size_t tokens = validation_.size() - 1, length = static_cast<size_t>(length_);
  for (int64_t row = 0; row < rows; ++row) {
    size_t start = static_cast<size_t>(index * rows + row) * length;
    if (start >= tokens) break;
    copy_window(validation_, start, std::min(length, tokens - start),
                batch.ids.as<int32_t>() + row * length_,
                batch.targets.as<int32_t>() + row * length_);
  }
  return batch;
}

}  // namespace sinter::data
