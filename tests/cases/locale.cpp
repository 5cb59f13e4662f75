// NU-08: a locale with a decimal comma and grouped digits changes no text, no source, no result.

#include <doctest/doctest.h>
#include <sinter/ir/ops.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/cases/devices.h>

#include <clocale>
#include <locale>
#include <string>

using namespace sinter;

namespace {

struct GermanPunctuation : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// Both the C++ locale and, where the system has one, the C locale; restored on exit.
class GermanLocale {
 public:
  GermanLocale()
      : cpp_(std::locale::global(std::locale(std::locale::classic(), new GermanPunctuation))),
        c_(std::setlocale(LC_ALL, nullptr)) {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8"})
      if (std::setlocale(LC_ALL, name)) break;
  }
  ~GermanLocale() {
    std::setlocale(LC_ALL, c_.c_str());
    std::locale::global(cpp_);
  }

 private:
  std::locale cpp_;
  std::string c_;
};

Module affine() {
  Module module;
  Graph& graph = module.add_graph("main");
  const Value x = graph.add_input("x", {DType::F32, {100000}});
  graph.add_output("y", x * 0.5 + 1234567.25);
  return module;
}

}  // namespace

TEST_CASE("NU-08: text in a German locale") {
  const Module module = affine();
  const std::string text = print(module);
  CHECK(text.find("1234567.25") != std::string::npos);
  CHECK(text.find("f32[100000]") != std::string::npos);
  const GermanLocale german;
  CHECK(print(module) == text);
  CHECK(print(*parse_module(text, "affine.sir")) == text);
}

TEST_CASE("NU-08: source and result in a German locale") {
  for (DeviceKind device : test::devices_here()) {
    CAPTURE(to_string(device));
    const Module module = affine();
    const CompileOptions options{.device = device};
    const auto before = compile(module, options);
    const GermanLocale german;
    const auto after = compile(module, options);
    // The same source has the same key, so the second compile finds every kernel of the first.
    CHECK(after->stats().compiled == 0);
    CHECK(after->stats().cached == before->stats().cached + before->stats().compiled);
    CHECK(after->plan_text() == before->plan_text());
    const Bindings out =
        make_session(after)->run("main", {{"x", Tensor::full({DType::F32, {100000}}, 3)}});
    int wrong = 0;
    for (double v : out.at("y").to_doubles()) wrong += v != 1234568.75;
    CHECK(wrong == 0);
  }
}
