// How AVX-512 multiplies a line: one policy per instruction, see core/lines.h.
#pragma once

#include <immintrin.h>

#include "core/blocks.h"

namespace ktbench {
namespace {

inline __m512i line(const std::byte* at) { return _mm512_load_si512(at); }
inline __m512i four_bytes(const std::byte* at) {
  return _mm512_set1_epi32(*reinterpret_cast<const std::int32_t*>(at));
}

// The numbers of the low or the high nibbles of a line.
template <bool high>
inline __m512i decoded(const std::byte* at, const std::int8_t* of) {
  const __m512i values = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  const __m512i pairs = high ? _mm512_srli_epi16(line(at), 4) : line(at);
  return _mm512_shuffle_epi8(values, _mm512_and_si512(pairs, _mm512_set1_epi8(15)));
}

struct FloatSums {
  using Sum = __m512;
  static constexpr int parts = 1, block_rows = 6;
  static Sum sum(Sum a, Sum b) { return _mm512_add_ps(a, b); }
  static Sum get(const float* c) { return _mm512_load_ps(c); }
  static void put(Sum s, float* c) { _mm512_store_ps(c, s); }
  static void add(Sum& s, __m512 a, __m512 w) { asm("vfmadd231ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(w)); }
  static void store(Sum s, int, const StripScales*, float, float* c) { _mm512_store_ps(c, s); }

  using Codes = __m512i;
  static Codes codes(const std::byte* part) { return line(part); }
  static Sum fold(Sum s, float scale, Sum to) { return _mm512_fmadd_ps(s, _mm512_set1_ps(scale), to); }
  static Sum times(Sum s, const float* scales) { return _mm512_mul_ps(s, _mm512_load_ps(scales)); }
};

// Integer sums, `raised` when the activations were raised by 128.
template <bool raised>
struct IntegerSums {
  using Sum = __m512i;
  static constexpr int parts = 1, block_rows = raised ? 6 : 4;
  static Sum sum(Sum a, Sum b) { return _mm512_add_epi32(a, b); }
  static Sum get(const float* c) { return _mm512_load_si512(c); }
  static void put(Sum s, float* c) { _mm512_store_si512(c, s); }
  static void store(Sum s, int, const StripScales* scales, float row_scale, float* c) {
    if constexpr (raised) s = _mm512_add_epi32(s, _mm512_load_si512(scales->offset));
    const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scales->scale), _mm512_set1_ps(row_scale));
    _mm512_store_ps(c, _mm512_mul_ps(_mm512_cvtepi32_ps(s), scale));
  }

  using Floats = __m512;
  template <int quarter>
  static auto broadcast_int4(const std::byte* row) {
    return four_bytes(row + 4 * quarter);
  }
  static Floats scale(Sum s, const std::int8_t* scales, Floats to) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(scales));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), to);
  }
  // `unit`: how much too large the sums are.
  static void store_floats(Floats s, float unit, int, const StripScales* scales, float row_scale, float* c) {
    s = _mm512_mul_ps(s, _mm512_set1_ps(1 / unit));
    if constexpr (raised) s = _mm512_add_ps(s, _mm512_cvtepi32_ps(_mm512_load_si512(scales->offset)));
    const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scales->scale), _mm512_set1_ps(row_scale));
    _mm512_store_ps(c, _mm512_mul_ps(s, scale));
  }

  // A thread of Zen 4: 0.33 TOPS of six rows with floats in L1, 0.37 of three with all in registers; int8 0.41.
  static constexpr int gguf_rows = 3;
  static constexpr bool keeps_floats = true;
  static void zero(Sum& s) { asm volatile("vpxord %0, %0, %0" : "=v"(s)); }
  static Floats halves_of(const std::byte* at) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static Floats bf16_of(const std::byte* at) {
    const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static Floats powers_of(const std::byte* at) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23));
  }
  static Floats fold(Sum s, Floats scales, Floats to) { return _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), scales, to); }
  static void fold_into(Sum s, Floats scales, Floats& kept) {
    asm volatile("vcvtdq2ps %1, %1\n\tvfmadd231ps %2, %1, %0" : "+v"(kept), "+&v"(s) : "v"(scales));
  }
  static Floats fold_sum(float x, Floats minima, Floats to) { return _mm512_fmadd_ps(_mm512_set1_ps(x), minima, to); }
  static Floats get_floats(const float* c) { return _mm512_load_ps(c); }
  static void put_floats(Floats s, float* c) { _mm512_store_ps(c, s); }
  static void finish(Floats s, float unit, int, const float* offsets, float row_scale, float* c) {
    s = _mm512_mul_ps(s, _mm512_set1_ps(1 / unit));
    if constexpr (raised) s = _mm512_add_ps(s, _mm512_load_ps(offsets));
    _mm512_store_ps(c, _mm512_mul_ps(s, _mm512_set1_ps(row_scale)));
  }
};

// bf16 widened to float32 by shift or mask.
struct FmaF32 : FloatSums {
  using Vector = __m512;
  static constexpr int halves = 2, step = 8;
  static constexpr Activation activation = Activation::f32;
  template <int half>
  static Vector load(const std::byte* at) {
    return of_pairs<half>(line(at));
  }
  template <int half>
  static Vector of_pairs(__m512i pairs) {
    if constexpr (half) return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(~0xffff)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  }
  template <int half>
  static Vector broadcast(const std::byte* row) {
    return _mm512_set1_ps(reinterpret_cast<const float*>(row)[half]);
  }
};

// The same on weights that were widened before, a line for every k: nothing but FMA in the loop.
struct WideF32 : FloatSums {
  using Vector = __m512;
  static constexpr int halves = 1, step = 4;
  static constexpr Activation activation = Activation::f32;
  template <int>
  static Vector load(const std::byte* at) {
    return _mm512_load_ps(at);
  }
  template <int>
  static Vector broadcast(const std::byte* row) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(row));
  }
};

struct WidenedPanels : PackedPanels {
  static Panel panel(const Strips& w, int first, int count, std::byte* to) {
    for (int s = 0; s < w.count; ++s) {
      const std::byte* from = lines_of(w) + s * w.bytes + first / 2 * line_bytes;
      std::byte* wide = to + s * piece_lines * line_bytes;
      for (int i = 0; i < count; i += 2, from += line_bytes, wide += 2 * line_bytes) {
        _mm512_store_ps(wide, FmaF32::load<0>(from));
        _mm512_store_ps(wide + line_bytes, FmaF32::load<1>(from));
      }
    }
    return {to, piece_lines * line_bytes, count};
  }
};

// int8 widened to int16 by shifts: even bytes, then odd ones.
struct MaddS16 : IntegerSums<false> {
  using Vector = __m512i;
  static constexpr int halves = 2, step = 8;
  static constexpr Activation activation = Activation::s16;
  template <int half>
  static Vector load(const std::byte* at) {
    return widened<half>(line(at));
  }
  template <bool odd>
  static Vector widened(__m512i bytes) {
    return _mm512_srai_epi16(odd ? bytes : _mm512_slli_epi16(bytes, 8), 8);
  }
  template <int half>
  static Vector broadcast(const std::byte* row) {
    return four_bytes(row + 4 * half);
  }
  static void add(Sum& s, Vector a, Vector w) {
    asm("vpaddd %1, %0, %0" : "+v"(s) : "v"(_mm512_madd_epi16(a, w)));
  }

  // Each nibble at the top of 16 bits: byte 0 low, byte 1 low, byte 0 high, byte 1 high, as the activations come.
  static constexpr int quarters = 4, quarter_step = 16, unit = 4096;
  template <int quarter>
  static Vector load_int4(const std::byte* at) {
    constexpr int shift = quarter == 0 ? 12 : quarter == 1 ? 4 : quarter == 2 ? 8 : 0;
    const __m512i nibbles = _mm512_slli_epi16(line(at), shift);
    return quarter == 0 ? nibbles : _mm512_and_si512(nibbles, _mm512_set1_epi16(static_cast<short>(0xf000)));
  }
  template <int quarter>
  static Vector load_codes(const std::byte* at, const std::int8_t* values) {
    return widened<quarter % 2 != 0>(decoded<quarter / 2 != 0>(at, values));
  }
};

}  // namespace
}  // namespace ktbench
