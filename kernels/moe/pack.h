// Between row-major matrices and strips of tiles.
#pragma once

#include "core/layout.h"

namespace ktbench {

// A strip covers rows [0, rows) and k [0, depth) of `from`; what lies beyond them is zero.
void pack_strip(const bf16* from, std::size_t stride, int rows, int depth, bf16* strip);
void unpack_strip(const bf16* strip, int rows, int depth, bf16* to, std::size_t stride);

}  // namespace ktbench
