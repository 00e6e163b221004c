// Formats with block or tile scales as lines of bf16, with scales multiplied in and rounded to nearest even, as
// libraries dequantise them. Used for many rows if bf16 products are faster than scaling integer sums.
#pragma once

#include "core/coded.h"
#include "core/float8.h"

namespace ktbench {
namespace {

// Two lines of bf16 from values, [row][4 k] int8 or e4m3, and a scale for each row; to int8 a minimum is added.
#ifdef __AVX512BF16__

using StripFloats = __m512;

inline StripFloats strip_floats(const float* numbers) { return _mm512_loadu_ps(numbers); }

// Interleaves the rounded numbers of k and of k + 1.
inline void store_pairs(__m512 even, __m512 odd, std::byte* to) {
  alignas(64) static constexpr std::uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
  _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(order), halves));
}

inline void scale_bytes(const std::byte* line, StripFloats scale, StripFloats minimum, std::byte* to) {
  const __m512i bytes = _mm512_load_si512(line);
  const auto number = [&](int shift) {
    const __m512 integers = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(bytes, shift), 24));
    return _mm512_fmadd_ps(integers, scale, minimum);
  };
  store_pairs(number(24), number(16), to);
  store_pairs(number(8), number(0), to + line_bytes);
}

inline void scale_e4m3(const std::byte* line, StripFloats scale, std::byte* to) {
  __m512i pairs[2];
  e4m3_pairs(_mm512_load_si512(line), pairs);
  for (const __m512i pair : pairs) {
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(~0xffff)));
    store_pairs(_mm512_mul_ps(even, scale), _mm512_mul_ps(odd, scale), to);
    to += line_bytes;
  }
}

#else

struct StripFloats {
  float of[strip_rows];
};

inline StripFloats strip_floats(const float* numbers) {
  StripFloats floats;
  __builtin_memcpy(floats.of, numbers, sizeof floats.of);
  return floats;
}

inline void scale_bytes(const std::byte* line, const StripFloats& scale, const StripFloats& minimum, std::byte* to) {
  const auto* bytes = reinterpret_cast<const std::int8_t*>(line);
  auto* halves = reinterpret_cast<bf16*>(to);
  for (int pair = 0; pair < 2; ++pair)
    for (int i = 0; i < 2 * strip_rows; ++i)
      *halves++ = to_bf16(bytes[i / 2 * 4 + 2 * pair + i % 2] * scale.of[i / 2] + minimum.of[i / 2]);
}

#ifdef __AVX512BW__

// To nearest even, in the upper half.
inline __m512i rounded_upper(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

inline void scale_e4m3(const std::byte* line, const StripFloats& scale, std::byte* to) {
  const __m512i upper = _mm512_set1_epi32(~0xffff);
  const __m512 scales = _mm512_loadu_ps(scale.of);
  __m512i pairs[2];
  e4m3_pairs(_mm512_load_si512(line), pairs);
  for (int i = 0; i < 2; ++i) {
    const __m512i even = rounded_upper(_mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pairs[i], 16)), scales));
    const __m512i odd = rounded_upper(_mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(pairs[i], upper)), scales));
    _mm512_store_si512(to + i * line_bytes, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, upper)));
  }
}

#elif defined(__AVX2__)

// To nearest even, in the upper half.
inline __m256i rounded_upper(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

inline void scale_e4m3(const std::byte* line, const StripFloats& scale, std::byte* to) {
  const __m256i upper = _mm256_set1_epi32(~0xffff);
  for (int half = 0; half < 2; ++half) {
    const __m256 scales = _mm256_loadu_ps(scale.of + 8 * half);
    __m256i pairs[2];
    e4m3_pairs(_mm256_load_si256(reinterpret_cast<const __m256i*>(line) + half), pairs);
    for (int i = 0; i < 2; ++i) {
      const __m256i even = rounded_upper(_mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(pairs[i], 16)), scales));
      const __m256i odd = rounded_upper(_mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(pairs[i], upper)), scales));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + i * line_bytes) + half,
                         _mm256_or_si256(_mm256_srli_epi32(even, 16), _mm256_and_si256(odd, upper)));
    }
  }
}

#else

inline void scale_e4m3(const std::byte* line, const StripFloats& scale, std::byte* to) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(line);
  auto* halves = reinterpret_cast<bf16*>(to);
  for (int pair = 0; pair < 2; ++pair)
    for (int i = 0; i < 2 * strip_rows; ++i)
      *halves++ = to_bf16(widen(bf16_of_e4m3(codes[e4m3_byte(i / 2, 2 * pair + i % 2)])) * scale.of[i / 2]);
}

#endif

#endif

// The scales of a block, at its place in a record of scales.
inline StripFloats block_scales(const Format& format, const std::byte* at) {
#ifdef __AVX512BF16__
  if (format.scales == Scales::power) {
    const __m512i powers = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(powers, 23)), _mm512_set1_ps(0.5f));
  }
  const __m256i stored = _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  if (format.scales == Scales::block) return _mm512_cvtph_ps(stored);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(stored), 16));
#else
  float scales[strip_rows];
  for (float& scale : scales) {
    std::uint16_t stored = 0;
    __builtin_memcpy(&stored, at, format.scale_bytes());
    at += format.scale_bytes();
    scale = format.scales == Scales::power        ? widen(bf16_of_power(static_cast<std::uint8_t>(stored)))
            : format.scales == Scales::block_bf16 ? widen(stored)
                                                  : float_of_half(stored);
  }
  return strip_floats(scales);
#endif
}

// `count` blocks of a strip's body from `first` on.
inline void widen_blocks(const Format& format, const std::byte* body, int first, int count, std::byte* to) {
  const bool nibbles = format.line_depth() == 8;
  const std::int8_t* values = nibble_values(format.numbers);
  const int lines = block_depth / format.line_depth();
  for (int b = first; b < first + count; ++b) {
    const int within = b % format.record_groups();
    const std::byte* record = body + format.bytes_before(b - within);
    const StripFloats scale = block_scales(format, record + within * strip_rows * format.scale_bytes());
    const std::byte* line = record + (1 + within * lines) * line_bytes;
    for (int i = 0; i < lines; ++i, line += line_bytes) {
      alignas(line_bytes) std::byte bytes[2 * line_bytes];
      if (nibbles) widen_line(line, values, bytes);
      for (int part = 0; part < (nibbles ? 2 : 1); ++part, to += 2 * line_bytes)
        scale_bytes(nibbles ? bytes + part * line_bytes : line, scale, StripFloats{}, to);
    }
  }
}

// `count` groups of a strip with tile scales.
inline void widen_tiles(const Format& format, const std::byte* strip, int first, int count, std::byte* to) {
  const int lines = format.group / format.line_depth();
  RowScales rows;
  __builtin_memcpy(&rows, strip, sizeof rows);
  for (int g = first; g < first + count; ++g) {
    const int within = g % tiles_per_record;
    const std::byte* record = strip + format.head_bytes() + format.bytes_before(g - within);
    const std::byte* line = record + (1 + within * lines) * line_bytes;
    float group, scales[strip_rows];
    __builtin_memcpy(&group, record + within * sizeof group, sizeof group);
    for (int row = 0; row < strip_rows; ++row) scales[row] = rows.scale[row] * group;
    const StripFloats scale = strip_floats(scales);
    for (int i = 0; i < lines; ++i, line += line_bytes, to += 2 * line_bytes) scale_e4m3(line, scale, to);
  }
}

// `count` records of a strip's body.
template <int group, bool minima>
void widen_records(const Format& format, const std::byte* record, int count, std::byte* to) {
  for (; count > 0; --count, record += format.bytes_before(1)) {
    WideRecord<group> wide;
    widening<group>(format.numbers)(record, wide);
    for (int g = 0; g < wide.groups; ++g) {
      const std::byte* line = wide.lines(g);
      const StripFloats scale = strip_floats(wide.scale(g));
      StripFloats minimum{};
      if constexpr (minima) minimum = strip_floats(wide.minimum[g]);
      for (int i = 0; i < wide.group_lines; ++i, line += line_bytes, to += 2 * line_bytes)
        scale_bytes(line, scale, minimum, to);
    }
  }
}

// k from `first` on, both in whole groups.
template <Format format>
inline void widen_strip(const std::byte* strip, int first, int depth, std::byte* to) {
  if constexpr (format.has_supers())
    return widen_records<coded(format.numbers).group, coded(format.numbers).has_minima()>(
        format, strip + format.head_bytes() + format.bytes_before(first / format.group), depth / format.group, to);
  if (format.scales == Scales::tile) return widen_tiles(format, strip, first / format.group, depth / format.group, to);
  widen_blocks(format, strip + format.head_bytes(), first / format.group, depth / format.group, to);
}

}  // namespace
}  // namespace ktbench
