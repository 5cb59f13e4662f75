#pragma once
// Random bits: Philox4x32-10, and how sinter maps its words to elements.
//
// Random ops are stateless. An element's bits depend on seed, step, site and its element index
// alone, never on device, fusion, launch shape or earlier calls:
//   element = offset + row-major index in the op's tensor, as 64-bit unsigned. `offset` is the
//   place
//             of this rank's or micro-batch's first element in the global tensor, in elements.
//   call    = element / 8 for dropout, element / 4 for uniform and normal
//   lane    = element % 8 or element % 4
//   words   = philox4x32(counter = {low(call), high(call), site, step}, key = seed)
// dropout   lane i reads the call's i-th 16-bit half, low half of word 0 first; the element is kept
//           when half >= round(65536 * p)
// uniform   (words[lane] >> 8) * 2^-24, in [0, 1)
// normal    Box-Muller on words (0,1) for lanes 0 and 1, on words (2,3) for lanes 2 and 3, with
//           u1 = ((first >> 8) + 1) * 2^-24 in (0, 1], u2 = (second >> 8) * 2^-24:
//           even lane sqrt(-2 ln u1) * cos(2 pi u2), odd lane sqrt(-2 ln u1) * sin(2 pi u2)

#include <array>
#include <cmath>
#include <cstdint>

namespace sinter {

using PhiloxBlock = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline constexpr int kDropoutLanes = 8;
inline constexpr int kWordLanes = 4;

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// What all elements of one random op share.
struct RandomStream {
  PhiloxKey seed{};
  uint32_t step = 0;
  uint32_t site = 0;
  int64_t offset = 0;

  constexpr uint64_t element(int64_t index) const {
    return static_cast<uint64_t>(offset) + static_cast<uint64_t>(index);
  }
  constexpr PhiloxBlock words(uint64_t call) const {
    return philox4x32({static_cast<uint32_t>(call), static_cast<uint32_t>(call >> 32), site, step},
                      seed);
  }
};

// An element is dropped when its 16-bit half is below this; 0 keeps all, 65536 drops all.
inline uint32_t dropout_threshold(double p) {
  return static_cast<uint32_t>(std::lround(65536.0 * p));
}

constexpr uint32_t dropout_half(const PhiloxBlock& words, int lane) {
  return (words[static_cast<size_t>(lane / 2)] >> (lane % 2 * 16)) & 0xFFFFu;
}

constexpr bool dropout_keep(const RandomStream& stream, int64_t index, uint32_t threshold) {
  const uint64_t e = stream.element(index);
  return dropout_half(stream.words(e / kDropoutLanes), static_cast<int>(e % kDropoutLanes)) >=
         threshold;
}

constexpr float uniform_from_word(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

constexpr float random_uniform(const RandomStream& stream, int64_t index) {
  const uint64_t e = stream.element(index);
  return uniform_from_word(stream.words(e / kWordLanes)[e % kWordLanes]);
}

// One lane of a normal call; T is the arithmetic, float or double.
template <typename T>
T normal_from_words(const PhiloxBlock& words, int lane) {
  const size_t first = static_cast<size_t>(lane / 2 * 2);
  const T u1 = static_cast<T>((words[first] >> 8) + 1) * static_cast<T>(0x1p-24);
  const T u2 = static_cast<T>(words[first + 1] >> 8) * static_cast<T>(0x1p-24);
  const T radius = std::sqrt(static_cast<T>(-2) * std::log(u1));
  const T angle = static_cast<T>(6.283185307179586) * u2;
  return radius * (lane % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

template <typename T>
T random_normal(const RandomStream& stream, int64_t index) {
  const uint64_t e = stream.element(index);
  return normal_from_words<T>(stream.words(e / kWordLanes), static_cast<int>(e % kWordLanes));
}

}  // namespace sinter
