#include <doctest/doctest.h>
#include <sinter/ir/diagnostic.h>

#include <memory>
#include <string>

using namespace sinter;

namespace {

SourceLocation caller(SourceLocation location = SourceLocation::here()) {
  return location;
}

SourceLocation place(const char* file, int line, int column) {
  return {std::make_shared<const std::string>(file), line, column};
}

}  // namespace

TEST_CASE("diagnostic: a default argument names the caller's line") {
  const SourceLocation location = caller();
  const int line = __LINE__ - 1;
  CHECK(location.known());
  CHECK(location.line == line);
  CHECK(location.file_name().find("diagnostic.cpp") != std::string_view::npos);
}

TEST_CASE("diagnostic: locations as text") {
  CHECK(place("m.sir", 12, 8).str() == "m.sir:12:8");
  CHECK(place("m.cpp", 12, 0).str() == "m.cpp:12");
  CHECK(SourceLocation{}.str() == "<unknown>");
  CHECK_FALSE(SourceLocation{}.known());
  CHECK(place("m.sir", 1, 2) == place("m.sir", 1, 2));
  CHECK_FALSE(place("m.sir", 1, 2) == place("n.sir", 1, 2));
}

TEST_CASE("diagnostic: an error carries place and message") {
  const Error error(Diagnostic{place("m.sir", 3, 4), "unknown op 'foo'"});
  CHECK(std::string(error.what()) == "m.sir:3:4: error: unknown op 'foo'");
  CHECK(error.diagnostic().message == "unknown op 'foo'");
}

TEST_CASE("diagnostic: a failed check names condition, place and message") {
  const int extent = -3;
  CHECK_NOTHROW(SINTER_CHECK(extent < 0, "never built"));
  std::string message;
  try {
    SINTER_CHECK(extent >= 0, "extent is {}", extent);
  } catch (const InternalError& error) {
    message = error.what();
  }
  CHECK(message.find("extent >= 0") != std::string::npos);
  CHECK(message.find("extent is -3") != std::string::npos);
  CHECK(message.find("diagnostic.cpp") != std::string::npos);
}

TEST_CASE("diagnostic: a result holds a value or the reason") {
  const Result<int> good(4);
  CHECK(good.ok());
  CHECK(good.value() == 4);
  Result<int> bad(Diagnostic{{}, "no such thing"});
  CHECK_FALSE(bad.ok());
  CHECK(bad.error().message == "no such thing");
  CHECK_THROWS_AS(std::move(bad).take(), Error);
}
