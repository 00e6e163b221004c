// Super-block formats: 256 k of a row, whose groups of 16 or 32 k have scales and sometimes minima:
//   weight = d x scale x number - dmin x minimum   GGUF's k-quants and IQ formats, d and dmin in half precision
//   weight = d x scale x number                    NVFP4, d in float32, scales in e4m3
//   weight = scale x (number - zero)               INT4 with zero points, scales in half precision
//
// A record holds the super-blocks of 16 rows: a line of d and dmin, lines of the scales of each group and row, then of
// their minima (of q2_k both in one byte), and planes of codes in the order of int8 lines: a line of the plane of four
// bits has the codes of 8 k, of two bits those of 16 k, of one bit those of 32 k, lower bits first.
#pragma once

#include <utility>

#include "core/float8.h"
#include "core/half.h"
#include "core/unpack.h"

namespace ktbench {
namespace {

// Magnitudes of lattices, then their negatives for codes with bit 2 or 3 set: iq3_s, iq3xxs, iq2xs and iq1s of
// ggml-common.h, the last with the eighth by which each value of a group is shifted.
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

// Values of as many rows as a register holds. gcc 12 compiles loops over rows, and __builtin_convertvector of bytes, to
// one conversion at a time.
#ifdef __AVX512F__
constexpr int rows_at_once = 16;
#else
constexpr int rows_at_once = 8;
#endif
using RowFloats = float __attribute__((vector_size(rows_at_once * sizeof(float))));
using RowInts = std::int32_t __attribute__((vector_size(rows_at_once * sizeof(std::int32_t))));

inline RowInts row_ints(const std::byte* bytes) {
#if defined(__AVX512F__)
  return (RowInts)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
  return (RowInts)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
  RowInts ints;
  for (int row = 0; row < rows_at_once; ++row) ints[row] = std::to_integer<int>(bytes[row]);
  return ints;
#endif
}
inline RowFloats row_floats(RowInts numbers) { return __builtin_convertvector(numbers, RowFloats); }
inline RowFloats row_floats(const std::byte* at) {
  RowFloats floats;
  __builtin_memcpy(&floats, at, sizeof floats);
  return floats;
}
inline void put(RowFloats floats, float* to) { __builtin_memcpy(to, &floats, sizeof floats); }

inline RowFloats floats_of_halves(const std::byte* halves) {
#if defined(__AVX512F__)
  return (RowFloats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#elif defined(__F16C__)
  return (RowFloats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
#else
  RowFloats floats;
  for (int row = 0; row < rows_at_once; ++row) {
    half of;
    __builtin_memcpy(&of, halves + row * sizeof of, sizeof of);
    floats[row] = float_of_half(of);
  }
  return floats;
#endif
}

// For numbers only: 0x7f and 0xff are none.
inline RowFloats floats_of_e4m3(RowInts codes) {
  const RowInts magnitude = codes & 0x7f;
  const RowFloats normal = reinterpret_cast<RowFloats>((magnitude << 20) + (120 << 23));
  const RowFloats small = row_floats(magnitude) * 0x1p-9f;
  const RowInts bits = reinterpret_cast<RowInts>(magnitude < 8 ? small : normal);
  return reinterpret_cast<RowFloats>(bits | (codes & 0x80) << 24);
}

// Of rows from `row` on.
template <Numbers numbers>
inline void widen_scales(const std::byte* __restrict record, int row, WideRecordOf<numbers>& __restrict to) {
  constexpr Coded of = coded(numbers);
  constexpr int scale_bytes = of.scale_lines() / of.byte_lines();
  RowFloats d{}, dmin{};
  if constexpr (of.scale == GroupScale::e4m3) d = row_floats(record + row * sizeof(float)) * of.unit;
  if constexpr (of.scale == GroupScale::integer) d = floats_of_halves(record + row * sizeof(half)) * of.unit;
  if constexpr (of.has_minima() && of.scale == GroupScale::integer)
    dmin = floats_of_halves(record + line_bytes / 2 + row * sizeof(half));
  const std::byte* scales = record + of.head_lines() * line_bytes;
  const std::byte* minima = scales + of.scale_lines() * line_bytes;
  for (int g = 0; g < to.groups; ++g) {
    const std::byte* at = scales + (g * strip_rows + row) * scale_bytes;
    RowFloats scale;
    if constexpr (of.scale == GroupScale::half) scale = floats_of_halves(at);
    else if constexpr (of.scale == GroupScale::e4m3) scale = d * floats_of_e4m3(row_ints(at));
    else if constexpr (of.minima == Minima::beside) scale = d * row_floats(row_ints(at) & 15);
    else scale = d * row_floats(row_ints(at) << 24 >> 24);
    put(scale, to.scale(g) + row);
    if constexpr (!of.has_minima()) continue;
    const RowInts minimum = of.minima == Minima::beside ? row_ints(at) >> 4 : row_ints(minima + g * strip_rows + row);
    put((of.minima == Minima::zeros ? -scale : -dmin) * row_floats(minimum), to.minimum[g] + row);
  }
}

// Codes of as much of a line as a register holds.
#ifdef __AVX512BW__
constexpr int codes_at_once = line_bytes;
#else
constexpr int codes_at_once = line_bytes / 2;
#endif
using CodeWords = std::uint16_t __attribute__((vector_size(codes_at_once)));
using CodeBytes = std::uint8_t __attribute__((vector_size(codes_at_once)));

// The values of codes below 16.
inline CodeBytes looked_up(const std::int8_t* values, CodeBytes codes) {
#if defined(__AVX512BW__)
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
  return (CodeBytes)_mm512_shuffle_epi8(table, (__m512i)codes);
#elif defined(__AVX2__)
  const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
  return (CodeBytes)_mm256_shuffle_epi8(table, (__m256i)codes);
#else
  for (int i = 0; i < codes_at_once; ++i) codes[i] = static_cast<std::uint8_t>(values[codes[i]]);
  return codes;
#endif
}

inline CodeWords code_words(const std::byte* at) {
  CodeWords words;
  __builtin_memcpy(&words, at, sizeof words);
  return words;
}

// Bits shifted up by `by`, or down if it is negative; those that cross bytes are masked out.
template <int by>
inline CodeBytes moved(CodeWords words, std::uint8_t mask) {
  return reinterpret_cast<CodeBytes>(by < 0 ? words >> (by < 0 ? -by : 0) : words << (by < 0 ? 0 : by)) & mask;
}

// The lines of 32 k, combined from the bits of the planes.
template <Numbers numbers>
inline void widen_codes(const std::byte* four, const std::byte* two, const std::byte* one, std::byte* __restrict to) {
  constexpr Coded of = coded(numbers);
  constexpr int place_of_two = of.four ? 4 : 0, place_of_one = place_of_two + (of.two ? 2 : 0);
  const auto widen_line = [&]<int i>() __attribute__((always_inline)) {
    for (int at = 0; at < line_bytes; at += codes_at_once) {
      CodeBytes code{};
      if constexpr (of.four) code = moved<i % 2 * -4>(code_words(four + i / 2 * line_bytes + at), 15);
      if constexpr (of.two)
        code |= moved<place_of_two - i % 4 * 2>(code_words(two + i / 4 * line_bytes + at), 3 << place_of_two);
      if constexpr (of.one) code |= moved<place_of_one - i>(code_words(one + at), 1 << place_of_one);
      if constexpr (of.raised != 0) code -= static_cast<std::uint8_t>(of.raised);
      if constexpr (of.table) code = looked_up(coded_values(numbers), code);
      __builtin_memcpy(to + i * line_bytes + at, &code, sizeof code);
    }
  };
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (widen_line.template operator()<i>(), ...);
  }(std::make_integer_sequence<int, 8>{});
}

template <Numbers numbers>
void widen_record(const std::byte* record, WideRecordOf<numbers>& to) {
  constexpr Coded of = coded(numbers);
  for (int row = 0; row < strip_rows; row += rows_at_once) widen_scales<numbers>(record, row, to);
  const std::byte* four = record + of.planes_at();
  const std::byte* two = four + (of.four ? super_depth / 8 : 0) * line_bytes;
  const std::byte* one = two + (of.two ? super_depth / 16 : 0) * line_bytes;
  for (int k = 0; k < super_depth; k += 32) {
    widen_codes<numbers>(four, two, one, to.turns[k / 64].lines + k % 64 / 4 * line_bytes);
    four += 4 * line_bytes, two += 2 * line_bytes, one += line_bytes;
  }
}

// How records become int8 lines, for all formats with groups of this size, since their loops are the same.
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
