#include "moe/pack.h"

#include "core/format_names.h"
#include "moe/coded.h"
#include "moe/float8.h"
#include "moe/gguf.h"
#include "moe/quantise.h"
#include "runtime/isa.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace ktbench {
namespace {

using Pair = std::uint32_t;  // two neighbours along k

constexpr int tile_depth = 32;
constexpr int tile_pairs = tile_depth / 2;
constexpr int tile_elements = strip_rows * tile_depth;

// Four rows x four pairs, transposed.
#ifdef __SSE2__
void transpose_4x4(const bf16* from, std::size_t stride, Pair* to) {
  __m128i row[4];
  for (int i = 0; i < 4; ++i) row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
  const __m128i low01 = _mm_unpacklo_epi32(row[0], row[1]), low23 = _mm_unpacklo_epi32(row[2], row[3]);
  const __m128i high01 = _mm_unpackhi_epi32(row[0], row[1]), high23 = _mm_unpackhi_epi32(row[2], row[3]);
  const __m128i column[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                             _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
  for (int i = 0; i < 4; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(to + i * strip_rows), column[i]);
}
#else
void transpose_4x4(const bf16* from, std::size_t stride, Pair* to) {
  for (int row = 0; row < 4; ++row)
    for (int p = 0; p < 4; ++p) std::memcpy(to + p * strip_rows + row, from + row * stride + 2 * p, sizeof(Pair));
}
#endif

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

float as_float(bf16 bits) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }

// Calls take(row, k, value) for every value of a strip, line by line; int4 includes its group's scale.
template <class Take>
void for_bf16(const std::byte* strip, int depth, Take take) {
  const auto* line = reinterpret_cast<const bf16*>(strip);
  for (int k = 0; k < depth; k += 2, line += 2 * strip_rows)
    for (int row = 0; row < strip_rows; ++row)
      for (int i = 0; i < 2; ++i) take(row, k + i, as_float(line[2 * row + i]));
}

template <class Take>
void for_int8(const std::byte* strip, int depth, Take take) {
  const auto* line = reinterpret_cast<const std::int8_t*>(strip + sizeof(StripScales));
  for (int k = 0; k < depth; k += 4, line += line_bytes)
    for (int row = 0; row < strip_rows; ++row)
      for (int i = 0; i < 4; ++i) take(row, k + i, static_cast<float>(line[4 * row + i]));
}

template <class Take>
void for_int4(const std::byte* strip, int depth, int group, Take take) {
  const auto* at = reinterpret_cast<const std::int8_t*>(strip + sizeof(StripScales));
  for (int first = 0; first < depth; first += groups_per_record * group) {
    const std::int8_t* scales = at;
    at += line_bytes;
    for (int k = first; k < std::min(depth, first + groups_per_record * group); k += 8, at += line_bytes)
      for (int row = 0; row < strip_rows; ++row)
        for (int i = 0; i < 4; ++i) {
          const int scale = scales[(k - first) / group * strip_rows + row], pair = at[4 * row + i];
          take(row, k + i, static_cast<float>(scale * (static_cast<std::int8_t>(pair << 4) >> 4)));
          take(row, k + i + 4, static_cast<float>(scale * (pair >> 4)));
        }
  }
}

}  // namespace

void pack_strip(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip) {
#ifdef __x86_64__
  static const QuantiseStrip quantise = granted("avx2") ? quantise_strip_avx2 : quantise_strip_portable;
#else
  constexpr QuantiseStrip quantise = quantise_strip_portable;
#endif
  if (format.scales == Scales::tile) return pack_float8(from, rows, depth, format, strip);
  if (format.has_supers()) return pack_supers(from, rows, depth, format, strip);
  if (format.has_blocks()) return pack_gguf(from, rows, depth, format, strip);
  if (format.scales == Scales::none)
    return pack_bf16(from.data, from.stride, rows, depth, reinterpret_cast<bf16*>(strip));
  quantise(from.data, from.stride, rows, depth, format, strip);
}

void pack_strip(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip) {
  if (format.scales == Scales::tile) return pack_float8(from, rows, depth, format, strip);
  if (format.has_supers()) return pack_supers(from, rows, depth, format, strip);
  pack_gguf(from, rows, depth, format, strip);
}

namespace {

void unpack_rows(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride) {
  const int padded = format.padded_depth(depth);
  const auto* scale = reinterpret_cast<const StripScales*>(strip)->scale;
  const auto take = [&](int row, int k, float value) {
    if (row < rows && k < depth) to[row * stride + k] = value;
  };
  const auto take_scaled = [&](int row, int k, float value) { take(row, k, value * scale[row]); };
  switch (format.scales) {
    case Scales::none: return for_bf16(strip, padded, take);
    case Scales::row: return for_int8(strip, padded, take_scaled);
    case Scales::group: return for_int4(strip, padded, format.group, take_scaled);
    case Scales::block:
    case Scales::block_bf16:
    case Scales::power: return unpack_gguf(strip, rows, depth, format, to, stride);
    case Scales::tile: return unpack_float8(strip, rows, depth, format, to, stride);
    case Scales::super: return unpack_supers(strip, rows, depth, format, to, stride);
  }
}

}  // namespace

// Values come line by line, a few of each row: rows a power of two apart would compete for a few cache sets.
void unpack_strip(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride) {
  constexpr std::size_t line = line_bytes / sizeof(float);
  const std::size_t apart = (depth + line - 1) / line * line + line;
  thread_local std::vector<float> unpacked;
  unpacked.resize(std::max(unpacked.size(), strip_rows * apart));
  unpack_rows(strip, rows, depth, format, unpacked.data(), apart);
  for (int row = 0; row < std::min(rows, strip_rows); ++row)
    std::copy_n(unpacked.data() + row * apart, depth, to + row * stride);
}

void check_size(const char* name, int size) {
  if (size >= 1 && size <= largest_size) return;
  const std::string bound = size < 1 ? "at least 1" : "at most " + std::to_string(largest_size);
  throw std::invalid_argument(std::string(name) + "=" + std::to_string(size) + " must be " + bound);
}

void check_depth(const char* name, int depth, const Format& format) {
  if (depth > largest_depth(format))
    throw std::invalid_argument(std::string(name) + "=" + std::to_string(depth) + " must be at most " +
                                std::to_string(largest_depth(format)) + ": sums of " + traits_of(format).name +
                                " have 32 bits");
  if (format.has_whole_blocks() && depth % format.group)
    throw std::invalid_argument(std::string(name) + "=" + std::to_string(depth) + " must be a multiple of " +
                                std::to_string(format.group) + ", a block of " + traits_of(format).name);
}

}  // namespace ktbench
