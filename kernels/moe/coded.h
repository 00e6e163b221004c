// Strips of super-blocks (core/coded.h), made from those of a GGUF file (block_q2_K to block_q6_K and block_iq4_xs of
// ggml-common.h). A block of NVFP4 is a float, 16 bytes of e4m3 and 16 groups of 8 bytes of codes; a block of INT4 with
// zero points is eight groups of a half, a zero and 16 bytes of codes; the first half of a group is in the low nibbles.
#pragma once

#include "moe/pack.h"

namespace ktbench {

// From values, as in `quantised_super`. Lattice formats accept only zeros: throws std::invalid_argument for others.
void pack_supers(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
void pack_supers(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// `to`: rows `stride` floats apart.
void unpack_supers(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

}  // namespace ktbench
