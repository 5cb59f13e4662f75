#pragma once
// What the command-line tools share: writing to the standard streams, and reading the module that
// they are given.

#include <string>

namespace sinter::cli {

// To standard output and standard error.
void out(const std::string& text);
void err(const std::string& text);
// The whole of the file, or of standard input for "-". Throws Error without a location: the tools
// put the file's name in front.
std::string read_source(const std::string& path);

}  // namespace sinter::cli
