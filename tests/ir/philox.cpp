#include <sinter/ir/philox.h>

#include <doctest/doctest.h>

#include <vector>

using namespace sinter;

TEST_CASE("DR-06: Philox4x32-10 known answers") {
  constexpr uint32_t f = 0xFFFFFFFFu;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) ==
        PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({f, f, f, f}, {f, f}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("DR-06: counter words and lanes") {
  RandomStream stream{{1, 2}, 7, 3, 0};
  // Element 2^35 is in uniform call 2^33: both counter words of the call are in use.
  CHECK(stream.words(uint64_t{1} << 33) == philox4x32({0, 2, 3, 7}, {1, 2}));
  const PhiloxBlock words = philox4x32({1, 0, 3, 7}, {1, 2});
  for (int lane = 0; lane < 8; ++lane) {
    const uint32_t word = words[static_cast<size_t>(lane / 2)];
    const uint32_t half = lane % 2 ? word >> 16 : word & 0xFFFF;
    CHECK(dropout_half(words, lane) == half);
    CHECK(dropout_keep(stream, 8 + lane, half));
    CHECK(!dropout_keep(stream, 8 + lane, half + 1));
  }
  for (int lane = 0; lane < 4; ++lane)
    CHECK(random_uniform(stream, 4 + lane) ==
          static_cast<float>(words[static_cast<size_t>(lane)] >> 8) / 16777216.0f);
}

TEST_CASE("offset moves the element, so that a shard draws its part of the whole") {
  RandomStream whole{{5, 6}, 1, 2, 0};
  RandomStream shard = whole;
  shard.offset = 13;
  for (int64_t i = 0; i < 40; ++i) {
    CHECK(dropout_keep(shard, i, 32768) == dropout_keep(whole, i + 13, 32768));
    CHECK(random_uniform(shard, i) == random_uniform(whole, i + 13));
    CHECK(random_normal<float>(shard, i) == random_normal<float>(whole, i + 13));
  }
}

TEST_CASE("dropout: rate, ends, and dependence on seed, step and site") {
  CHECK(dropout_threshold(0) == 0);
  CHECK(dropout_threshold(1) == 65536);
  CHECK(dropout_threshold(0.5) == 32768);
  CHECK(dropout_threshold(0.1) == 6554);
  const RandomStream base{{1, 1}, 1, 1, 0};
  RandomStream others[] = {base, base, base, base};
  others[0].seed[0] = 2;
  others[1].seed[1] = 2;
  others[2].step = 2;
  others[3].site = 2;
  const int64_t n = 20000;
  int64_t kept = 0;
  int64_t differ[4] = {};
  for (int64_t i = 0; i < n; ++i) {
    CHECK(dropout_keep(base, i, 0));
    CHECK(!dropout_keep(base, i, 65536));
    const bool keep = dropout_keep(base, i, dropout_threshold(0.25));
    kept += keep;
    for (int j = 0; j < 4; ++j)
      differ[j] += keep != dropout_keep(others[j], i, dropout_threshold(0.25));
  }
  CHECK(std::abs(static_cast<double>(kept) / n - 0.75) < 0.01);
  // Independent masks differ on 2 * 0.25 * 0.75 of the elements.
  for (int64_t d : differ) CHECK(std::abs(static_cast<double>(d) / n - 0.375) < 0.02);
}

TEST_CASE("uniform and normal: range and moments") {
  const RandomStream stream{{42, 0}, 0, 0, 0};
  const int64_t n = 40000;
  double sum = 0, square = 0, mean = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float u = random_uniform(stream, i);
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    mean += u;
    const double z = random_normal<double>(stream, i);
    REQUIRE(std::isfinite(z));
    CHECK(std::abs(random_normal<float>(stream, i) - z) < 1e-4);
    sum += z;
    square += z * z;
  }
  CHECK(std::abs(mean / n - 0.5) < 0.01);
  CHECK(std::abs(sum / n) < 0.02);
  CHECK(std::abs(square / n - 1) < 0.03);
  // Word 0 gives u1 = 2^-24, not 0, so that the logarithm is finite.
  CHECK(normal_from_words<double>({0, 0, 0, 0}, 0) == doctest::Approx(5.7682).epsilon(1e-4));
}
