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

// Throws std::invalid_argument where a size along k, so named, is not whole blocks of a format that has them.
void check_depth(const char* name, int depth, const Format& format);

}  // namespace ktbench
