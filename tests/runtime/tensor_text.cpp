#include <sinter/runtime/tensor_text.h>

#include <doctest/doctest.h>
#include <sinter/ir/diagnostic.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>

using namespace sinter;

namespace {

std::string refusal(const TensorType& type, std::string_view text, TensorLoader loader = nullptr) {
  try {
    parse_value("input 'x'", type, text, loader);
  } catch (const Error& e) {
    return e.diagnostic().message;
  }
  return "";
}

Tensor stub_loader(const std::string& path, const std::string& name) {
  CHECK(path == "dir:a/w.safetensors");
  CHECK(name == "w");
  return Tensor::from<float>({2}, {1, 2});
}

}  // namespace

TEST_CASE("VALUE: nested lists") {
  CHECK(parse_value("x", {DType::F32, {}}, "2.5").to_doubles() == std::vector<double>{2.5});
  CHECK(parse_value("x", {DType::F32, {2, 2}}, " [[1, -2e-3],[0x3F800000 ,inf ]] ")
            .to_vector<float>() == std::vector<float>{1, -2e-3f, 1, INFINITY});
  CHECK(std::isnan(parse_value("x", {DType::F64, {1}}, "[nan]").at(0)));
  CHECK(parse_value("x", {DType::BF16, {2}}, "[0.1, 0x8000]").as<BFloat16>()[1].bits == 0x8000);
  CHECK(parse_value("x", {DType::I64, {2}}, "[9223372036854775807, -5]").to_vector<int64_t>() ==
        std::vector<int64_t>{INT64_MAX, -5});
  CHECK(parse_value("x", {DType::U32, {1}}, "[4294967295]").at(0) == 4294967295.0);
  CHECK(parse_value("x", {DType::Bool, {4}}, "[true, false, 1, 0]").to_doubles() ==
        std::vector<double>{1, 0, 1, 0});
  CHECK(parse_value("x", {DType::F32, {0}}, "[]").size() == 0);
  CHECK(parse_value("x", {DType::F32, {2, 0}}, "[[],[]]").size() == 0);
  CHECK(parse_value("x", {DType::F32, {0, 2}}, "[]").size() == 0);
}

TEST_CASE("VALUE: refusals say what and where") {
  CHECK(refusal({DType::F32, {3}}, "[1, 2]") ==
        "input 'x': expected 3 items in axis 0, given 2 at column 7, in a value of type f32[3]");
  CHECK(refusal({DType::F32, {1}}, "[1, 2]").find("given more") != std::string::npos);
  CHECK(refusal({DType::F32, {2}}, "1").find("expected '['") != std::string::npos);
  CHECK(refusal({DType::F32, {}}, "[1]").find("not a list") != std::string::npos);
  CHECK(refusal({DType::F32, {1}}, "[1] 2").find("text after the value") != std::string::npos);
  CHECK(refusal({DType::F32, {2}}, "[1 2]").find("expected ',' or ']'") != std::string::npos);
  CHECK(refusal({DType::I32, {1}}, "[1.5]").find("'1.5' is not a i32") != std::string::npos);
  for (const char* bad : {"[2147483648]", "[nan]", "[0x100000000]", "[]", "[", "", "[0x]", "[1"}) {
    CAPTURE(bad);
    CHECK(refusal({DType::I32, {1}}, bad) != "");
  }
  CHECK(refusal({DType::U32, {1}}, "[-1]") != "");
  CHECK(refusal({DType::Bool, {1}}, "[2]") != "");
  CHECK(refusal({DType::Bool, {1}}, "[0x02]") != "");
  CHECK(refusal({DType::BF16, {1}}, "[0x10000]") != "");
  CHECK(refusal({DType::F32, {1}}, "[true]") != "");
}

TEST_CASE("VALUE: fill and files") {
  CHECK(parse_value("x", {DType::F32, {3}}, "fill:1").same_bits(fill({DType::F32, {3}}, 1)));
  CHECK(parse_value("x", {DType::I32, {3}}, "fill:1:10").to_vector<int32_t>() ==
        std::vector<int32_t>{4, 6, 8});
  CHECK(refusal({DType::I32, {3}}, "fill:1").find("input 'x': fill:S") == 0);
  for (const char* bad : {"fill:", "fill:1:", "fill:1:x", "fill:1.5", "fill:1:2:3", "fill:1:0"})
    CHECK(refusal({DType::I32, {3}}, bad) != "");
  CHECK(parse_value("x", {DType::F32, {2}}, "@dir:a/w.safetensors:w", stub_loader).at(1) == 2);
  CHECK(refusal({DType::F64, {2}}, "@dir:a/w.safetensors:w", stub_loader) ==
        "input 'x' expects f64[2], given f32[2]");
  CHECK(refusal({DType::F64, {2}}, "@w.safetensors:w") ==
        "input 'x': values from files are not taken here");
  CHECK(refusal({DType::F64, {2}}, "@w.safetensors", stub_loader).find("malformed") !=
        std::string::npos);
}

TEST_CASE("values as text, json and hex") {
  const Tensor f = Tensor::from<float>({2, 2}, {0.1f, -0.0f, INFINITY, NAN});
  CHECK(format_value(f, ValueFormat::Text) == "[[0.1, -0], [inf, nan]]");
  CHECK(format_value(f, ValueFormat::Hex) ==
        "[[0x3dcccccd, 0x80000000], [0x7f800000, 0x7fc00000]]");
  CHECK(format_value(f, ValueFormat::Json) ==
        R"({"type": "f32[2,2]", "data": [0.1, -0, "inf", "nan"]})");
  CHECK(format_value(Tensor::scalar<int64_t>(-7), ValueFormat::Text) == "-7");
  CHECK(format_value(Tensor::scalar<double>(0.1), ValueFormat::Json) ==
        R"({"type": "f64[]", "data": [0.1]})");
  CHECK(format_value(Tensor::from<bool>({2}, {true, false}), ValueFormat::Text) == "[true, false]");
  CHECK(format_value(Tensor({DType::F16, {2, 0}}), ValueFormat::Text) == "[[], []]");
  CHECK(format_value(Tensor::from<bool>({1}, {true}), ValueFormat::Hex) == "[0x01]");

  const std::vector<std::pair<std::string, Tensor>> values = {
      {"l", Tensor::from<float>({2}, {1.5f, NAN})}, {"a \"b\"", Tensor::scalar<int32_t>(3)}};
  CHECK(format_values(values, ValueFormat::Text) == "l: f32[2] = [1.5, nan]\na \"b\": i32[] = 3\n");
  const auto json = nlohmann::json::parse(format_values(values, ValueFormat::Json));
  CHECK(json["l"]["type"] == "f32[2]");
  CHECK(json["l"]["data"][1] == "nan");
  CHECK(json["a \"b\""]["data"][0] == 3);
  CHECK(format_values({}, ValueFormat::Json) == "{}\n");
}

TEST_CASE("text and hex read back with the same bits") {
  for (DType type : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64,
                     DType::U32, DType::Bool}) {
    CAPTURE(to_string(type));
    const TensorType shape{type, {4, 1, 5}};
    const Tensor value = is_float(type) ? fill({DType::F64, shape.shape}, 3).to(type)
                                        : fill_mod(shape, 3, type == DType::Bool ? 2 : 97);
    if (type == DType::F64 || type == DType::F32)
      for (int64_t i = 0; i < value.size(); ++i)
        store_from_double(type, const_cast<void*>(value.data()), i, std::exp(9.7 * value.at(i)));
    for (ValueFormat format : {ValueFormat::Text, ValueFormat::Hex})
      CHECK(parse_value("x", shape, format_value(value, format)).same_bits(value));
  }
}
