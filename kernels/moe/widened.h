// Products in float32 with the values of a strip: the reference for measured outputs, which share none of these loops.
#pragma once

#include "core/layout.h"

namespace ktbench {

// out[t][row] = sum over k of weight[row][k] x[t][k], for each of the strip's 16 rows. `depth` is padded, and so are the
// rows of `x`, with zeros.
using MultiplyStrip = void (*)(const std::byte* strip, const Format& format, int depth, const float* x, int tokens,
                               float (*out)[strip_rows]);

void multiply_strip_portable(const std::byte*, const Format&, int, const float*, int, float (*)[strip_rows]);
void multiply_strip_avx2(const std::byte*, const Format&, int, const float*, int, float (*)[strip_rows]);

}  // namespace ktbench
