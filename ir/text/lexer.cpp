#include <sinter/ir/text/lexer.h>

namespace sinter::text {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool in_name(char c) {
  return is_letter(c) || is_digit(c) || c == '.' || c == '-';
}

}  // namespace

std::vector<Token> tokenize(std::string_view text,
                            const std::shared_ptr<const std::string>& file_name) {
  std::vector<Token> tokens;
  size_t at = 0, line_start = 0;
  int line = 1;
  auto peek = [&](size_t k = 0) { return at + k < text.size() ? text[at + k] : '\0'; };
  while (at < text.size()) {
    char c = peek();
    if (c == '\n') {
      ++line;
      line_start = ++at;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r') {
      ++at;
      continue;
    }
    if (c == '/' && peek(1) == '/') {
      while (at < text.size() && text[at] != '\n') ++at;
      continue;
    }
    Token t;
    t.line = line;
    t.column = static_cast<int>(at - line_start) + 1;
    auto fail = [&](std::string message) {
      throw Error(Diagnostic{{file_name, t.line, t.column}, std::move(message)});
    };
    auto take_while = [&](auto&& in) {
      size_t begin = at;
      while (at < text.size() && in(text[at])) ++at;
      return std::string(text.substr(begin, at - begin));
    };
    if (c == '%' || c == '@') {
      t.kind = c == '%' ? Token::ValueName : Token::GraphName;
      ++at;
      t.text = take_while(in_name);
      if (t.text.empty()) fail(fmt::format("a name must follow '{}'", c));
    } else if (c == '"') {
      t.kind = Token::String;
      ++at;
      while (peek() != '"') {
        if (at >= text.size() || peek() == '\n') fail("a string is not closed");
        if (peek() == '\\') {
          ++at;
          t.text += peek() == 'n' ? '\n' : peek();
        } else {
          t.text += peek();
        }
        ++at;
      }
      ++at;
    } else if (is_digit(c) || ((c == '-' || c == '+') && (is_digit(peek(1)) || peek(1) == 'i'))) {
      t.kind = Token::Number;
      if (c == '-' || c == '+') t.text += c, ++at;
      char last = '\0';
      t.text += take_while([&](char d) {
        bool sign = (d == '-' || d == '+') && (last == 'e' || last == 'E');
        bool ok = is_digit(d) || is_letter(d) || d == '.' || sign;
        last = d;
        return ok;
      });
    } else if (is_letter(c)) {
      t.kind = Token::Word;
      t.text = take_while(in_name);
      // `a->b` never occurs in a name.
      if (t.text.ends_with('-')) t.text.pop_back(), --at;
    } else if (c == '-' && peek(1) == '>') {
      t.kind = Token::Punct;
      t.text = "->";
      at += 2;
    } else if (std::string_view("(){}[],:=").find(c) != std::string_view::npos) {
      t.kind = Token::Punct;
      t.text = c;
      ++at;
    } else {
      fail(fmt::format("unexpected character '{}'", c));
    }
    tokens.push_back(std::move(t));
  }
  Token end;
  end.line = line;
  end.column = static_cast<int>(text.size() - line_start) + 1;
  tokens.push_back(end);
  return tokens;
}

}  // namespace sinter::text
