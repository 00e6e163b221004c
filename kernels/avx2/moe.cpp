// AVX2: bf16 widened to float32 by shift or mask, FMA; 6 rows x 1 strip of sums in registers.
#include <immintrin.h>

#include "core/blocked.h"

namespace ktbench {
namespace {

constexpr int chunk_depth = 512;  // activations are widened once per chunk and row block: 12 KiB, stays in L1

constexpr int bytes_ahead = 5120;  // the hardware prefetcher stops at the page's end

struct Widened {
  alignas(32) float even[6][chunk_depth / 2];
  alignas(32) float odd[6][chunk_depth / 2];
};

inline __m256 even_half(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 odd_half(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

void widen(const Rows& x, int depth, Widened& to) {
  for (int r = 0; r < x.count; ++r)
    for (int k = 0; k < depth; k += 16) {
      const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.data + r * x.stride + k));
      _mm256_store_ps(to.even[r] + k / 2, even_half(pairs));
      _mm256_store_ps(to.odd[r] + k / 2, odd_half(pairs));
    }
}

// gcc 12 copies sums between registers or spills them; the empty asm keeps each in its place.
inline void add_product(__m256 a, __m256 w, __m256& sum) {
  sum = _mm256_fmadd_ps(a, w, sum);
  asm volatile("" : "+x"(sum));
}

template <int rows, int split>
void multiply_chunk(const Widened& x, const bf16* strip, int depth, float* c, int c_stride) {
  __m256 sums[split * rows * 2];
#pragma GCC unroll 16
  for (int i = 0; i < split * rows * 2; ++i) sums[i] = _mm256_setzero_ps();
  for (int p = 0; p < depth / 2; p += split) {
#pragma GCC unroll 4
    for (int u = 0; u < split; ++u) {
      const auto* w = reinterpret_cast<const __m256i*>(strip + (p + u) * 2 * strip_rows);
      _mm_prefetch(w + bytes_ahead / sizeof *w, _MM_HINT_T1);
      __m256* sum = sums + u * rows * 2;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256 low = half ? odd_half(_mm256_load_si256(w)) : even_half(_mm256_load_si256(w));
        const __m256 high = half ? odd_half(_mm256_load_si256(w + 1)) : even_half(_mm256_load_si256(w + 1));
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
          const __m256 a = _mm256_broadcast_ss((half ? x.odd[r] : x.even[r]) + p + u);
          add_product(a, low, sum[2 * r]);
          add_product(a, high, sum[2 * r + 1]);
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256 sum = sums[2 * r + h];
      for (int u = 1; u < split; ++u) sum = _mm256_add_ps(sum, sums[u * rows * 2 + 2 * r + h]);
      float* to = c + r * c_stride + h * 8;
      _mm256_store_ps(to, _mm256_add_ps(_mm256_load_ps(to), sum));
    }
}

using Chunk = void (*)(const Widened&, const bf16*, int, float*, int);
constexpr Chunk chunks[] = {multiply_chunk<1, 4>, multiply_chunk<2, 2>, multiply_chunk<3, 2>,
                            multiply_chunk<4, 1>, multiply_chunk<5, 1>, multiply_chunk<6, 1>};

struct Block {
  static constexpr int rows = 6;
  static constexpr int strips = 4;
  static int height(int count) { return even_height(count, rows); }
  static void multiply(const Rows& x, const Strips& weights, const bf16*, float* c, int c_stride) {
    __builtin_memset(c, 0, sizeof(float) * x.count * c_stride);
    Widened widened;
    for (int k = 0; k < weights.tiles * tile_depth; k += chunk_depth) {
      const int depth = smaller(chunk_depth, weights.tiles * tile_depth - k);
      widen({x.data + k, x.stride, x.count}, depth, widened);
      for (int s = 0; s < weights.count; ++s) {
        const bf16* strip = strips_from(weights, s, 1).data + static_cast<std::size_t>(k) * strip_rows;
        chunks[x.count - 1](widened, strip, depth, c + s * strip_rows, c_stride);
      }
    }
  }
};

void gate_up_avx2(const GateUp& job, Counters& counters) {
  ++counters.avx2_calls;
  gate_up<Block>(job);
}

void down_avx2(const Down& job, Counters& counters) {
  ++counters.avx2_calls;
  down<Block>(job);
}

void nothing() {}

}  // namespace

const Kernels avx2_kernels{nothing, nothing, gate_up_avx2, down_avx2, round_all};

}  // namespace ktbench
