// Between row-major matrices and strips.
#pragma once

#include "core/layout.h"

namespace ktbench {

// A row-major bf16 matrix whose rows may lie apart.
struct MatrixView {
  const bf16* data;
  std::size_t stride;  // elements between rows

  MatrixView at(int row, int column) const { return {data + row * stride + column, stride}; }
};

// The same as blocks of a format that has them, as they lie in a GGUF file.
struct BlockView {
  const std::byte* data;
  std::size_t stride;  // bytes between rows
  std::size_t block_bytes;
  int depth = block_depth;  // of a block

  // `column` is the first of a block.
  BlockView at(int row, int column) const {
    return {data + row * stride + column / depth * block_bytes, stride, block_bytes, depth};
  }
};

// A strip covers rows [0, rows) and k [0, depth) of `from`; what lies beyond them is zero. Blocks become strips of
// their own format.
void pack_strip(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
void pack_strip(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// What the strip stands for: a quantised weight is its integers times its scales.
void unpack_strip(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

// Of what is counted in an int and padded. The bytes of a matrix of two such sizes can be counted, too.
inline constexpr int largest_size = 1 << 30;

// Throws std::invalid_argument where a size, so named, is not in 1..largest_size.
void check_size(const char* name, int size);

// The most of k whose products a format can sum: 2^17 x 127 x 128 where a row has one sum of int8 products, in 32 bits.
constexpr int largest_depth(const Format& format) {
  return format.scales == Scales::row || format.scales == Scales::group ? 1 << 17 : largest_size;
}

// Whether rows of a format may have so many numbers: no more than it can sum, and whole blocks where it has them.
constexpr bool holds(const Format& format, int depth) {
  return depth <= largest_depth(format) && !(format.has_whole_blocks() && depth % format.group);
}

// Throws std::invalid_argument where a format does not hold a size along k, so named.
void check_depth(const char* name, int depth, const Format& format);

}  // namespace ktbench
