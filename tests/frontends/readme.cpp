#include <sinter/tests/support.h>

#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string read(const std::string& path) {
  std::ifstream file(sinter::test::data_path(path), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("readme: its program is examples/sine.cpp, word for word") {
  std::string readme = read("../README.md"), program = read("../examples/sine.cpp");
  if (readme.empty()) SINTER_SKIP("the program is outside its tree");
  CHECK(program.size() > 100);
  CHECK((readme.find("```cpp\n" + program + "```") != std::string::npos));
}
