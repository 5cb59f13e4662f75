#include <sinter/frontends/data/images.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/philox.h>

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

constexpr uint8_t kUnsignedByte = 0x08;
constexpr int32_t kNoTarget = -100;
// Apart from the sites of a module, which are numbered from 0.
constexpr uint32_t kOrderSite = 0xFFFFFFFDu;

// A file that zlib reads, compressed or not.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) fail(std::strerror(errno));
  }
  ~GzipFile() {
    if (file_ != nullptr) gzclose(file_);
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Up to `size` bytes; fewer at the end of the file alone.
  size_t read(uint8_t* to, size_t size) {
    int n = gzread(file_, to, static_cast<unsigned>(size));
    int status = Z_OK;
    const char* message = gzerror(file_, &status);
    // A compressed stream that ends early is short data, which the caller reports with its size.
    if (status == Z_BUF_ERROR) return n > 0 ? static_cast<size_t>(n) : 0;
    if (n < 0) fail(status == Z_ERRNO ? std::strerror(errno) : message);
    return static_cast<size_t>(n);
  }

  [[noreturn]] void fail(std::string_view why) const {
    throw Error(fmt::format("cannot read '{}': {}", path_, why));
  }

 private:
  std::string path_;
  gzFile file_;
};

std::string find_file(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    fs::path path = fs::path(folder) / (name + ending);
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path;
  }
  throw Error(fmt::format("'{}' has no {} or {}.gz", folder, name, name));
}

// Where `index` of [0, count) stands in an order that (seed, epoch) draws: a Feistel network is a
// permutation of the numbers of `2 half` bits, and following it until it comes back below `count`
// is one of those.
uint64_t shuffled(uint64_t index, uint64_t count, uint64_t seed, uint32_t epoch) {
  RandomStream stream{
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, epoch, kOrderSite, 0};
  auto half = static_cast<int>((std::bit_width(count) + 1) / 2);
  uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      uint64_t mixed = stream.words(right << 2 | round)[0] & mask;
      left = std::exchange(right, left ^ mixed);
    }
    index = left << half | right;
  } while (index >= count);
  return index;
}

}  // namespace

IdxArray read_idx(const std::string& path) {
  GzipFile file(path);
  std::array<uint8_t, 4> magic{};
  if (file.read(magic.data(), magic.size()) != magic.size() || magic[0] != 0 || magic[1] != 0 ||
      magic[3] == 0)
    throw Error(fmt::format(
        "'{}' is no idx file: it begins with {:02x}{:02x}{:02x}{:02x}, not with 0000, an element "
        "type and a number of axes",
        path, magic[0], magic[1], magic[2], magic[3]));
  if (magic[2] != kUnsignedByte)
    throw Error(fmt::format("'{}' holds elements of type {:02x}; only unsigned bytes (08) are read",
                            path, magic[2]));
  IdxArray array;
  uint64_t expected = 1;
  for (int axis = 0; axis < magic[3]; ++axis) {
    std::array<uint8_t, 4> word{};
    if (file.read(word.data(), word.size()) != word.size())
      throw Error(fmt::format("'{}' ends within its header", path));
    uint32_t extent = 0;
    for (uint8_t byte : word) extent = extent << 8 | byte;
    array.shape.push_back(extent);
    if (__builtin_mul_overflow(expected, uint64_t{extent}, &expected))
      throw Error(fmt::format("the header of '{}' says more data than there can be", path));
  }
  // By parts: the header is not trusted to say how much memory to take.
  constexpr size_t kPart = 1 << 20;
  while (array.bytes.size() <= expected) {
    size_t before = array.bytes.size();
    array.bytes.resize(before + kPart);
    size_t got = file.read(array.bytes.data() + before, kPart);
    array.bytes.resize(before + got);
    if (got < kPart) break;
  }
  if (array.bytes.size() != expected)
    throw Error(fmt::format("'{}' has {} bytes of data, not the {} of its header's shape {}", path,
                            array.bytes.size() > expected ? fmt::format("more than {}", expected)
                                                          : fmt::format("{}", array.bytes.size()),
                            expected, TensorType{DType::I32, array.shape}.str().substr(3)));
  return array;
}

LabelledImages::LabelledImages(const std::string& folder, const std::string& prefix,
                               int64_t classes) {
  std::string images = find_file(folder, prefix + "-images-idx3-ubyte");
  std::string labels = find_file(folder, prefix + "-labels-idx1-ubyte");
  images_ = read_idx(images);
  labels_ = read_idx(labels);
  if (images_.shape.size() != 3)
    throw Error(fmt::format("'{}' has {} axes, not 3", images, images_.shape.size()));
  if (labels_.shape.size() != 1)
    throw Error(fmt::format("'{}' has {} axes, not 1", labels, labels_.shape.size()));
  if (images_.shape[0] != labels_.shape[0])
    throw Error(fmt::format("'{}' has {} images, but '{}' has {} labels", images, images_.shape[0],
                            labels, labels_.shape[0]));
  if (count() == 0) throw Error(fmt::format("'{}' has no images", images));
  for (size_t i = 0; i < labels_.bytes.size(); ++i)
    if (labels_.bytes[i] >= classes)
      throw Error(fmt::format("label {} of '{}' is {}, outside the {} classes", i, labels,
                              labels_.bytes[i], classes));
}

ImageBatch LabelledImages::empty_batch(int64_t rows) const {
  return {Tensor({DType::F32, {rows, height(), width()}}),
          Tensor::full({DType::I32, {rows}}, kNoTarget)};
}

void LabelledImages::copy(int64_t image, ImageBatch& batch, int64_t row) const {
  int64_t pixels = height() * width();
  const uint8_t* from = images_.bytes.data() + image * pixels;
  float* to = batch.images.as<float>() + row * pixels;
  for (int64_t i = 0; i < pixels; ++i) to[i] = static_cast<float>(from[i]) / 255.0f;
  batch.labels.as<int32_t>()[row] = labels_.bytes[static_cast<size_t>(image)];
}

ImageBatch LabelledImages::batch(int64_t rows, uint64_t seed, int64_t step) const {
  ImageBatch batch = empty_batch(rows);
  auto images = static_cast<uint64_t>(count());
  for (int64_t row = 0; row < rows; ++row) {
    auto place = static_cast<uint64_t>(step * rows + row);
    auto epoch = static_cast<uint32_t>(place / images);
    copy(static_cast<int64_t>(shuffled(place % images, images, seed, epoch)), batch, row);
  }
  return batch;
}

ImageBatch LabelledImages::ordered_batch(int64_t rows, int64_t index) const {
  ImageBatch batch = empty_batch(rows);
  for (int64_t row = 0; row < rows && index * rows + row < count(); ++row)
    copy(index * rows + row, batch, row);
  return batch;
}

std::string fashion_mnist_folder() {
  return "/usr/share/datasets/fashion-mnist";
}

bool have_fashion_mnist(const std::string& folder) {
  std::error_code ignored;
  for (const char* ending : {"", ".gz"})
    if (fs::exists(fs::path(folder) / fmt::format("train-images-idx3-ubyte{}", ending), ignored))
      return true;
  return false;
}

}  // namespace sinter::data
