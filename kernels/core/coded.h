// Formats of super-blocks, 256 k of a row whose groups of 16 or 32 k have scales, and some minima as well:
//   weight = d x scale x number - dmin x minimum   GGUF's k-quants and IQ formats, d and dmin in half precision
//   weight = d x scale x number                    NVFP4, d in float32, scales in e4m3
//   weight = scale x (number - zero)               INT4 with zero points, scales in half precision
//
// A record holds the super-blocks of 16 rows: a line of d and dmin, lines of the scales of each group and row, then of
// their minima (of q2_k both in one byte), and planes of codes in the order of int8 lines: a line of the plane of four
// bits has the codes of 8 k, of two bits those of 16 k, of one bit those of 32 k, lower bits first.
#pragma once

#include "core/float8.h"
#include "core/half.h"
#include "core/unpack.h"

namespace ktbench {
namespace {

// Magnitudes of lattices, then their opposites where bit 2 or 3 of the code is set: iq3_s, iq3xxs, iq2xs and iq1s of
// ggml-common.h, the last with the eighth that each number of a group is moved by.
alignas(16) constexpr std::int8_t iq3_s_values[] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
alignas(16) constexpr std::int8_t iq3_xxs_values[] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
alignas(16) constexpr std::int8_t iq2_values[16] = {8, 25, 43, 0, -8, -25, -43};
alignas(16) constexpr std::int8_t iq1_values[16] = {-7, 1, 9, 0, -9, -1, 7};

constexpr const std::int8_t* coded_values(Numbers numbers) {
  switch (numbers) {
    case Numbers::iq3_s: return iq3_s_values;
    case Numbers::iq3_xxs: return iq3_xxs_values;
    case Numbers::iq2: return iq2_values;
    case Numbers::iq1: return iq1_values;
    case Numbers::nvfp4: return e2m1_values;
    default: return iq4_nl_values;
  }
}

// A record as int8 lines: every 64 k behind the d x scale of their groups, and -dmin x minimum of every group and row.
template <int group>
struct alignas(line_bytes) WideRecord {
  static constexpr int groups = super_depth / group, group_lines = group / 4;
  struct Turn {
    float scale[tile_lines / group_lines][strip_rows];
    std::byte lines[tile_bytes];
  };
  Turn turns[super_depth / 4 / tile_lines];
  float minimum[groups][strip_rows];

  float* scale(int g) { return turns[g * group_lines / tile_lines].scale[g % (tile_lines / group_lines)]; }
  const std::byte* lines(int g) const {
    return turns[g * group_lines / tile_lines].lines + g * group_lines % tile_lines * line_bytes;
  }
};
template <Numbers numbers>
using WideRecordOf = WideRecord<coded(numbers).group>;

inline void floats_of_halves(const std::byte* halves, float* to) {
#ifdef __F16C__
  for (int i = 0; i < strip_rows; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves) + i / 8)));
#else
  for (int i = 0; i < strip_rows; ++i) {
    half of;
    __builtin_memcpy(&of, halves + i * sizeof of, sizeof of);
    to[i] = float_of_half(of);
  }
#endif
}

template <Numbers numbers>
inline void widen_scales(const std::byte* record, WideRecordOf<numbers>& to) {
  constexpr Coded of = coded(numbers);
  float d[strip_rows], dmin[strip_rows];
  if constexpr (of.scale == GroupScale::e4m3) __builtin_memcpy(d, record, sizeof d);
  if constexpr (of.scale == GroupScale::integer) floats_of_halves(record, d);
  if constexpr (of.scale != GroupScale::half)
    for (float& one : d) one *= of.unit;
  if constexpr (of.has_minima() && of.scale == GroupScale::integer) floats_of_halves(record + line_bytes / 2, dmin);
  const std::byte* at = record + of.head_lines() * line_bytes;
  const auto* minima = reinterpret_cast<const std::uint8_t*>(at) + of.scale_lines() * line_bytes;
  for (int g = 0; g < to.groups; ++g, at += of.scale_lines() * line_bytes / to.groups, minima += strip_rows) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(at);
    float* scale = to.scale(g);
    if constexpr (of.scale == GroupScale::half) {
      floats_of_halves(at, scale);
    } else {
      for (int row = 0; row < strip_rows; ++row) {
        if constexpr (of.scale == GroupScale::e4m3)
          scale[row] = d[row] * float_of(std::uint32_t{bf16_of_e4m3(bytes[row])} << 16);
        else
          scale[row] = d[row] * static_cast<float>(of.minima == Minima::beside ? bytes[row] & 15
                                                                               : static_cast<std::int8_t>(bytes[row]));
      }
    }
    if constexpr (of.minima == Minima::zeros)
      for (int row = 0; row < strip_rows; ++row) to.minimum[g][row] = -scale[row] * static_cast<float>(minima[row]);
    else if constexpr (of.has_minima())
      for (int row = 0; row < strip_rows; ++row)
        to.minimum[g][row] = -dmin[row] * static_cast<float>(of.minima == Minima::beside ? bytes[row] >> 4 : minima[row]);
  }
}

using LineWords = std::uint16_t __attribute__((vector_size(line_bytes)));
using LineBytes = std::uint8_t __attribute__((vector_size(line_bytes)));

// What codes below 16 stand for.
inline void look_up(const std::int8_t* values, LineBytes& codes) {
#if defined(__AVX512BW__)
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
  codes = (LineBytes)_mm512_shuffle_epi8(table, (__m512i)codes);
#elif defined(__AVX2__)
  const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
  __m256i halves[2];
  __builtin_memcpy(halves, &codes, sizeof codes);
  for (__m256i& half : halves) half = _mm256_shuffle_epi8(table, half);
  __builtin_memcpy(&codes, halves, sizeof codes);
#else
  for (int i = 0; i < line_bytes; ++i) codes[i] = static_cast<std::uint8_t>(values[codes[i]]);
#endif
}

// The lines of 32 k, bits of the planes put together.
template <Numbers numbers>
inline void widen_codes(const std::byte* four, const std::byte* two, const std::byte* one, std::byte* to) {
  constexpr Coded of = coded(numbers);
  constexpr int place_of_two = of.four ? 4 : 0, place_of_one = place_of_two + (of.two ? 2 : 0);
  constexpr std::uint8_t twos = 3 << place_of_two, ones = 1 << place_of_one, raised = of.raised;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i, to += line_bytes) {
    LineBytes code = {};
    LineWords words;
    if constexpr (of.four) {
      __builtin_memcpy(&words, four + i / 2 * line_bytes, line_bytes);
      code = reinterpret_cast<LineBytes>(i % 2 ? words >> 4 : words) & 15;
    }
    if constexpr (of.two) {
      __builtin_memcpy(&words, two + i / 4 * line_bytes, line_bytes);
      const int shift = place_of_two - i % 4 * 2;
      code |= reinterpret_cast<LineBytes>(shift < 0 ? words >> -shift : words << shift) & twos;
    }
    if constexpr (of.one) {
      __builtin_memcpy(&words, one, line_bytes);
      const int shift = place_of_one - i;
      code |= reinterpret_cast<LineBytes>(shift < 0 ? words >> -shift : words << shift) & ones;
    }
    if constexpr (of.raised != 0) code -= raised;
    if constexpr (of.table) look_up(coded_values(numbers), code);
    __builtin_memcpy(to, &code, line_bytes);
  }
}

template <Numbers numbers>
void widen_record(const std::byte* record, WideRecordOf<numbers>& to) {
  constexpr Coded of = coded(numbers);
  widen_scales<numbers>(record, to);
  const std::byte* four = record + of.planes_at();
  const std::byte* two = four + (of.four ? super_depth / 8 : 0) * line_bytes;
  const std::byte* one = two + (of.two ? super_depth / 16 : 0) * line_bytes;
  for (int k = 0; k < super_depth; k += 32) {
    widen_codes<numbers>(four, two, one, to.turns[k / 64].lines + k % 64 / 4 * line_bytes);
    four += 4 * line_bytes, two += 2 * line_bytes, one += line_bytes;
  }
}

// How records of a format become int8 lines: of all numbers in groups of this size, since loops over these are the same.
template <int group>
using Widen = void (*)(const std::byte*, WideRecord<group>&);

template <int group, Numbers... all>
inline Widen<group> widening_among(Numbers numbers) {
  Widen<group> found = nullptr;
  const auto match = [&]<Numbers one>() {
    if constexpr (coded(one).group == group)
      if (numbers == one) found = widen_record<one>;
  };
  (match.template operator()<all>(), ...);
  return found;
}

template <int group>
inline Widen<group> widening(Numbers numbers) {
  using enum Numbers;
  return widening_among<group, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs, iq3_s, iq3_xxs, iq2, iq1, nvfp4, int4_zp>(numbers);
}

}  // namespace
}  // namespace ktbench
