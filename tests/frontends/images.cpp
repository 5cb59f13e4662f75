#include <sinter/frontends/data/images.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

using namespace sinter;

namespace {

using Folder = sinter::test::TemporaryFolder;

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (int v : values) text += static_cast<char>(v);
  return text;
}

// `count` images of 1 x 2 whose first pixel is their number, and as many labels.
std::string some_images(int count) {
  std::string text = bytes({0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 1, 0, 0, 0, 2});
  for (int i = 0; i < count; ++i) text += bytes({i, 255});
  return text;
}
std::string some_labels(int count) {
  std::string text = bytes({0, 0, 8, 1, 0, 0, 0, count});
  for (int i = 0; i < count; ++i) text += bytes({i % 3});
  return text;
}

void check_refused(const std::function<void()>& action, const std::string& part) {
  try {
    action();
    FAIL("not refused: " << part);
  } catch (const Error& e) {
    std::string message = e.what();
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
}

}  // namespace

TEST_CASE("images: an idx file is read, plain or compressed") {
  Folder folder;
  data::IdxArray array = data::read_idx(folder.write("plain", some_images(3)));
  CHECK(array.shape == Shape{3, 1, 2});
  CHECK(array.bytes == std::vector<uint8_t>{0, 255, 1, 255, 2, 255});
  std::string path = folder.write("packed", some_images(3));
  REQUIRE(std::system(("gzip " + path).c_str()) == 0);
  CHECK(data::read_idx(path + ".gz").bytes == array.bytes);
}

TEST_CASE("images: malformed idx files are refused by name and reason") {
  Folder folder;
  auto refused = [&](const std::string& content, const std::string& part) {
    check_refused([&] { data::read_idx(folder.write("file", content)); }, part);
    check_refused([&] { data::read_idx(folder.write("file", content)); }, "file'");
  };
  check_refused([&] { data::read_idx(folder.path / "absent"); }, "No such file");
  refused("", "is no idx file");
  refused("not an idx file at all", "it begins with 6e6f7420");
  refused(bytes({0, 0, 13, 1, 0, 0, 0, 0}), "elements of type 0d; only unsigned bytes (08)");
  refused(some_images(3).substr(0, 10), "ends within its header");
  refused(some_images(3).substr(0, 21),
          "has 5 bytes of data, not the 6 of its header's shape [3,1,2]");
  refused(some_images(3) + "x", "has more than 6 bytes of data, not the 6 of");
  refused(bytes({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
          "more data than there can be");
  std::string path = folder.write("short", some_images(200));
  REQUIRE(std::system(("gzip " + path + " && truncate -s -12 " + path + ".gz").c_str()) == 0);
  check_refused([&] { data::read_idx(path + ".gz"); }, "not the 400 of its header's shape");
}

TEST_CASE("images: files that do not belong together are refused") {
  Folder folder;
  auto load = [&] { return data::LabelledImages(folder.path, "t", 3); };
  check_refused(load, "has no t-images-idx3-ubyte or t-images-idx3-ubyte.gz");
  folder.write("t-images-idx3-ubyte", some_images(4));
  check_refused(load, "has no t-labels-idx1-ubyte");
  folder.write("t-labels-idx1-ubyte", some_labels(5));
  check_refused(load, "has 4 images, but");
  check_refused(load, "has 5 labels");
  folder.write("t-labels-idx1-ubyte", some_labels(4));
  CHECK(load().count() == 4);
  check_refused([&] { data::LabelledImages(folder.path, "t", 2); }, "label 2 of");
  folder.write("t-labels-idx1-ubyte", some_images(4));
  check_refused(load, "has 3 axes, not 1");
}

TEST_CASE("images: an epoch shows each image once, in an order of its own") {
  Folder folder;
  folder.write("t-images-idx3-ubyte", some_images(100));
  folder.write("t-labels-idx1-ubyte", some_labels(100));
  data::LabelledImages images(folder.path, "t", 3);
  auto epoch = [&](uint64_t seed, int64_t number) {
    std::vector<int> order;
    for (int64_t step = 0; step < 10; ++step) {
      data::ImageBatch batch = images.batch(10, seed, number * 10 + step);
      for (int64_t row = 0; row < 10; ++row) {
        int which = static_cast<int>(batch.images.at(row * 2) * 255 + 0.5);
        CHECK(batch.images.at(row * 2 + 1) == 1);
        CHECK(batch.labels.at(row) == which % 3);
        order.push_back(which);
      }
    }
    return order;
  };
  std::vector<int> first = epoch(1, 0);
  CHECK(first == epoch(1, 0));
  CHECK(first != epoch(1, 1));
  CHECK(first != epoch(2, 0));
  CHECK(!std::is_sorted(first.begin(), first.end()));
  std::sort(first.begin(), first.end());
  for (int i = 0; i < 100; ++i) CHECK(first[static_cast<size_t>(i)] == i);
}

TEST_CASE("images: batches in order end with labels that do not count") {
  Folder folder;
  folder.write("t-images-idx3-ubyte", some_images(5));
  folder.write("t-labels-idx1-ubyte", some_labels(5));
  data::LabelledImages images(folder.path, "t", 3);
  CHECK(images.ordered_batches(4) == 2);
  data::ImageBatch last = images.ordered_batch(4, 1);
  CHECK(last.images.type() == TensorType{DType::F32, {4, 1, 2}});
  CHECK(last.labels.to_vector<int32_t>() == std::vector<int32_t>{1, -100, -100, -100});
}
