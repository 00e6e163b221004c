// Strips of formats with block scales, and their blocks. In a file a block is a half scale, then 32 int8 (q8_0), or 16
// pairs of nibbles raised by 8 (q4_0) or of codes (iq4_nl): k in the low one, k + 16 in the high one; for mxfp4 a power
// of two (e8m0), then pairs of codes; for int4_bf16 as for q4_0, with a bf16 scale.
#pragma once

#include "moe/pack.h"

namespace ktbench {

// Quantises like ggml's quantize_row_FORMAT_ref (ggml-quants.c), bit for bit, and int4_bf16 like compressed-tensors. A
// block with a NaN or an infinity gets a NaN scale: nothing computed from it is finite.
void pack_gguf(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
void pack_gguf(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// `to`: rows `stride` floats apart.
void unpack_gguf(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

}  // namespace ktbench
