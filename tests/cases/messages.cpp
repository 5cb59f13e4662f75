// TL-01: a shape error names op, operands, shapes, the axis that disagrees, and the user's line.

#include <doctest/doctest.h>
#include <sinter/ir/ops.h>
#include <sinter/runtime/tensor.h>

#include <functional>
#include <string>

using namespace sinter;

namespace {

// What `mistake` throws; it must be at the place of the lambda's line, in this file.
std::string message(int line, const std::function<void()>& mistake) {
  try {
    mistake();
  } catch (const Error& error) {
    CHECK(error.diagnostic().location.line == line);
    CHECK(error.diagnostic().location.file_name().find("messages.cpp") != std::string_view::npos);
    return error.what();
  }
  return "nothing was refused";
}

bool has(const std::string& text, std::initializer_list<const char*> parts) {
  INFO(text);
  for (const char* part : parts)
    if (text.find(part) == std::string::npos) return false;
  return true;
}

}  // namespace

TEST_CASE("TL-01: shape errors at build time") {
  Module module;
  Graph& graph = module.add_graph("g");
  auto input = [&](const char* name, Shape shape) {
    return graph.add_input(name, {DType::F32, std::move(shape)});
  };
  const Value x = input("x", {2, 4}), y = input("y", {2}), a = input("a", {2, 3});
  const Value b = input("b", {4, 5}), flat = input("flat", {12}), c = input("c", {3, 3});

  std::string text = message(__LINE__, [&] { x + y; });
  INFO(text);
  CHECK(has(text, {"add", "x", "y", "f32[2,4]", "f32[2]", "4", "2"}));
  text = message(__LINE__, [&] { matmul(a, b); });
  INFO(text);
  CHECK(has(text, {"matmul", "a (f32[2,3])", "b (f32[4,5])", "axis 1", "axis 0"}));
  text = message(__LINE__, [&] { reshape(flat, {5, 2}); });
  INFO(text);
  CHECK(has(text, {"reshape", "flat (f32[12])", "[5,2]", "12", "10"}));
  text = message(__LINE__, [&] { concat({a, c}, 1); });
  INFO(text);
  CHECK(has(text, {"concat", "a (f32[2,3])", "c (f32[3,3])", "axis 0"}));
}

TEST_CASE("RT-04: a bf16 result is not read as floats") {
  const Tensor bf16 = Tensor::full({DType::BF16, {1, 2}}, 1.0);
  std::string text;
  try {
    bf16.as<float>();
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK(has(text, {"bf16", "f32"}));
}
