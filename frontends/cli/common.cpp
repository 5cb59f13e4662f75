#include <sinter/frontends/cli/common.h>
#include <sinter/ir/diagnostic.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

namespace sinter::cli {

void out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}
void err(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string read_source(const std::string& path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream file(path, std::ios::binary);
  if (file) text << file.rdbuf();
  if (!file) throw Error("cannot read the file");
  return text.str();
}

}  // namespace sinter::cli
