#pragma once
// Tokens of the IR's text. `//` starts a comment that ends with its line.

#include <sinter/ir/diagnostic.h>

#include <string>
#include <string_view>
#include <vector>

namespace sinter::text {

struct Token {
  enum Kind : uint8_t { End, Word, Number, String, ValueName, GraphName, Punct };
  Kind kind = End;
  std::string text;  // without % and @; strings unescaped; punctuation as written ("->" is one)
  int line = 0, column = 0;
};

// Throws Error at a character that starts no token or at an open string.
std::vector<Token> tokenize(std::string_view text,
                            const std::shared_ptr<const std::string>& file_name);

}  // namespace sinter::text
