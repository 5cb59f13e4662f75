#include <sinter/codegen/templates.h>
#include <sinter/tests/support.h>

#include <fstream>
#include <iterator>
#include <string>

using namespace sinter;

TEST_CASE("templates: the embedded text is the file's, byte for byte") {
  std::ifstream file(test::data_path("../codegen/templates/prelude.cuh"), std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.empty()) SINTER_SKIP("no source tree");
  CHECK(template_text("prelude.cuh") == text);
}

TEST_CASE("templates: an unknown name has no text") {
  CHECK(template_text("none.cuh").empty());
}
