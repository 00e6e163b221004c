// Between row-major matrices and strips.
#pragma once

#include "core/layout.h"

namespace ktbench {

// A row-major bf16 matrix with a row stride.
struct MatrixView {
  const bf16* data;
  std::size_t stride;  // elements between rows

  MatrixView at(int row, int column) const { return {data + row * stride + column, stride}; }
};

// The same as blocks of a block format, in the layout of a GGUF file.
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

// A strip covers rows [0, rows) and k [0, depth) of `from`; the rest is zero. Blocks become strips of their own format.
void pack_strip(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
void pack_strip(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// The values of a strip: a quantised weight is its integer times its scales.
void unpack_strip(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

// The largest size that an int can hold when padded. The bytes of a matrix of two such sizes do not overflow either.
inline constexpr int largest_size = 1 << 30;

// Throws std::invalid_argument, with the size's name, if it is not in 1..largest_size.
void check_size(const char* name, int size);

// The largest k whose products a format can sum: 2^17 x 127 x 128 for rows with one 32-bit sum of int8 products.
constexpr int largest_depth(const Format& format) {
  return format.scales == Scales::row || format.scales == Scales::group ? 1 << 17 : largest_size;
}

// Whether rows of a format may have this depth: no more than it can sum, and whole blocks if it has blocks.
constexpr bool holds(const Format& format, int depth) {
  return depth <= largest_depth(format) && !(format.has_whole_blocks() && depth % format.group);
}

// Throws std::invalid_argument, with the size's name, if a format does not support it along k.
void check_depth(const char* name, int depth, const Format& format);

}  // namespace ktbench
