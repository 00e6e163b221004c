// What one ISA provides. Everything here is plain data: files with vector code include this header and share no inline
// functions with the portable path.
#pragma once

#include <utility>

#include "core/counters.h"
#include "core/layout.h"

namespace ktbench {

// The activation format of a kernel. u8: int8 raised by 128. s16: int8 widened, four neighbours along k as 0, 2, 1, 3.
enum class Activation : std::uint8_t { bf16, f32, u8, s16 };
inline constexpr int activations = 4;

// A row: `depth` numbers, then its scale as a float at the head of one more line, so that rows do not share cache sets,
// then, as floats, the sums of its integers over each `sum_group` of them.
struct RowFormat {
  Activation kind;
  int depth;
  int sum_group = 0;

  std::size_t number_bytes() const { return kind == Activation::f32 ? 4 : kind == Activation::u8 ? 1 : 2; }
  std::size_t scale_at() const { return depth * number_bytes(); }
  std::size_t sums_at() const { return scale_at() + line_bytes; }
  std::size_t bytes() const {
    const std::size_t sums = sum_group ? depth / sum_group * sizeof(float) : 0;
    return sums_at() + (sums + line_bytes - 1) / line_bytes * line_bytes;
  }
};

// Rows `stride` bytes apart, each with its scale `scale_at` bytes from its beginning. Rows up to the next multiple of
// `row_padding` may be read.
struct Rows {
  const std::byte* data;
  std::size_t stride;
  std::size_t scale_at;
  int count;
};

inline constexpr int row_padding = 32;

// From how many rows on each loop multiplies a format. Any values give correct results; the fastest depend on the CPU
// (runtime/crossover.h).
struct Crossover {
  int fetch_from = 1;  // streams prefetch, and read two strips at once while their sums fit the registers
  int block_from = 1;  // register blocks instead of streams; of AMX: its tiles instead of vectors

  bool operator==(const Crossover&) const = default;
};
inline constexpr int never = 1 << 30;  // more rows than any call has

// Consecutive strips of packed weights, `bytes` apart, an even number of them.
struct Strips {
  const std::byte* data;
  int count;
  int depth;  // padded
  std::size_t bytes;
  Format format;
  Crossover crossover;
    const std::byte* following;  // the strips needed next, anywhere
};

// Scratch memory for sums and unpacked weights: 64-byte aligned, one per thread, undefined between jobs.
std::size_t scratch_bytes(const Geometry& geometry);

// h = g sigmoid(g (slope + curve g^2)) (u + offset), g = min(gate, limit), u = clamp(up, -limit, limit).
struct Gating {
  float slope, curve, limit, offset;
};

// h = silu(x gate^T) * (x up^T), rounded to bf16; strips come as gate 0, up 0, gate 1, up 1, ...
// With `gating` it is that of x gate^T + gate_bias and x up^T + up_bias.
struct GateUp {
  Rows x;
  Strips weights;
  bf16* h;
  std::size_t h_stride;  // elements
  std::byte* scratch;
  const Gating* gating = nullptr;
  const float* gate_bias = nullptr;  // one for each column of h, lines that are aligned; none where it is null
  const float* up_bias = nullptr;
};

// out[token[r]] += gate[r] * (h[r] down^T) in float32; one output column per strip row.
struct Down {
  Rows h;
  Strips weights;
  const int* token;
  const float* gate;
  float* out;
  std::size_t out_stride;
  std::byte* scratch;
};

// The kernels of one ISA for one format. A null gate_up: the ISA has none for it.
struct Kernels {
  Activation activation = Activation::bf16;
  void (*enter)() = nullptr;  // on each thread, before and after its part of a phase
  void (*leave)() = nullptr;
  void (*gate_up)(const GateUp&, Counters&) = nullptr;
  void (*down)(const Down&, Counters&) = nullptr;
  // Converts `count` values to a row; the rest of its depth is zeros.
  void (*prepare)(const bf16* from, int count, const RowFormat& format, std::byte* row) = nullptr;
  void (*round)(const float* from, bf16* to, int count) = nullptr;
  Crossover crossover = {};
};

// By row of the format table.
struct KernelSet {
  Kernels of_row[format_count];
};

// Isa::of<format>() for every row of the format table.
template <class Isa, std::size_t... row>
consteval KernelSet kernel_set(std::index_sequence<row...>) {
  return {{Isa::template of<format_table[row].format>()...}};
}
template <class Isa>
consteval KernelSet kernel_set() {
  return kernel_set<Isa>(std::make_index_sequence<format_count>{});
}

extern KernelSet reference_kernels;
extern KernelSet avx2_kernels;
extern KernelSet avx2_vnni_kernels;
extern KernelSet avx512_kernels;
extern KernelSet avx512_vnni_kernels;
extern KernelSet avx512_vbmi_kernels;
extern KernelSet avx512_bf16_kernels;
extern KernelSet amx_kernels;
extern KernelSet amx_emulated_kernels;

// Roofs: bytes are read (64-byte aligned, a multiple of 512), nothing is kept. A burn returns the operations it did.
using ReadLoop = void (*)(const void* data, std::size_t bytes);
using Burn = double (*)(long rounds);

void read_reference(const void* data, std::size_t bytes);
void read_avx2(const void* data, std::size_t bytes);
void read_avx2_pairs(const void* data, std::size_t bytes);
double burn_avx2_fma(long rounds);
double burn_avx2_madd(long rounds);
double burn_avx2_blocks(long rounds);
double burn_avx2_vnni(long rounds);
double burn_avx512_fma(long rounds);
double burn_avx512_madd(long rounds);
double burn_avx512_blocks(long rounds);
double burn_avx512_vnni(long rounds);
double burn_avx512_bf16(long rounds);
double burn_amx_bf16(long rounds);
double burn_amx_int8(long rounds);

}  // namespace ktbench
