// Eight tile registers of 16 rows x 64 bytes. The same kernel source compiles with the real ones and, with
// KTBENCH_TILES_EMULATED, with plain C++ that runs on any machine.
#pragma once

#include "core/kernels.h"

#ifdef KTBENCH_TILES_EMULATED

namespace ktbench {
namespace {

constexpr std::uint64_t Counters::*tiles_counter = &Counters::emulated_tiles;

struct Tile {
  std::uint32_t row[16][16];
};
thread_local Tile tile[8];

inline void tiles_enter() {}
inline void tiles_leave() {}

template <int t>
void tile_zero() {
  tile[t] = {};
}

template <int t>
void tile_load(const void* from, std::size_t stride_bytes) {
  for (int r = 0; r < 16; ++r)
    __builtin_memcpy(tile[t].row[r], static_cast<const char*>(from) + r * stride_bytes, sizeof tile[t].row[r]);
}

template <int t>
void tile_load_streaming(const void* from, std::size_t stride_bytes) {
  tile_load<t>(from, stride_bytes);
}

template <int t>
void tile_store(void* to, std::size_t stride_bytes) {
  for (int r = 0; r < 16; ++r)
    __builtin_memcpy(static_cast<char*>(to) + r * stride_bytes, tile[t].row[r], sizeof tile[t].row[r]);
}

inline float low_half(std::uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
inline float high_half(std::uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); }

// c += dot(a, b) for all 16 x 16 sums; rows of a by columns of b, 16 words of 32 bits each.
template <int c, int a, int b, class Sum, class Dot>
void tile_add(Dot dot) {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n)
      tile[c].row[m][n] = __builtin_bit_cast(
          std::uint32_t, __builtin_bit_cast(Sum, tile[c].row[m][n]) + dot(tile[a].row[m], tile[b], n));
}

// tdpbf16ps: even and odd products are summed separately within the tile, then added (Intel SDM, volume 2).
struct DotBf16 {
  static float dot(const std::uint32_t* a, const Tile& b, int n) {
    float even = 0, odd = 0;
    for (int k = 0; k < 16; ++k) {
      even += low_half(a[k]) * low_half(b.row[k][n]);
      odd += high_half(a[k]) * high_half(b.row[k][n]);
    }
    return even + odd;
  }
  template <int c, int a, int b>
  static void add() {
    tile_add<c, a, b, float>(dot);
  }
};

// tdpbusd: unsigned bytes of a by signed bytes of b.
struct DotInt8 {
  static std::int32_t dot(const std::uint32_t* a, const Tile& b, int n) {
    std::int32_t sum = 0;
    for (int k = 0; k < 16; ++k)
      for (int shift = 0; shift < 32; shift += 8)
        sum += static_cast<std::uint8_t>(a[k] >> shift) * static_cast<std::int8_t>(b.row[k][n] >> shift);
    return sum;
  }
  template <int c, int a, int b>
  static void add() {
    tile_add<c, a, b, std::uint32_t>(dot);  // wraps around
  }
};

}  // namespace
}  // namespace ktbench

#else

namespace ktbench {
namespace {

constexpr std::uint64_t Counters::*tiles_counter = &Counters::amx_tiles;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig full_tiles;

// Plain assembly: gcc 12 defines the intrinsics as macros that take no template argument, and lets _tile_loadconfig
// overtake the stores that fill the configuration.
inline void tiles_enter() { asm volatile("ldtilecfg %0" : : "m"(full_tiles)); }
inline void tiles_leave() { asm volatile("tilerelease"); }

template <int t>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(t));
}

template <int t>
inline void tile_load(const void* from, std::size_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(t));
}

// The same with a hint that leaves L1 to the other operand.
template <int t>
inline void tile_load_streaming(const void* from, std::size_t stride_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(t));
}

template <int t>
inline void tile_store(void* to, std::size_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride_bytes), "i"(t) : "memory");
}

struct DotBf16 {
  template <int c, int a, int b>
  static void add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

// Unsigned bytes of a by signed bytes of b.
struct DotInt8 {
  template <int c, int a, int b>
  static void add() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

}  // namespace
}  // namespace ktbench

#endif
