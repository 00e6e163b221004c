#include "moe/pack.h"

#include "moe/quantise.h"
#include "runtime/isa.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace ktbench {
namespace {

using Pair = std::uint32_t;  // two neighbours along k

constexpr int tile_depth = 32;
constexpr int tile_pairs = tile_depth / 2;
constexpr int tile_elements = strip_rows * tile_depth;

// Four rows x four pairs, transposed. SSE2 is part of every x86-64.
void transpose_4x4(const bf16* from, std::size_t stride, Pair* to) {
  __m128i row[4];
  for (int i = 0; i < 4; ++i) row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
  const __m128i low01 = _mm_unpacklo_epi32(row[0], row[1]), low23 = _mm_unpacklo_epi32(row[2], row[3]);
  const __m128i high01 = _mm_unpackhi_epi32(row[0], row[1]), high23 = _mm_unpackhi_epi32(row[2], row[3]);
  const __m128i column[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                             _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
  for (int i = 0; i < 4; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(to + i * strip_rows), column[i]);
}

void pack_tile(const bf16* from, std::size_t stride, bf16* tile) {
  auto* pairs = reinterpret_cast<Pair*>(tile);
  for (int row = 0; row < strip_rows; row += 4)
    for (int p = 0; p < tile_pairs; p += 4)
      transpose_4x4(from + row * stride + 2 * p, stride, pairs + p * strip_rows + row);
}

void pack_ragged_tile(const bf16* from, std::size_t stride, int rows, int depth, bf16* tile) {
  bf16 whole[tile_elements] = {};
  for (int row = 0; row < rows; ++row) std::copy_n(from + row * stride, depth, whole + row * tile_depth);
  pack_tile(whole, tile_depth, tile);
}

void pack_bf16(const bf16* from, std::size_t stride, int rows, int depth, bf16* strip) {
  const int whole = rows >= strip_rows ? depth / tile_depth * tile_depth : 0;
  for (int k = 0; k < whole; k += tile_depth, strip += tile_elements) pack_tile(from + k, stride, strip);
  for (int k = whole; k < depth; k += tile_depth, strip += tile_elements)
    pack_ragged_tile(from + k, stride, std::clamp(rows, 0, strip_rows), std::min(tile_depth, depth - k), strip);
}

// One weight out of a strip.
struct Reader {
  const std::byte* strip;
  const Format& format;

  float bf16_at(int row, int k) const {
    const bf16 bits = reinterpret_cast<const bf16*>(strip)[k / 2 * 2 * strip_rows + row * 2 + k % 2];
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  float scale_of(int row) const { return reinterpret_cast<const StripScales*>(strip)->scale[row]; }
  int int8_at(int row, int k) const {
    return static_cast<std::int8_t>(strip[format.head_bytes() + k / 4 * line_bytes + row * 4 + k % 4]);
  }
  int int4_at(int row, int k) const {
    const int g = k / format.group, within = k % format.group, group_lines = format.group / 8;
    const std::byte* record = strip + format.head_bytes() + static_cast<std::size_t>(g / groups_per_record) *
                                                                (groups_per_record * group_lines + 1) * line_bytes;
    const int place = g % groups_per_record;
    const int scale = static_cast<std::int8_t>(record[place * strip_rows + row]);
    const auto pair = static_cast<std::uint8_t>(
        record[(1 + place * group_lines + within / 8) * line_bytes + row * 4 + within % 4]);
    return scale * (static_cast<std::int8_t>(within % 8 < 4 ? pair << 4 : pair) >> 4);
  }
  float at(int row, int k) const {
    switch (format.precision) {
      case Precision::int8: return scale_of(row) * static_cast<float>(int8_at(row, k));
      case Precision::int4: return scale_of(row) * static_cast<float>(int4_at(row, k));
      default: return bf16_at(row, k);
    }
  }
};

}  // namespace

void pack_strip(const bf16* from, std::size_t stride, int rows, int depth, const Format& format, std::byte* strip) {
  static const QuantiseStrip quantise = granted("avx2") ? quantise_strip_avx2 : quantise_strip_portable;
  if (format.precision == Precision::bf16) return pack_bf16(from, stride, rows, depth, reinterpret_cast<bf16*>(strip));
  quantise(from, stride, rows, depth, format, strip);
}

void unpack_strip(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride) {
  const Reader reader{strip, format};
  for (int row = 0; row < std::min(rows, strip_rows); ++row)
    for (int k = 0; k < depth; ++k) to[row * stride + k] = reader.at(row, k);
}

}  // namespace ktbench
