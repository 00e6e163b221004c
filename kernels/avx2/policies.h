// How AVX2 multiplies half a line: one policy per instruction, see core/lines.h.
#pragma once

#include <immintrin.h>

#include "core/blocks.h"

namespace ktbench {
namespace {

inline __m256i half_line(const std::byte* at) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(at)); }
inline __m256i four_bytes(const std::byte* at) {
  return _mm256_set1_epi32(*reinterpret_cast<const std::int32_t*>(at));
}

// The numbers of the low or the high nibbles of half a line.
template <bool high>
inline __m256i decoded(const std::byte* at, const std::int8_t* of) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  const __m256i pairs = high ? _mm256_srli_epi16(half_line(at), 4) : half_line(at);
  return _mm256_shuffle_epi8(values, _mm256_and_si256(pairs, _mm256_set1_epi8(15)));
}

// Integer sums, `raised` when the activations were raised by 128.
template <bool raised>
struct IntegerSums {
  using Sum = __m256i;
  using Vector = __m256i;
  using Floats = __m256;
  static constexpr int parts = 2, block_rows = 4;
  static Sum sum(Sum a, Sum b) { return _mm256_add_epi32(a, b); }
  static Sum get(const float* c) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(c)); }
  static void put(Sum s, float* c) { _mm256_store_si256(reinterpret_cast<__m256i*>(c), s); }
  static __m256i offset(const StripScales* scales, int part) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(scales->offset) + part);
  }
  static __m256 scale_of(const StripScales* scales, int part, float row_scale) {
    return _mm256_mul_ps(_mm256_load_ps(scales->scale + 8 * part), _mm256_set1_ps(row_scale));
  }
  static void store(Sum s, int part, const StripScales* scales, float row_scale, float* c) {
    if constexpr (raised) s = _mm256_add_epi32(s, offset(scales, part));
    _mm256_store_ps(c, _mm256_mul_ps(_mm256_cvtepi32_ps(s), scale_of(scales, part, row_scale)));
  }
  template <int quarter>
  static auto broadcast_int4(const std::byte* row) {
    return four_bytes(row + 4 * quarter);
  }
  static Floats scale(Sum s, const std::int8_t* scales, Floats to) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), to);
  }
  // `unit`: how much too large the sums are.
  static void store_floats(Floats s, float unit, int part, const StripScales* scales, float row_scale, float* c) {
    s = _mm256_mul_ps(s, _mm256_set1_ps(1 / unit));
    if constexpr (raised) s = _mm256_add_ps(s, _mm256_cvtepi32_ps(offset(scales, part)));
    _mm256_store_ps(c, _mm256_mul_ps(s, scale_of(scales, part, row_scale)));
  }

  static constexpr int gguf_rows = block_rows;
  static constexpr bool keeps_floats = false;
  static void zero(Sum& s) { asm volatile("vpxor %0, %0, %0" : "=x"(s)); }
  static Floats halves_of(const std::byte* at) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static Floats bf16_of(const std::byte* at) {
    const __m128i halves = _mm_load_si128(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static Floats powers_of(const std::byte* at) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23));
  }
  static Floats fold(Sum s, Floats scales, Floats to) { return _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), scales, to); }
  static void fold_into(Sum s, Floats scales, float* c) {
    asm volatile("vcvtdq2ps %0, %0\n\tvfmadd213ps %1, %2, %0\n\tvmovaps %0, %1"
                 : "+&x"(s), "+m"(*reinterpret_cast<Floats*>(c))
                 : "x"(scales));
  }
  static Floats fold_sum(float x, Floats minima, Floats to) { return _mm256_fmadd_ps(_mm256_set1_ps(x), minima, to); }
  static Floats get_floats(const float* c) { return _mm256_load_ps(c); }
  static void put_floats(Floats s, float* c) { _mm256_store_ps(c, s); }
  static void finish(Floats s, float unit, int part, const float* offsets, float row_scale, float* c) {
    s = _mm256_mul_ps(s, _mm256_set1_ps(1 / unit));
    if constexpr (raised) s = _mm256_add_ps(s, _mm256_load_ps(offsets + 8 * part));
    _mm256_store_ps(c, _mm256_mul_ps(s, _mm256_set1_ps(row_scale)));
  }
};

// bf16 widened to float32 by shift or mask.
struct FmaF32 {
  using Sum = __m256;
  using Vector = __m256;
  static constexpr int parts = 2, block_rows = 4, halves = 2, step = 8;
  static constexpr Activation activation = Activation::f32;
  static Sum sum(Sum a, Sum b) { return _mm256_add_ps(a, b); }
  static Sum get(const float* c) { return _mm256_load_ps(c); }
  static void put(Sum s, float* c) { _mm256_store_ps(c, s); }
  template <int half>
  static Vector load(const std::byte* at) {
    return of_pairs<half>(half_line(at));
  }
  template <int half>
  static Vector of_pairs(__m256i pairs) {
    if constexpr (half) return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(~0xffff)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  }
  template <int half>
  static Vector broadcast(const std::byte* row) {
    return _mm256_set1_ps(reinterpret_cast<const float*>(row)[half]);
  }
  static void add(Sum& s, Vector a, Vector w) { asm("vfmadd231ps %2, %1, %0" : "+x"(s) : "x"(a), "x"(w)); }
  static void store(Sum s, int, const StripScales*, float, float* c) { _mm256_store_ps(c, s); }

  using Codes = __m256i;
  static Codes codes(const std::byte* part) { return half_line(part); }
  static Sum fold(Sum s, float scale, Sum to) { return _mm256_fmadd_ps(s, _mm256_set1_ps(scale), to); }
  static Sum times(Sum s, const float* scales) { return _mm256_mul_ps(s, _mm256_load_ps(scales)); }
};

// int8 widened to int16 by shifts: even bytes, then odd ones.
struct MaddS16 : IntegerSums<false> {
  static constexpr int halves = 2, step = 8;
  static constexpr Activation activation = Activation::s16;
  template <int half>
  static Vector load(const std::byte* at) {
    return widened<half>(half_line(at));
  }
  template <bool odd>
  static Vector widened(__m256i bytes) {
    return _mm256_srai_epi16(odd ? bytes : _mm256_slli_epi16(bytes, 8), 8);
  }
  template <int half>
  static Vector broadcast(const std::byte* row) {
    return four_bytes(row + 4 * half);
  }
  static void add(Sum& s, Vector a, Vector w) {
    asm("vpaddd %1, %0, %0" : "+x"(s) : "x"(_mm256_madd_epi16(a, w)));
  }

  // Each nibble at the top of 16 bits: byte 0 low, byte 1 low, byte 0 high, byte 1 high, as the activations come.
  static constexpr int quarters = 4, quarter_step = 16, unit = 4096;
  template <int quarter>
  static Vector load_int4(const std::byte* at) {
    constexpr int shift = quarter == 0 ? 12 : quarter == 1 ? 4 : quarter == 2 ? 8 : 0;
    const __m256i nibbles = _mm256_slli_epi16(half_line(at), shift);
    return quarter == 0 ? nibbles : _mm256_and_si256(nibbles, _mm256_set1_epi16(static_cast<short>(0xf000)));
  }
  template <int quarter>
  static Vector load_codes(const std::byte* at, const std::int8_t* values) {
    return widened<quarter % 2 != 0>(decoded<quarter / 2 != 0>(at, values));
  }
};

constexpr int split_of(int sums) { return sums <= 2 ? 4 : sums <= 4 ? 2 : 1; }

template <class P, class Heights = std::make_integer_sequence<int, 6>>
struct Streams;
template <class P, int... r>
struct Streams<P, std::integer_sequence<int, r...>> {
  static constexpr Stream pairs[] = {stream<P, 1, 2, 2, true>, stream<P, 2, 2, 1, true>, stream<P, 3, 2, 1, true>};
  static constexpr Stream fetching[] = {stream<P, r + 1, 1, split_of(2 * r + 2), true>...};
  static constexpr Stream singles[] = {stream<P, r + 1, 1, split_of(2 * r + 2), false>...};
};
template <class P>
struct StreamsInt4 {
  static constexpr Stream pairs[] = {stream_int4<P, 1, 2, true>};
  static constexpr Stream fetching[] = {stream_int4<P, 1, 1, true>, stream_int4<P, 2, 1, true>, stream_int4<P, 3, 1, true>};
  static constexpr Stream singles[] = {stream_int4<P, 1, 1, false>, stream_int4<P, 2, 1, false>,
                                       stream_int4<P, 3, 1, false>};
};

template <class P, class Lines>
struct StreamsGguf {
  static constexpr Stream pairs[] = {stream_gguf<P, Lines, 1, 2, true>};
  static constexpr Stream fetching[] = {stream_gguf<P, Lines, 1, 1, true>, stream_gguf<P, Lines, 2, 1, true>,
                                        stream_gguf<P, Lines, 3, 1, true>};
  static constexpr Stream singles[] = {stream_gguf<P, Lines, 1, 1, false>, stream_gguf<P, Lines, 2, 1, false>,
                                       stream_gguf<P, Lines, 3, 1, false>};
};

template <class P>
struct StreamsTiles {
  static constexpr Stream pairs[] = {stream_tiles<P, 1, 2, 1, true>};
  static constexpr Stream fetching[] = {stream_tiles<P, 1, 1, 2, true>, stream_tiles<P, 2, 1, 1, true>,
                                        stream_tiles<P, 3, 1, 1, true>};
  static constexpr Stream singles[] = {stream_tiles<P, 1, 1, 2, false>, stream_tiles<P, 2, 1, 1, false>,
                                       stream_tiles<P, 3, 1, 1, false>};
};

template <class P, int group, bool minima>
struct StreamsSupers {
  static constexpr Stream pairs[] = {stream_supers<P, group, minima, 1, 2>};
  static constexpr Stream fetching[] = {stream_supers<P, group, minima, 1, 1>, stream_supers<P, group, minima, 2, 1>,
                                        stream_supers<P, group, minima, 3, 1>};
  static constexpr auto& singles = fetching;
};

struct Loops {
  template <class P>
  using ByRow = KernelsOf<P, StreamKernel<Streams<P>, 6>, StreamKernel<Streams<P>, 6>, Crossover{1, never}, &Counters::avx2_calls>;
  template <class P>
  using ByGroup =
      KernelsOf<P, StreamKernel<StreamsInt4<P>, 3>, BlockKernel<P, UnpackedPanels>, Crossover{1, 4}, &Counters::avx2_calls>;
  template <class P, class Lines, class Panels>
  using ByBlock =
      KernelsOf<P, StreamKernel<StreamsGguf<P, Lines>, 3>, BlockKernel<P, Panels>, Crossover{1, 4}, &Counters::avx2_calls>;
  template <class P, int group, bool minima>
  using BySuper = KernelsOf<P, StreamKernel<StreamsSupers<P, group, minima>, 3>, BlockKernel<P, SuperPanels<group, minima>>,
                            Crossover{1, 4}, &Counters::avx2_calls>;
  template <class P>
  using ByTile =
      KernelsOf<P, StreamKernel<StreamsTiles<P>, 3>, BlockKernel<P, WidePanels<fp8>>, Crossover{1, 4}, &Counters::avx2_calls>;
};

}  // namespace
}  // namespace ktbench
