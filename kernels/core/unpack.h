// int4 strips with group scales as int8 strips: weight = row scale x (group factor x int4), where the product in
// parentheses is exact in int8. Nibbles with block scales as int8 strips with the same scales.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "core/blocked.h"

namespace ktbench {
namespace {

inline const std::int8_t* record_scales(const std::byte* record) { return reinterpret_cast<const std::int8_t*>(record); }

// The values of nibbles. e2m1 in halves: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (OCP Microscaling Formats,
// table 5); iq4_nl as in kvalues_iq4nl of ggml-common.h.
alignas(16) constexpr std::int8_t int4_values[] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
alignas(16) constexpr std::int8_t e2m1_values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
alignas(16) constexpr std::int8_t iq4_nl_values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

inline const std::int8_t* nibble_values(Numbers numbers) {
  return numbers == Numbers::e2m1 ? e2m1_values : numbers == Numbers::iq4_nl ? iq4_nl_values : int4_values;
}

// Half of an e8m0 scale, since e2m1 is in halves: 2^(power - 128), exact; 255 is NaN.
inline bf16 bf16_of_power(std::uint8_t power) {
  return static_cast<bf16>(power == 255 ? 0x7fc0 : power > 1 ? (power - 1) << 7 : 0x20 << power);
}

// Each row's scale of one group, as `unpack_line` reads it.
#if defined(__AVX512BW__)

using GroupScales = __m512i;

inline GroupScales group_scales(const std::int8_t* scale) {
  const __m512i words = _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(scale)));
  const __m512i low = _mm512_and_si512(_mm512_slli_epi32(words, 4), _mm512_set1_epi32(0xffff));
  return _mm512_or_si512(low, _mm512_slli_epi32(words, 20));
}

// Products of 16 x int4 at the top of 16 bits with 16 x the scale: the upper half is the product.
inline __m512i scaled_bytes(__m512i even, __m512i odd, GroupScales scales) {
  const __m512i upper = _mm512_slli_epi16(_mm512_mulhi_epi16(odd, scales), 8);
  return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, _mm512_mulhi_epi16(even, scales), upper);
}

inline void unpack_line(const std::byte* from, GroupScales scales, std::byte* to) {
  const __m512i pairs = _mm512_load_si512(from), top = _mm512_set1_epi16(static_cast<short>(0xf000));
  const __m512i low_odd = _mm512_and_si512(_mm512_slli_epi16(pairs, 4), top);
  const __m512i high_even = _mm512_and_si512(_mm512_slli_epi16(pairs, 8), top);
  _mm512_store_si512(to, scaled_bytes(_mm512_slli_epi16(pairs, 12), low_odd, scales));
  _mm512_store_si512(to + line_bytes, scaled_bytes(high_even, _mm512_and_si512(pairs, top), scales));
}

inline void widen_line(const std::byte* from, const std::int8_t* of, std::byte* to) {
  const __m512i values = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  const __m512i pairs = _mm512_load_si512(from), low = _mm512_set1_epi8(15);
  _mm512_store_si512(to, _mm512_shuffle_epi8(values, _mm512_and_si512(pairs, low)));
  _mm512_store_si512(to + line_bytes,
                     _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low)));
}

#elif defined(__AVX2__)

struct GroupScales {
  __m256i half[2];
};

inline GroupScales group_scales(const std::int8_t* scale) {
  GroupScales scales;
  for (int i = 0; i < 2; ++i) {
    const __m256i words = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scale + 8 * i)));
    const __m256i low = _mm256_and_si256(_mm256_slli_epi32(words, 4), _mm256_set1_epi32(0xffff));
    scales.half[i] = _mm256_or_si256(low, _mm256_slli_epi32(words, 20));
  }
  return scales;
}

// Products of 16 x int4 at the top of 16 bits with 16 x the scale: the upper half is the product.
inline __m256i scaled_bytes(__m256i even, __m256i odd, __m256i scales) {
  const __m256i upper = _mm256_slli_epi16(_mm256_mulhi_epi16(odd, scales), 8);
  return _mm256_blendv_epi8(_mm256_mulhi_epi16(even, scales), upper, _mm256_set1_epi16(static_cast<short>(0xff00)));
}

inline void unpack_line(const std::byte* from, const GroupScales& scales, std::byte* to) {
  const __m256i top = _mm256_set1_epi16(static_cast<short>(0xf000));
  for (int i = 0; i < 2; ++i) {
    const __m256i pairs = _mm256_load_si256(reinterpret_cast<const __m256i*>(from) + i);
    const __m256i low_odd = _mm256_and_si256(_mm256_slli_epi16(pairs, 4), top);
    const __m256i high_even = _mm256_and_si256(_mm256_slli_epi16(pairs, 8), top);
    auto* low = reinterpret_cast<__m256i*>(to) + i;
    _mm256_store_si256(low, scaled_bytes(_mm256_slli_epi16(pairs, 12), low_odd, scales.half[i]));
    _mm256_store_si256(low + 2, scaled_bytes(high_even, _mm256_and_si256(pairs, top), scales.half[i]));
  }
}

inline void widen_line(const std::byte* from, const std::int8_t* of, std::byte* to) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  const __m256i low = _mm256_set1_epi8(15);
  for (int i = 0; i < 2; ++i) {
    const __m256i pairs = _mm256_load_si256(reinterpret_cast<const __m256i*>(from) + i);
    auto* first = reinterpret_cast<__m256i*>(to) + i;
    _mm256_store_si256(first, _mm256_shuffle_epi8(values, _mm256_and_si256(pairs, low)));
    _mm256_store_si256(first + 2,
                       _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low)));
  }
}

#else

using GroupScales = const std::int8_t*;

inline GroupScales group_scales(const std::int8_t* scale) { return scale; }

// One line of int4 becomes two of int8.
inline void unpack_line(const std::byte* from, GroupScales scales, std::byte* to) {
  const auto* pairs = reinterpret_cast<const std::uint8_t*>(from);
  auto* low = reinterpret_cast<std::int8_t*>(to);
  auto* high = low + line_bytes;
  for (int i = 0; i < line_bytes; ++i) {
    const std::int8_t s = scales[i / 4];
    low[i] = static_cast<std::int8_t>((static_cast<std::int8_t>(pairs[i] << 4) >> 4) * s);
    high[i] = static_cast<std::int8_t>((static_cast<std::int8_t>(pairs[i]) >> 4) * s);
  }
}

inline void widen_line(const std::byte* from, const std::int8_t* of, std::byte* to) {
  const auto* pairs = reinterpret_cast<const std::uint8_t*>(from);
  auto* low = reinterpret_cast<std::int8_t*>(to);
  for (int i = 0; i < line_bytes; ++i) {
    low[i] = of[pairs[i] & 15];
    low[i + line_bytes] = of[pairs[i] >> 4];
  }
}

#endif

// `blocks` blocks of nibbles, an even number, as records of two blocks of int8.
inline void unpack_blocks(const Format& format, const std::byte* record, int blocks, std::byte* to) {
  const std::int8_t* values = nibble_values(format.numbers);
  const std::byte* scales = record;
  for (int b = 0; b < blocks; b += blocks_per_record) {
    if (b % format.record_groups() == 0) scales = record, record += line_bytes;
    if (format.scales == Scales::power) {
      bf16 powers[line_bytes / sizeof(bf16)];
      for (bf16& power : powers) power = bf16_of_power(static_cast<std::uint8_t>(*scales++));
      __builtin_memcpy(to, powers, line_bytes);
    } else {
      __builtin_memcpy(to, scales, line_bytes);
    }
    to += line_bytes;
    for (int i = 0; i < tile_lines / 2; ++i, record += line_bytes, to += 2 * line_bytes) widen_line(record, values, to);
  }
}

// The lines of groups [0, groups) of a strip whose first record begins at `record`, as int8 from `to` on.
inline void unpack_groups(const std::byte* record, int groups, int group_lines, std::byte* to) {
  for (; groups > 0; groups -= groups_per_record) {
    const std::int8_t* scales = record_scales(record);
    record += line_bytes;
    for (int g = smaller(groups, groups_per_record); g > 0; --g, scales += strip_rows) {
      const GroupScales here = group_scales(scales);
      for (int i = 0; i < group_lines; ++i, record += line_bytes, to += 2 * line_bytes) unpack_line(record, here, to);
    }
  }
}

// The record that begins with group `g` of a strip.
inline const std::byte* record_at(const Strips& w, int strip, int g) {
  return w.data + strip * w.bytes + sizeof(StripScales) + w.format.bytes_before(g);
}

// `packed` as strips of int8 in scratch memory.
inline Strips unpacked(const Strips& packed, std::byte* scratch) {
  const Format& from = packed.format;
  const Format format = from.widened();
  const Strips w{scratch, packed.count, packed.depth, format.strip_bytes(packed.depth), format, {}, nullptr};
  const int groups = from.groups(packed.depth), head = from.head_bytes();
  for (int s = 0; s < packed.count; ++s) {
    const std::byte* strip = packed.data + s * packed.bytes;
    std::byte* to = scratch + s * w.bytes;
    __builtin_memcpy(to, strip, head);
    from.has_blocks() ? unpack_blocks(from, strip + head, groups, to + head)
                   : unpack_groups(strip + head, groups, from.group / 8, to + head);
  }
  return w;
}

}  // namespace
}  // namespace ktbench
