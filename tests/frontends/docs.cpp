// What docs show of C++ is in a program that is built.

#include <sinter/tests/support.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The text without spaces and line breaks: a page may break and indent as it likes.
std::string packed(const std::string& text) {
  std::string out;
  for (char c : text)
    if (c != ' ' && c != '\n') out += c;
  return out;
}

std::vector<std::string> blocks(const std::string& page, const std::string& language) {
  std::vector<std::string> out;
  std::string fence = "```" + language + "\n";
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    size_t end = page.find("```", at);
    out.push_back(page.substr(at, end - at));
    at = end + 3;
  }
  return out;
}

}  // namespace

TEST_CASE("docs: every snippet of derivatives.md is part of an example") {
  std::filesystem::path root = sinter::test::data_path("..");
  std::string page = read(root / "docs/derivatives.md");
  if (page.empty()) SINTER_SKIP("the docs are outside their tree");
  std::vector<std::string> programs;
  for (const auto& entry : std::filesystem::directory_iterator(root / "examples"))
    if (entry.path().extension() == ".cpp") programs.push_back(packed(read(entry.path())));
  std::vector<std::string> snippets = blocks(page, "cpp");
  CHECK(snippets.size() >= 8);
  for (const std::string& snippet : snippets) {
    bool found = false;
    for (const std::string& program : programs)
      found = found || program.find(packed(snippet)) != std::string::npos;
    CHECK_MESSAGE(found, snippet);
  }
}
