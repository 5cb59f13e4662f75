#include <sinter/runtime/tensor.h>

#include <doctest/doctest.h>
#include <sinter/ir/diagnostic.h>

#include <cmath>
#include <string>

using namespace sinter;

namespace {
template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.diagnostic().message;
  }
  return "";
}
}  // namespace

TEST_CASE("tensor: construction, sharing and cloning") {
  Tensor a = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  CHECK(a.type() == TensorType{DType::F32, {2, 2}});
  CHECK(reinterpret_cast<uintptr_t>(a.data()) % 64 == 0);
  CHECK(a.to_vector<float>() == std::vector<float>{1, 2, 3, 4});
  Tensor shared = a, copy = a.clone();
  a.as<float>()[0] = 9;
  CHECK(shared.at(0) == 9);
  CHECK(copy.at(0) == 1);
  CHECK(!copy.same_bits(a));
  CHECK(shared.same_bits(a));
  CHECK(Tensor().size() == 0);
  CHECK(Tensor({DType::I32, {3}}).to_doubles() == std::vector<double>{0, 0, 0});
  CHECK(Tensor::scalar<int64_t>(-5).to_vector<int64_t>() == std::vector<int64_t>{-5});
  CHECK(Tensor::from<bool>({3}, std::vector<bool>{true, false, true}).to_doubles() ==
        std::vector<double>{1, 0, 1});
  CHECK(Tensor::full({DType::BF16, {2}}, 0.1).at(1) == 0.10009765625);
  CHECK(Tensor::from_doubles({DType::I32, {3}}, {1.9, 1e20, NAN}).to_vector<int32_t>() ==
        std::vector<int32_t>{1, 2147483647, 0});
  CHECK(Tensor({DType::F32, {0, int64_t{1} << 62, 4}}).size() == 0);
}

TEST_CASE("tensor: refused shapes and counts") {
  CHECK(refusal([] {
          Tensor::from<float>({2, 2}, {1, 2, 3});
        }) == "shape [2,2] has 4 elements, given 3");
  CHECK(refusal([] { Tensor({DType::F32, {-1}}); }) == "tensor type f32[-1] has a negative extent");
  CHECK(refusal([] {
          Tensor({DType::F32, {int64_t{1} << 40, int64_t{1} << 30}});
        }).find("too large") != std::string::npos);
}

TEST_CASE("RT-04: wrong type at the boundary") {
  Tensor y = Tensor::from_doubles({DType::BF16, {1, 2}}, {1, 2});
  CHECK(refusal([&] { y.as<float>(); }) == "tensor of type bf16[1,2] accessed as f32");
  CHECK(refusal([&] { y.to_vector<float>(); }) == "tensor of type bf16[1,2] accessed as f32");
  CHECK(y.as<BFloat16>()[1] == BFloat16{0x4000});
  Tensor tokens = Tensor::from<int64_t>({2}, {1, 2});
  CHECK(refusal([&] { tokens.as<int32_t>(); }) == "tensor of type i64[2] accessed as i32");
  CHECK(refusal([&] {
          require_type("input 'ids'", {DType::I32, {2}}, tokens.type());
        }) == "input 'ids' expects i32[2], given i64[2]");
  CHECK(refusal([&] { require_type("input 'ids'", {DType::I64, {2}}, tokens.type()); }) == "");
}

TEST_CASE("tensor: conversion between types") {
  Tensor big = Tensor::from<int64_t>({1}, {(int64_t{1} << 62) + (int64_t{1} << 54) + 1});
  CHECK(big.to(DType::BF16).at(0) == 0x1p62 + 0x1p55);
  CHECK(Tensor::from<double>({1}, {1.0 + 0x1p-8 + 0x1p-40}).to(DType::BF16).at(0) == 1.0 + 0x1p-7);
}

TEST_CASE("fill rule") {
  CHECK(fill({DType::F32, {3}}, 1).to_doubles() == std::vector<double>{-1.375, 1.5, 0.625});
  CHECK(fill({DType::BF16, {4}}, 2).to_doubles() ==
        std::vector<double>{-1.25, -1.34375, 0.875, -0.65625});
  const Tensor wide = fill({DType::F64, {2, 97}}, 5);
  for (int64_t i = 0; i < 97; ++i) CHECK(wide.at(i) == wide.at(i + 97));
  // -1.375 is (4 - 48) / 32, 1.5 is (96 - 48) / 32, 0.625 is (68 - 48) / 32.
  CHECK(fill_mod({DType::I32, {3}}, 1, 10).to_vector<int32_t>() == std::vector<int32_t>{4, 6, 8});
  CHECK(fill_mod({DType::I64, {3}}, 1, 97).to_vector<int64_t>() == std::vector<int64_t>{4, 96, 68});
  CHECK(refusal([] { fill({DType::I32, {3}}, 1); }).find("use fill:S:M") != std::string::npos);
  CHECK(refusal([] { fill_mod({DType::I32, {3}}, 1, 0); }).find("positive") != std::string::npos);
}
