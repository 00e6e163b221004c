// Normalisation and rotation of a decode step's rows, with the rounding of Transformers' modules. The same results on
// every ISA.
#pragma once

#include <cstddef>

#include "core/layout.h"

namespace ktbench {

// Root mean square: y = x / sqrt(mean(x^2) + eps) in float32. Without an offset bf16(weight * bf16(y)) as in
// LlamaRMSNorm; otherwise bf16(y * (offset + weight)), as in GemmaRMSNorm with 1.
struct Norm {
  const bf16* weight;  // null: nothing is normalised
  float eps;
  float offset;
};

// Rotation of a head's first `size` elements, as in rotate_half: cos and sin have `size` elements each, and every
// product and sum is rounded.
struct Rotation {
  const bf16* cos;
  const bf16* sin;
  int size;  // even
};

struct RowKernels {
  void (*norm)(const bf16* x, int count, const Norm& norm, bf16* out);  // out may be x
  void (*rotate)(const Rotation& rotation, bf16* x);
};

extern const RowKernels rows_reference;
extern const RowKernels rows_avx2;
extern const RowKernels rows_avx512;

}  // namespace ktbench
