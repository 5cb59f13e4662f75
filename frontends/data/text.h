#pragma once
// Text for language models, a byte a token: where it comes from, and batches of it.
//
// Every 10th block of 4 KiB is validation, the rest is for training; each part is one stream. Text
// of fewer than 10 blocks gives its last tenth. Batches depend on seed and step alone.

#include <sinter/runtime/tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

// A file's bytes, or the sources of a folder. Refuses what cannot be read, and empty text.
std::string read_text(const std::string& path);

// The *.h, *.cpp, *.cuh, *.md and *.sir files of a folder, one after another, sorted by path: those
// that git tracks, or, outside a checkout, all but those below build folders and hidden ones.
// tests/golden does not count.
std::vector<std::string> source_files(const std::string& folder);

// The root of sinter's own tree, found from the program's place or the current folder; "" if it is
// not there.
std::string sinter_tree();

struct Batch {
  Tensor ids, targets;  // i32 [batch, length]; targets are the ids one place on, or -100 for none
};

class ByteText {
 public:
  // Refuses text shorter than `length` + 1 bytes and bytes that are not below `vocab`.
  ByteText(std::string_view text, int64_t length, int64_t vocab = 256);

  const std::string& training() const { return training_; }
  const std::string& validation() const { return validation_; }
  int64_t length() const { return length_; }
  // Of all bytes: two texts of one checksum give the same batches.
  const std::string& checksum() const { return checksum_; }

  // Windows at places drawn from (seed, step, row).
  Batch batch(int64_t rows, uint64_t seed, uint32_t step) const;
  // The validation windows, in order, each token once; the last batch may have -100 targets.
  int64_t validation_batches(int64_t rows) const;
  Batch validation_batch(int64_t rows, int64_t index) const;

 private:
  std::string training_, validation_, checksum_;
  int64_t length_;
};

}  // namespace sinter::data
