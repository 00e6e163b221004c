// The specification: one product at a time, in storage order. bf16 is summed in float32; integers exactly, over a whole
// row, or with block scales over each block, whose results are summed in float32.
#include <cmath>

#include "core/wide.h"

namespace ktbench {
namespace {

float bf16_dot(const std::byte* x, const std::byte* strip, int row, int depth) {
  const auto* activations = reinterpret_cast<const bf16*>(x);
  const auto* weights = reinterpret_cast<const bf16*>(strip);
  float sum = 0;
  for (int k = 0; k < depth; ++k)
    sum += widen(activations[k]) * widen(weights[k / 2 * 2 * strip_rows + row * 2 + k % 2]);
  return sum;
}

std::int64_t int8_dot(const std::byte* x, const std::byte* strip, int row, int depth) {
  const auto* activations = reinterpret_cast<const std::uint8_t*>(x);
  const auto* weights = reinterpret_cast<const std::int8_t*>(strip + sizeof(StripScales));
  std::int64_t sum = 0;
  for (int k = 0; k < depth; ++k) sum += (activations[k] - 128) * weights[k / 4 * line_bytes + row * 4 + k % 4];
  return sum;
}

float block_scale(Scales kind, std::uint16_t scale) {
  return kind == Scales::block_bf16 ? widen(scale) : float_of_half(scale);
}

float block_dot(const std::byte* x, const std::byte* strip, int row, int depth, Scales kind) {
  const auto* activations = reinterpret_cast<const std::uint8_t*>(x);
  const std::byte* at = strip + sizeof(StripOffsets);
  float sum = 0;
  for (int first = 0; first < depth; first += blocks_per_record * block_depth) {
    const auto* scales = reinterpret_cast<const std::uint16_t*>(at);
    at += line_bytes;
    for (int b = 0; b < blocks_per_record; ++b, scales += strip_rows) {
      std::int32_t dot = 0;
      for (int k = 0; k < block_depth; ++k) {
        const auto weight = static_cast<std::int8_t>(at[k / 4 * line_bytes + row * 4 + k % 4]);
        dot += (activations[first + b * block_depth + k] - 128) * weight;
      }
      sum += static_cast<float>(dot) * block_scale(kind, scales[row]);
      at += block_depth / 4 * line_bytes;
    }
  }
  return sum;
}

// A group's sum is scaled as a whole.
float tile_dot(const std::byte* x, const std::byte* strip, int row, int depth) {
  const auto* activations = reinterpret_cast<const bf16*>(x);
  const std::byte *line = strip + sizeof(RowScales), *scales = line;
  float sum = 0;
  for (int first = 0, group = 0; first < depth; first += tile_depth, ++group) {
    if (group % tiles_per_record == 0) scales = line, line += line_bytes;
    float dot = 0, scale;
    for (int k = first; k < first + tile_depth; ++k) {
      const std::byte code = line[(k - first) / 4 * line_bytes + e4m3_byte(row, k % 4)];
      dot += widen(activations[k]) * widen(bf16_of_e4m3(static_cast<std::uint8_t>(code)));
    }
    __builtin_memcpy(&scale, scales + group % tiles_per_record * sizeof scale, sizeof scale);
    sum += dot * scale;
    line += tile_depth / 4 * line_bytes;
  }
  return sum * reinterpret_cast<const RowScales*>(strip)->scale[row];
}

template <int group>
float super_dot(const Rows& x, int r, const Format& format, const std::byte* strip, int row, int depth) {
  const auto* activations = reinterpret_cast<const std::uint8_t*>(x.data + r * x.stride);
  const std::byte* record = strip + sizeof(StripOffsets);
  float sum = 0;
  for (int k = 0; k < depth; k += super_depth, record += format.bytes_before(1)) {
    WideRecord<group> wide;
    widening<group>(format.numbers)(record, wide);
    for (int g = 0; g < wide.groups; ++g) {
      std::int32_t dot = 0, total = 0;
      for (int i = 0; i < group; ++i) {
        const int activation = activations[k + g * group + i] - 128;
        dot += activation * static_cast<std::int8_t>(wide.lines(g)[i / 4 * line_bytes + row * 4 + i % 4]);
        total += activation;
      }
      sum += static_cast<float>(dot) * wide.scale(g)[row];
      if (format.minima_group()) sum += static_cast<float>(total) * wide.minimum[g][row];
    }
  }
  return sum;
}

float super_dot(const Rows& x, int r, const Strips& w, const std::byte* strip, int row) {
  const auto dot = coded(w.format.numbers).group == 16 ? super_dot<16> : super_dot<32>;
  return dot(x, r, w.format, strip, row, w.depth);
}

float product(const Rows& x, const Strips& w, int r, int strip, int row) {
  const std::byte* activations = x.data + r * x.stride;
  const std::byte* weights = w.data + strip * w.bytes;
  if (w.format.scales == Scales::none) return bf16_dot(activations, weights, row, w.depth);
  if (w.format.has_supers()) return super_dot(x, r, w, weights, row) * row_scale(x, r);
  if (w.format.scales == Scales::tile) return tile_dot(activations, weights, row, w.depth);
  if (w.format.has_blocks()) return block_dot(activations, weights, row, w.depth, w.format.scales) * row_scale(x, r);
  const auto* scales = reinterpret_cast<const StripScales*>(weights);
  return static_cast<float>(int8_dot(activations, weights, row, w.depth)) * (scales->scale[row] * row_scale(x, r));
}

float silu_exact(float x) { return x / (1.0f + std::exp(-x)); }

// `column` is that of h.
float gated_exact(float gate, float up, const GateUp& job, int column) {
  if (!job.gating) return silu_exact(gate) * up;
  const Gating& p = *job.gating;
  const float g = at_most(gate + (job.gate_bias ? job.gate_bias[column] : 0), p.limit);
  const float u = at_least(at_most(up + (job.up_bias ? job.up_bias[column] : 0), p.limit), -p.limit);
  return g / (1.0f + std::exp(-steepened(g, p))) * (u + p.offset);
}

Strips readable(const Strips& packed, std::byte* scratch) {
  return packed.format.has_supers() || packed.format.line_depth() != 8 ? packed : unpacked(packed, scratch);
}

void gate_up_reference(const GateUp& job, Counters& counters) {
  ++counters.reference_calls;
  for (int pair = 0; pair < job.weights.count / 2; ++pair) {
    const Strips w = readable(strips_from(job.weights, 2 * pair, 2), job.scratch);
    for (int r = 0; r < job.x.count; ++r)
      for (int i = 0; i < strip_rows; ++i) {
        const int column = pair * strip_rows + i;
        job.h[r * job.h_stride + column] =
            to_bf16(gated_exact(product(job.x, w, r, 0, i), product(job.x, w, r, 1, i), job, column));
      }
  }
}

void down_reference(const Down& job, Counters& counters) {
  ++counters.reference_calls;
  for (int strip = 0; strip < job.weights.count; ++strip) {
    const Strips w = readable(strips_from(job.weights, strip, 1), job.scratch);
    for (int r = 0; r < job.h.count; ++r)
      for (int i = 0; i < strip_rows; ++i)
        job.out[job.token[r] * job.out_stride + strip * strip_rows + i] += job.gate[r] * product(job.h, w, r, 0, i);
  }
}

void nothing() {}

struct Reference {
  template <Format format>
  static consteval Kernels of() {
    constexpr bool floats = format.scales == Scales::none || format.scales == Scales::tile;
    constexpr Activation kind = floats ? Activation::bf16 : Activation::u8;
    return {kind, nothing, nothing, gate_up_reference, down_reference, prepare_row, round_all};
  }
};

}  // namespace

constinit KernelSet reference_kernels = kernel_set<Reference>();

}  // namespace ktbench
