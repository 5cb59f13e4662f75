#include <doctest/doctest.h>
#include <sinter/ir/scalar.h>

#include <cmath>
#include <limits>

using namespace sinter;

TEST_CASE("scalar: the identity of a fold") {
  CHECK(identity_element(Fn::Add, DType::F32).f == 0.0);
  CHECK(identity_element(Fn::Mul, DType::I64).i == 1);
  CHECK(identity_element(Fn::Mul, DType::BF16).f == 1.0);
  CHECK(identity_element(Fn::Max, DType::BF16).f == -INFINITY);
  CHECK(identity_element(Fn::Min, DType::F64).f == INFINITY);
  CHECK(identity_element(Fn::Max, DType::I32).i == std::numeric_limits<int32_t>::min());
  CHECK(identity_element(Fn::Max, DType::U32).i == 0);
  CHECK(identity_element(Fn::Min, DType::U32).i == 4294967295);
  CHECK(identity_element(Fn::Min, DType::I64).i == std::numeric_limits<int64_t>::max());
}

TEST_CASE("scalar: integers become floats in one rounding") {
  const int64_t tie = (int64_t{1} << 55) + (int64_t{1} << 47);  // of bf16
  const auto rounded = [](int64_t value, DType from, DType to) {
    Cell cell{};
    cell.i = value;
    return convert(cell, from, to).f;
  };
  CHECK(rounded(16842753, DType::I32, DType::BF16) == 16908288.0);
  CHECK(rounded(tie, DType::I64, DType::BF16) == 0x1p55);
  CHECK(rounded(tie + 1, DType::I64, DType::BF16) == 0x1p55 + 0x1p48);
  CHECK(rounded(-tie - 1, DType::I64, DType::BF16) == -0x1p55 - 0x1p48);
  CHECK(rounded((int64_t{1} << 60) + (int64_t{1} << 36) + 1, DType::I64, DType::F32) ==
        0x1p60 + 0x1p37);
}

TEST_CASE("scalar: which intrinsics are costly") {
  for (Fn fn : {Fn::Exp, Fn::Log, Fn::Tanh, Fn::Pow, Fn::Div, Fn::Sqrt, Fn::Rsqrt, Fn::Erf})
    CHECK(intrinsic(fn).costly);
  for (Fn fn : {Fn::Add, Fn::Mul, Fn::Fma, Fn::Max, Fn::Neg, Fn::Select, Fn::Cast, Fn::Floor})
    CHECK_FALSE(intrinsic(fn).costly);
}
