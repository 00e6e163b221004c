// The specification: one product after the other, in storage order, float32 sums.
#include <cmath>

#include "core/epilogue.h"

namespace ktbench {
namespace {

float widen(bf16 x) { return float_of(static_cast<std::uint32_t>(x) << 16); }

float dot(const bf16* x, const Strips& weights, int strip, int row) {
  const bf16* tile = weights.data + static_cast<std::size_t>(strip) * weights.tiles * tile_elements;
  float sum = 0;
  for (int t = 0; t < weights.tiles; ++t, tile += tile_elements, x += tile_depth)
    for (int k = 0; k < tile_depth; ++k)
      sum += widen(x[k]) * widen(tile[(k / 2) * 2 * strip_rows + row * 2 + k % 2]);
  return sum;
}

float silu_exact(float x) { return x / (1.0f + std::exp(-x)); }

void gate_up_reference(const GateUp& job, Counters& counters) {
  ++counters.reference_calls;
  for (int r = 0; r < job.x.count; ++r)
    for (int i = 0; i < job.weights.count / 2 * strip_rows; ++i) {
      const bf16* x = job.x.data + r * job.x.stride;
      const float gate = dot(x, job.weights, i / strip_rows * 2, i % strip_rows);
      const float up = dot(x, job.weights, i / strip_rows * 2 + 1, i % strip_rows);
      job.h[r * job.h_stride + i] = to_bf16(silu_exact(gate) * up);
    }
}

void down_reference(const Down& job, Counters& counters) {
  ++counters.reference_calls;
  for (int r = 0; r < job.h.count; ++r)
    for (int i = 0; i < job.weights.count * strip_rows; ++i) {
      const float y = dot(job.h.data + r * job.h.stride, job.weights, i / strip_rows, i % strip_rows);
      job.out[job.token[r] * job.out_stride + i] += job.gate[r] * y;
    }
}

void nothing() {}

}  // namespace

const Kernels reference_kernels{nothing, nothing, gate_up_reference, down_reference, round_all};

}  // namespace ktbench
