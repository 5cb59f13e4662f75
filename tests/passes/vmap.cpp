#include <doctest/doctest.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/ir/text.h>
#include <sinter/passes/pass.h>

using namespace sinter;

TEST_CASE("vmap: a refusal leaves the module as it was") {
  auto module = parse_module(R"(graph @body(%p: f32[3]) -> f32[3] {
  %e = exp %p : f32[3]
  return %e
}
graph @main(%x: f32[3]) -> f32[3] {
  %a = neg %x : f32[3]
  %b = fusion @body(%a) : f32[3]
  return %b
})",
                             "kept.sir");
  std::string before = print(*module);
  PassManager manager;
  CHECK_THROWS_AS(manager.run(*module, parse_pipeline("vmap{inputs=x size=2}")), Error);
  CHECK(print(*module) == before);
}
