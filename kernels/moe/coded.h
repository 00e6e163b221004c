// Strips of super-blocks (core/coded.h), made of those of a GGUF file (block_q2_K to block_q6_K and block_iq4_xs of
// ggml-common.h). Of NVFP4 a block is a float, 16 bytes of e4m3 and 16 groups of 8 bytes of codes, of INT4 with zero points
// eight groups of a half, a zero and 16 bytes of codes; the first half of a group lies in the low nibbles.
#pragma once

#include "moe/pack.h"

namespace ktbench {

// Of numbers as `quantised_super` makes them. Formats of lattices hold zeros only: throws std::invalid_argument for others.
void pack_supers(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
void pack_supers(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// `to`: rows `stride` floats apart.
void unpack_supers(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

}  // namespace ktbench
