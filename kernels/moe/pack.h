// Between row-major matrices and strips.
#pragma once

#include "core/layout.h"

namespace ktbench {

// A strip covers rows [0, rows) and k [0, depth) of `from`, rows `stride` elements apart; what lies beyond them is zero.
void pack_strip(const bf16* from, std::size_t stride, int rows, int depth, const Format& format, std::byte* strip);

// What the strip stands for: a quantised weight is its integers times its scales.
void unpack_strip(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

}  // namespace ktbench
