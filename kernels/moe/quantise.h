// bf16 weights to int8 and int4 strips.
#pragma once

#include "core/layout.h"

namespace ktbench {

// A strip covers rows [0, rows) and k [0, depth) of `from`, rows `stride` apart; the rest is zero. int8: symmetric per
// row, scale = largest magnitude / 127. int4: a group's scale is a small integer times the row's; among those near the
// group's largest magnitude, the one with the smallest squared error is used.
using QuantiseStrip = void (*)(const bf16* from, std::size_t stride, int rows, int depth, const Format& format,
                               std::byte* strip);

// Both versions give the same values.
void quantise_strip_portable(const bf16*, std::size_t, int, int, const Format&, std::byte*);
void quantise_strip_avx2(const bf16*, std::size_t, int, int, const Format&, std::byte*);

}  // namespace ktbench
