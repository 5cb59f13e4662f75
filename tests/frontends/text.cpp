#include <sinter/frontends/data/text.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace sinter;

namespace {

using Folder = sinter::test::TemporaryFolder;

std::string message_of(auto&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// Byte i names its block.
std::string numbered_blocks(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += std::string(4096, static_cast<char>(i));
  return text;
}

}  // namespace

TEST_CASE("text: every tenth block of 4 KiB is validation") {
  data::ByteText text(numbered_blocks(25), 64);
  CHECK(text.validation().size() == 2 * 4096);
  CHECK(text.training().size() == 23 * 4096);
  CHECK(text.validation()[0] == 9);
  CHECK(text.validation()[4096] == 19);
  CHECK(text.training()[9 * 4096] == 10);
  CHECK(text.training().find_first_of("\x09\x13") == std::string::npos);
}

TEST_CASE("text: little text still gives both parts") {
  data::ByteText text(std::string(200, 'a') + std::string(20, 'b'), 100);
  CHECK(text.training().size() == 198);
  CHECK(text.validation().size() == 22);
  data::ByteText tiny("abcde", 4);
  CHECK(tiny.training() == "abcde");
  CHECK(tiny.batch(2, 1, 0).targets.as<int32_t>()[3] == 'e');
  CHECK(tiny.validation_batches(1) == 1);
}

TEST_CASE("text: batches depend on seed and step alone, and targets follow ids") {
  data::ByteText text(numbered_blocks(12), 32);
  auto a = text.batch(8, 1, 0);
  CHECK(a.ids.type() == TensorType{DType::I32, {8, 32}});
  CHECK(a.ids.same_bits(data::ByteText(numbered_blocks(12), 32).batch(8, 1, 0).ids));
  CHECK(!a.ids.same_bits(text.batch(8, 1, 1).ids));
  CHECK(!a.ids.same_bits(text.batch(8, 2, 0).ids));
  // A row does not depend on how many there are.
  CHECK(text.batch(4, 1, 0).ids.to_vector<int32_t>() ==
        std::vector<int32_t>(a.ids.as<int32_t>(), a.ids.as<int32_t>() + 128));
  std::string ascending;
  for (int i = 0; i < 256; ++i) ascending += static_cast<char>(i);
  auto b = data::ByteText(ascending, 16).batch(5, 9, 3);
  for (int i = 0; i < 80; ++i) CHECK(b.targets.as<int32_t>()[i] == b.ids.as<int32_t>()[i] + 1);
}

TEST_CASE("text: validation covers each token once") {
  data::ByteText text(numbered_blocks(10), 100);
  REQUIRE(text.validation().size() == 4096);
  int64_t batches = text.validation_batches(8), counted = 0;
  CHECK(batches == 6);
  for (int64_t i = 0; i < batches; ++i)
    for (int32_t t : text.validation_batch(8, i).targets.to_vector<int32_t>()) {
      CHECK((t == 9 || t == -100));
      counted += t == 9;
    }
  CHECK(counted == 4095);
}

TEST_CASE("text: what cannot be used is refused") {
  Folder folder;
  folder.write("empty", "");
  CHECK(message_of([&] { data::read_text(folder.path / "empty"); }).find("is empty") !=
        std::string::npos);
  CHECK(message_of([&] { data::read_text(folder.path / "none"); }).find("cannot read '") !=
        std::string::npos);
  CHECK(message_of([&] { data::read_text(folder.path); }).find("has no *.h") != std::string::npos);
  CHECK(message_of([] { data::ByteText("abc", 3); }) ==
        "error: the data has 3 bytes, shorter than the context of 3 and one more");
  CHECK(message_of([] {
          data::ByteText(
              "ab\xff"
              "d",
              2, 128);
        }) == "error: token 255 at byte 2 of the data is outside the vocabulary of 128");
}

TEST_CASE("text: the sources of a folder, tracked by git or walked") {
  Folder folder;
  folder.write("b.cpp", "bb");
  folder.write("a/z.h", "zz");
  folder.write("a.md", "mm");
  folder.write("notes.txt", "no");
  folder.write("tests/golden/g.sir", "no");
  folder.write("build/release/x.cpp", "no");
  folder.write(".hidden/x.cpp", "no");
  std::vector<std::string> expected{"a.md", "a/z.h", "b.cpp"};
  CHECK(data::source_files(folder.path) == expected);
  CHECK(data::read_text(folder.path) == "mmzzbb");

  std::string git = "cd '" + folder.path.string() + "' && git init -q . && git add b.cpp build";
  if (std::system((git + " >/dev/null 2>&1").c_str()) != 0) SINTER_SKIP("no git");
  expected = {"b.cpp", "build/release/x.cpp"};
  CHECK(data::source_files(folder.path) == expected);
}

TEST_CASE("text: sinter's own tree is found from the test program") {
  std::string root = data::sinter_tree();
  if (root.empty()) SINTER_SKIP("the program is outside its tree");
  auto files = data::source_files(root);
  CHECK(std::find(files.begin(), files.end(), "ir/ops.h") != files.end());
  CHECK(std::is_sorted(files.begin(), files.end()));
  for (const std::string& f : files) CHECK(!f.starts_with("tests/golden/"));
}
