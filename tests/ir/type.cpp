#include <doctest/doctest.h>
#include <sinter/ir/type.h>

using namespace sinter;

TEST_CASE("type: every dtype's name reads back") {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64,
                      DType::U32, DType::Bool}) {
    CHECK(parse_dtype(to_string(dtype)) == dtype);
  }
  CHECK_FALSE(parse_dtype("f33").has_value());
  CHECK_FALSE(parse_dtype("").has_value());
}

TEST_CASE("type: sizes and classes") {
  CHECK(size_of(DType::F64) == 8);
  CHECK(size_of(DType::BF16) == 2);
  CHECK(size_of(DType::Bool) == 1);
  CHECK(is_float(DType::F16));
  CHECK_FALSE(is_float(DType::I32));
  CHECK(is_integer(DType::U32));
  CHECK_FALSE(is_integer(DType::Bool));
  CHECK(compute_type(DType::BF16) == DType::F32);
  CHECK(compute_type(DType::F16) == DType::F32);
  CHECK(compute_type(DType::F64) == DType::F64);
  CHECK(compute_type(DType::I64) == DType::I64);
}

TEST_CASE("type: shapes") {
  CHECK(num_elements({}) == 1);
  CHECK(num_elements({2, 0, 3}) == 0);
  CHECK(num_elements({65536, 65536}) == int64_t{1} << 32);
  CHECK(row_major_strides({2, 3, 4}) == Shape{12, 4, 1});
  CHECK(row_major_strides({}).empty());
  CHECK(to_string(Shape{}) == "[]");
  CHECK(to_string(Shape{2, 3}) == "[2,3]");
}

TEST_CASE("type: a tensor type reads back") {
  for (const TensorType& type :
       {TensorType{DType::F32, {}}, TensorType{DType::BF16, {8, 64}}, TensorType{DType::Bool, {0}},
        TensorType{DType::I64, {int64_t{1} << 33}}}) {
    CAPTURE(type.str());
    CHECK(parse_tensor_type(type.str()) == type);
  }
  CHECK(TensorType{DType::F32, {2, 3}}.str() == "f32[2,3]");
  CHECK(TensorType{DType::BF16, {2, 3}}.bytes() == 12);
}

TEST_CASE("type: malformed tensor types are refused") {
  for (const char* text : {"", "f32", "[2]", "f32[2", "f32[2,]", "f32[,2]", "f32[-1]", "f32[2]x",
                           "f33[2]", "f32[a]", "f32[99999999999999999999]"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_tensor_type(text).has_value());
  }
}
