// bf16 weights to int8 and int4 strips.
#pragma once

#include "core/layout.h"

namespace ktbench {

// A strip covers rows [0, rows) and k [0, depth) of `from`, rows `stride` apart; what lies beyond them is zero. int8:
// symmetric per row, scale = largest magnitude / 127. int4: groups share a scale, a small integer times the row's; of
// those within reach of the group's largest magnitude the one with the least squared error is taken.
using QuantiseStrip = void (*)(const bf16* from, std::size_t stride, int rows, int depth, const Format& format,
                               std::byte* strip);

// The same values whichever runs.
void quantise_strip_portable(const bf16*, std::size_t, int, int, const Format&, std::byte*);
void quantise_strip_avx2(const bf16*, std::size_t, int, int, const Format&, std::byte*);

}  // namespace ktbench
