// Formats of super-blocks, 256 k of a row that share one or two scales in half precision: groups of 16 or 32 k have small
// integer scales, and some have minima as well. weight = d x scale x number - dmin x minimum (ggml-quants.c).
//
// A record holds the super-blocks of 16 rows: a line of d and dmin, lines of a byte for each group and row (scales, then
// minima; of q2_k both in one byte), and planes of codes in the order of int8 lines: a line of the plane of four bits has
// the codes of 8 k, of two bits those of 16 k, of one bit those of 32 k, lower bits first.
#pragma once

#include "core/half.h"
#include "core/unpack.h"

namespace ktbench {
namespace {

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
  constexpr int groups = super_depth / of.group;
  float d[strip_rows], dmin[strip_rows];
  floats_of_halves(record, d);
  if constexpr (of.has_minima()) floats_of_halves(record + line_bytes / 2, dmin);
  const auto* bytes = reinterpret_cast<const std::int8_t*>(record + line_bytes);
  for (int g = 0; g < groups; ++g, bytes += strip_rows) {
    const std::int8_t* minima = bytes + of.scale_lines * line_bytes;
    for (int row = 0; row < strip_rows; ++row) {
      const int scale = of.minima == Minima::beside ? bytes[row] & 15 : bytes[row];
      to.scale(g)[row] = d[row] * static_cast<float>(scale);
    }
    if constexpr (of.has_minima())
      for (int row = 0; row < strip_rows; ++row) {
        const int minimum = of.minima == Minima::beside ? static_cast<std::uint8_t>(bytes[row]) >> 4 : minima[row];
        to.minimum[g][row] = -dmin[row] * static_cast<float>(minimum);
      }
  }
}

// The lines of 32 k, bits of the planes put together.
template <Numbers numbers>
inline void widen_codes(const std::byte* four, const std::byte* two, const std::byte* one, std::byte* to) {
  using Words = std::uint16_t __attribute__((vector_size(line_bytes)));
  using Bytes = std::uint8_t __attribute__((vector_size(line_bytes)));
  constexpr Coded of = coded(numbers);
  constexpr int place_of_two = of.four ? 4 : 0, place_of_one = place_of_two + (of.two ? 2 : 0);
  constexpr std::uint8_t twos = 3 << place_of_two, ones = 1 << place_of_one, raised = of.raised;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i, to += line_bytes) {
    Bytes code = {};
    Words words;
    if constexpr (of.four) {
      __builtin_memcpy(&words, four + i / 2 * line_bytes, line_bytes);
      code = reinterpret_cast<Bytes>(i % 2 ? words >> 4 : words) & 15;
    }
    if constexpr (of.two) {
      __builtin_memcpy(&words, two + i / 4 * line_bytes, line_bytes);
      const int shift = place_of_two - i % 4 * 2;
      code |= reinterpret_cast<Bytes>(shift < 0 ? words >> -shift : words << shift) & twos;
    }
    if constexpr (of.one) {
      __builtin_memcpy(&words, one, line_bytes);
      const int shift = place_of_one - i;
      code |= reinterpret_cast<Bytes>(shift < 0 ? words >> -shift : words << shift) & ones;
    }
    if constexpr (of.raised != 0) code -= raised;
    __builtin_memcpy(to, &code, line_bytes);
  }
}

template <Numbers numbers>
inline void widen_record(const std::byte* record, WideRecordOf<numbers>& to) {
  constexpr Coded of = coded(numbers);
  widen_scales<numbers>(record, to);
  const std::byte* four = record + (1 + of.scale_lines + of.minima_lines()) * line_bytes;
  const std::byte* two = four + (of.four ? super_depth / 8 : 0) * line_bytes;
  const std::byte* one = two + (of.two ? super_depth / 16 : 0) * line_bytes;
  for (int k = 0; k < super_depth; k += 32) {
    std::byte* line = to.turns[k / 64].lines + k % 64 / 4 * line_bytes;
    if constexpr (of.table)
      for (int i = 0; i < 4; ++i) widen_line(four + i * line_bytes, iq4_nl_values, line + 2 * i * line_bytes);
    else
      widen_codes<numbers>(four, two, one, line);
    four += 4 * line_bytes, two += 2 * line_bytes, one += line_bytes;
  }
}

}  // namespace
}  // namespace ktbench
