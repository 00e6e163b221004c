// What one ISA provides. Everything here is plain data: files with vector code include this header and share no inline
// function with the portable path.
#pragma once

#include "core/counters.h"
#include "core/layout.h"

namespace ktbench {

// Activations, zero-padded along k to whole tiles. Rows up to the next multiple of `row_padding` may be read.
struct Rows {
  const bf16* data;
  std::size_t stride;
  int count;
};

inline constexpr int row_padding = 32;

// Consecutive strips of packed weights, an even number, `tiles` tiles each.
struct Strips {
  const bf16* data;
  int count;
  int tiles;
};

// Room for sums that do not fit registers: 64-byte aligned, one per thread, contents of no meaning between jobs.
inline constexpr int scratch_floats = 256 * 8 * 32;

// h = silu(x gate^T) * (x up^T), rounded to bf16; strips come as gate 0, up 0, gate 1, up 1, ...
struct GateUp {
  Rows x;
  Strips weights;
  bf16* h;
  std::size_t h_stride;
  float* scratch;
};

// out[token[r]] += gate[r] * (h[r] down^T) in float32; one output column per strip row.
struct Down {
  Rows h;
  Strips weights;
  const int* token;
  const float* gate;
  float* out;
  std::size_t out_stride;
  float* scratch;
};

struct Kernels {
  void (*enter)();  // on each thread, before and after its share of a phase
  void (*leave)();
  void (*gate_up)(const GateUp&, Counters&);
  void (*down)(const Down&, Counters&);
  void (*round)(const float* from, bf16* to, int count);
};

extern const Kernels reference_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels amx_kernels;
extern const Kernels amx_emulated_kernels;

// Roofs: bytes are read (64-byte aligned, a multiple of 512), nothing is kept. A burn returns the FLOPs it did.
using ReadLoop = void (*)(const void* data, std::size_t bytes);
using Burn = double (*)(long rounds);

void read_reference(const void* data, std::size_t bytes);
void read_avx2(const void* data, std::size_t bytes);
double burn_avx2(long rounds);
double burn_avx512(long rounds);
double burn_amx(long rounds);

}  // namespace ktbench
