// The parser on damaged texts: a module or an Error, and nothing else.

#include <sinter/ir/text.h>
#include <sinter/ir/verifier.h>
#include <sinter/tests/fuzz/lib/generate.h>
#include <sinter/tests/fuzz/lib/rng.h>
#include <sinter/tests/support.h>

#include <cctype>

namespace sinter::test {
namespace {

// One word of the text, or one sign.
std::pair<size_t, size_t> token_of(const std::string& text, Rng& rng) {
  auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(text.size())));
  auto is_word = [&](size_t i) {
    return std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_';
  };
  size_t end = at + 1;
  if (is_word(at)) {
    while (at > 0 && is_word(at - 1)) --at;
    while (end < text.size() && is_word(end)) ++end;
  }
  return {at, end - at};
}

std::string damaged(std::string text, const std::string& other, Rng& rng) {
  static const std::vector<std::string> odd = {"-1",
                                               "0",
                                               "9223372036854775807",
                                               "99999999999999999999",
                                               "1e999",
                                               "nan",
                                               "-inf",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               "%",
                                               "@",
                                               "\"",
                                               "\\",
                                               "->",
                                               ",",
                                               ":",
                                               "f32",
                                               "bool",
                                               "f32[-1]",
                                               "u32[4294967296]",
                                               "//",
                                               "\n",
                                               "module",
                                               "",
                                               std::string(1, '\0'),
                                               "\xff\xfe",
                                               "loc(",
                                               "segment"};
  for (int64_t n = rng.between(1, 3); n > 0 && !text.empty(); --n) {
    auto [at, length] = token_of(text, rng);
    switch (rng.below(6)) {
      case 0:
        text.replace(at, length, rng.pick(odd));
        break;
      case 1: {
        auto [from, count] = token_of(other, rng);
        text.replace(at, length, other.substr(from, count));
        break;
      }
      case 2:
        text.erase(at, static_cast<size_t>(rng.between(1, 40)));
        break;
      case 3:
        text.insert(at, text.substr(at, static_cast<size_t>(rng.between(1, 60))));
        break;
      case 4:
        text[at] = static_cast<char>(rng.below(256));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

}  // namespace

TEST_CASE("a damaged text is a module or an error with its place") {
  std::vector<std::string> texts;
  for (uint64_t seed = 1; seed <= 25; ++seed)
    texts.push_back(print(*generate(seed).module, {.locations = seed % 2 == 0}));
  Rng rng(11);
  int refused = 0, read = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string text = damaged(rng.pick(texts), rng.pick(texts), rng);
    CAPTURE(text);
    try {
      auto module = parse_module(text, "damaged.sir");
      verify(*module);
      ++read;
      // What reads is printed, and that reads again.
      std::string again = print(*module);
      CHECK(print(*parse_module(again, "again.sir")) == again);
    } catch (const Error& e) {
      ++refused;
      std::string message = e.what();
      CAPTURE(message);
      CHECK(message.find("damaged.sir") == 0);
    } catch (const std::exception& e) {
      std::string message = e.what();
      FAIL_CHECK(message);
    }
  }
  CHECK(refused > 3000);
  CHECK(read > 50);
}

}  // namespace sinter::test
