#include "moe/pack.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace ktbench {
namespace {

using Pair = std::uint32_t;  // two neighbours along k

constexpr int tile_pairs = tile_depth / 2;

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

}  // namespace

void pack_strip(const bf16* from, std::size_t stride, int rows, int depth, bf16* strip) {
  const int whole = rows >= strip_rows ? depth / tile_depth * tile_depth : 0;
  for (int k = 0; k < whole; k += tile_depth, strip += tile_elements) pack_tile(from + k, stride, strip);
  for (int k = whole; k < depth; k += tile_depth, strip += tile_elements)
    pack_ragged_tile(from + k, stride, std::clamp(rows, 0, strip_rows), std::min(tile_depth, depth - k), strip);
}

void unpack_strip(const bf16* strip, int rows, int depth, bf16* to, std::size_t stride) {
  for (int row = 0; row < std::min(rows, strip_rows); ++row)
    for (int k = 0; k < depth; ++k) {
      const bf16* tile = strip + k / tile_depth * tile_elements;
      const int within = k % tile_depth;
      to[row * stride + k] = tile[within / 2 * 2 * strip_rows + row * 2 + within % 2];
    }
}

}  // namespace ktbench
