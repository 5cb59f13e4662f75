#pragma once
// The emulator's twin of codegen/templates/ptx.cuh: the same signatures, in the namespace `device`.

#include <sinter/tests/emulator/device.h>

#include <atomic>

namespace device {

inline uint32_t shared_address(const void* pointer) {
  return ::sinter::emulator::shared_offset(pointer);
}

inline void cp_async_16(uint32_t shared, const void* global) {
  ::sinter::emulator::async_copy(shared, global, 16);
}
inline void cp_async_16_or_zero(uint32_t shared, const void* global, bool keep) {
  ::sinter::emulator::async_copy(shared, keep ? global : nullptr, 16);
}
inline void cp_async_4_or_zero(uint32_t shared, const void* global, bool keep) {
  ::sinter::emulator::async_copy(shared, keep ? global : nullptr, 4);
}
inline void cp_async_commit() {
  ::sinter::emulator::async_commit();
}
template <int Pending>
void cp_async_wait() {
  ::sinter::emulator::async_wait(Pending);
}

namespace detail {
// Matrices of 8x8 16-bit elements; lane 8i + r gives row r of matrix i. Lane 4g + t holds elements
// (g, 2t) and (g, 2t + 1), of the transposed matrix with Transposed.
struct Matrices {
  uint32_t address;
  uint32_t words[4];
};
template <int Count, bool Transposed, bool Store>
struct MoveMatrices {
  void operator()(Matrices* const* lanes) const {
    for (int i = 0; i < Count; ++i) {
      uint16_t elements[8][8];
      for (int row = 0; row < 8; ++row) {
        void* at = ::sinter::emulator::shared_pointer(lanes[8 * i + row]->address, 16, 16,
                                                      Store ? "stmatrix" : "ldmatrix");
        if (Store) {
          for (int column = 0; column < 8; ++column) {
            const int r = Transposed ? column : row, c = Transposed ? row : column;
            elements[row][column] =
                static_cast<uint16_t>(lanes[4 * r + c / 2]->words[i] >> (16 * (c % 2)));
          }
          std::memcpy(at, elements[row], 16);
        } else {
          std::memcpy(elements[row], at, 16);
        }
      }
      if (Store) continue;
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2;
        const uint16_t low = Transposed ? elements[column][row] : elements[row][column];
        const uint16_t high = Transposed ? elements[column + 1][row] : elements[row][column + 1];
        lanes[lane]->words[i] = low | static_cast<uint32_t>(high) << 16;
      }
    }
  }
};

template <typename E>
float widen(uint16_t bits) {
  if constexpr (std::is_same_v<E, bf16>) return bf16_to_f32({bits});
  return f16_to_f32({bits});
}
struct Product {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};
template <typename E>
struct Multiply {
  void operator()(Product* const* lanes) const {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half)
          a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] =
              widen<E>(static_cast<uint16_t>(lanes[lane]->a[i] >> (16 * half)));
      for (int i = 0; i < 2; ++i)
        for (int half = 0; half < 2; ++half)
          b[2 * t + 8 * i + half][g] =
              widen<E>(static_cast<uint16_t>(lanes[lane]->b[i] >> (16 * half)));
    }
    for (int row = 0; row < 16; ++row) {
      float sums[8] = {};
      for (int k = 0; k < 16; ++k)
        for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
      for (int column = 0; column < 8; ++column)
        lanes[row % 8 * 4 + column / 2]->d[row / 8 * 2 + column % 2] += sums[column];
    }
  }
};
}  // namespace detail

inline void ldmatrix_x4(uint32_t (&to)[4], uint32_t row) {
  detail::Matrices mine{row, {}};
  ::sinter::emulator::warp_collective(0xffffffffu, "ldmatrix.x4", mine,
                                      detail::MoveMatrices<4, false, false>{});
  std::memcpy(to, mine.words, sizeof to);
}
inline void ldmatrix_x4_trans(uint32_t (&to)[4], uint32_t row) {
  detail::Matrices mine{row, {}};
  ::sinter::emulator::warp_collective(0xffffffffu, "ldmatrix.x4.trans", mine,
                                      detail::MoveMatrices<4, true, false>{});
  std::memcpy(to, mine.words, sizeof to);
}
inline void ldmatrix_x2(uint32_t (&to)[2], uint32_t row) {
  detail::Matrices mine{row, {}};
  ::sinter::emulator::warp_collective(0xffffffffu, "ldmatrix.x2", mine,
                                      detail::MoveMatrices<2, false, false>{});
  std::memcpy(to, mine.words, sizeof to);
}
inline void ldmatrix_x2_trans(uint32_t (&to)[2], uint32_t row) {
  detail::Matrices mine{row, {}};
  ::sinter::emulator::warp_collective(0xffffffffu, "ldmatrix.x2.trans", mine,
                                      detail::MoveMatrices<2, true, false>{});
  std::memcpy(to, mine.words, sizeof to);
}

template <typename E>
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  detail::Product mine{d, a, {b0, b1}};
  ::sinter::emulator::warp_collective(
      0xffffffffu, std::is_same_v<E, bf16> ? "mma.m16n8k16.bf16" : "mma.m16n8k16.f16", mine,
      detail::Multiply<E>{});
}

inline void store_fragment(float* to, const float (&d)[4]) {
  std::memcpy(to + threadIdx.x % 32 * 4, d, sizeof d);
}
inline void load_fragment(float (&d)[4], const float* from) {
  std::memcpy(d, from + threadIdx.x % 32 * 4, sizeof d);
}
inline void add_fragment(float* to, const float (&d)[4]) {
  ::sinter::emulator::check_global(to + threadIdx.x % 32 * 4, sizeof d, 16, "red.add.v4");
  for (unsigned i = 0; i < 4; ++i)
    std::atomic_ref<float>(to[threadIdx.x % 32 * 4 + i]).fetch_add(d[i]);
}

// Blocks run in the order of the grid, so that one that comes before goes on while this one waits.
inline uint32_t load_relaxed(const uint32_t* flag) {
  ::sinter::emulator::check_global(flag, 4, 4, "ld.relaxed");
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(flag)).load();
}
inline uint32_t load_acquire(const uint32_t* flag) {
  const uint32_t value = load_relaxed(flag);
  ::sinter::emulator::poll(flag, value);
  return value;
}
inline void fence_release() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline void store_relaxed(uint32_t* flag, uint32_t value) {
  ::sinter::emulator::check_global(flag, 4, 4, "st.relaxed");
  std::atomic_ref<uint32_t>(*flag).store(value);
}

inline void named_barrier_sync(int id, int threads) {
  ::sinter::emulator::barrier_sync(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}
inline void named_barrier_arrive(int id, int threads) {
  ::sinter::emulator::barrier_arrive(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}

inline float fast_exp2(float x) {
  return x < -126.0f ? 0.0f : std::exp2(x);
}
inline float fast_reciprocal(float x) {
  return 1.0f / x;
}

}  // namespace device
