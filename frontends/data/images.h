#pragma once
// Labelled images from idx files, the format of MNIST and its relatives, plain or gzip-compressed.
//
// A batch depends on seed and step alone. An epoch shows each training image once, in an order of
// its own.

#include <sinter/runtime/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sinter::data {

// An idx file of unsigned bytes.
struct IdxArray {
  Shape shape;
  std::vector<uint8_t> bytes;
};
// Refuses, naming the file: what cannot be read, a bad magic number, an element type other than
// unsigned bytes, and more or less data than the header says.
IdxArray read_idx(const std::string& path);

struct ImageBatch {
  Tensor images;  // f32 [rows, height, width], 0 to 1
  Tensor labels;  // i32 [rows]; -100 where the data has ended
};

class LabelledImages {
 public:
  // Reads PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte of the folder, with or without .gz.
  // Refuses a folder without them, counts that differ and labels that are not below `classes`.
  LabelledImages(const std::string& folder, const std::string& prefix, int64_t classes);

  int64_t count() const { return images_.shape[0]; }
  int64_t height() const { return images_.shape[1]; }
  int64_t width() const { return images_.shape[2]; }

  // Images [step * rows, (step + 1) * rows) of one epoch after another, each shuffled.
  ImageBatch batch(int64_t rows, uint64_t seed, int64_t step) const;
  // In the order of the file, each once.
  int64_t ordered_batches(int64_t rows) const { return (count() + rows - 1) / rows; }
  ImageBatch ordered_batch(int64_t rows, int64_t index) const;

 private:
  ImageBatch empty_batch(int64_t rows) const;
  void copy(int64_t image, ImageBatch& batch, int64_t row) const;
  IdxArray images_, labels_;
};

// Where the Debian package dataset-fashion-mnist puts its files.
std::string fashion_mnist_folder();
// Whether they are there.
bool have_fashion_mnist(const std::string& folder = fashion_mnist_folder());

}  // namespace sinter::data
