// Strips of q8_0 and q4_0, and the blocks that they hold the numbers of.
#pragma once

#include "moe/pack.h"

namespace ktbench {

// Of a row, in a file: a half scale, then 32 int8, or 16 pairs of nibbles raised by 8: k in the low one, k + 16 in the
// high one.
constexpr int block_bytes(Precision precision) {
  return static_cast<int>(sizeof(half)) + (precision == Precision::q8_0 ? gguf_depth : gguf_depth / 2);
}

// Quantises as ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref do (ggml-quants.c), bit for bit. A block with a
// NaN or an infinity gets a scale of NaN: nothing that is computed from it is finite.
void pack_gguf(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
void pack_gguf(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// `to`: rows `stride` floats apart.
void unpack_gguf(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

}  // namespace ktbench
