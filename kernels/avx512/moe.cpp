// AVX-512 BF16. Few rows: one strip at a time, a single stream of weights, sums split over k to hide the latency of the
// dot. Many rows: 6 rows x 4 strips of sums in registers, the next strips fetched meanwhile.
#include <immintrin.h>

#include "core/blocked.h"

namespace ktbench {
namespace {

constexpr int pairs = tile_depth / 2;
constexpr int pair_elements = 2 * strip_rows;

inline __m512bh broadcast_pair(const bf16* x) {
  return (__m512bh)_mm512_set1_epi32(*reinterpret_cast<const std::int32_t*>(x));
}

// gcc 12 copies sums between registers or spills them; naming them in an empty asm keeps each in its place.
template <int n>
inline void keep_in_registers(__m512 (&sums)[n]) {
#pragma GCC unroll 32
  for (int i = 0; i < n; ++i) asm("" : "+v"(sums[i]));
}

template <int n>
inline void clear(__m512 (&sums)[n]) {
#pragma GCC unroll 32
  for (int i = 0; i < n; ++i) sums[i] = _mm512_setzero_ps();
}

// `rows` x 1 strip, sums split `split` ways along k. The hardware prefetcher stops at a 4 KiB page; asking for the line
// beyond it carries it over (one row on Granite Rapids: 30 -> 35 GB/s with two threads; longer turns of the loop lose it).
template <int rows, int split>
void stream(const Rows& x, const bf16* strip, int tiles, float* c, int c_stride) {
  constexpr int ahead = 5120 / sizeof(bf16);
  constexpr int step = 4;
  __m512 sums[rows * split];
  clear(sums);
  const bf16* row = x.data;
  for (int p = 0; p < tiles * pairs; p += step, strip += step * pair_elements, row += 2 * step) {
#pragma GCC unroll 4
    for (int i = 0; i < step; ++i) {
      _mm_prefetch(strip + i * pair_elements + ahead, _MM_HINT_T1);
      const __m512bh w = (__m512bh)_mm512_load_si512(strip + i * pair_elements);
#pragma GCC unroll 12
      for (int r = 0; r < rows; ++r) {
        __m512& sum = sums[r * split + i % split];
        sum = _mm512_dpbf16_ps(sum, broadcast_pair(row + r * x.stride + 2 * i), w);
        asm volatile("" : "+v"(sum));
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    __m512 sum = sums[r * split];
    for (int i = 1; i < split; ++i) sum = _mm512_add_ps(sum, sums[r * split + i]);
    _mm512_store_ps(c + r * c_stride, sum);
  }
}

template <int rows, int strips, bool fetching>
void block(const Rows& x, const Strips& weights, const bf16* ahead, float* c, int c_stride) {
  __m512 sums[rows * strips];
  clear(sums);
  const std::size_t strip_elements = static_cast<std::size_t>(weights.tiles) * tile_elements;
  const bf16* w = weights.data;
  const bf16* row = x.data;
  for (int p = 0; p < weights.tiles * pairs; ++p, w += pair_elements, row += 2) {
    if constexpr (fetching) {
      _mm_prefetch(ahead + p * pair_elements, _MM_HINT_T1);
      _mm_prefetch(ahead + strip_elements + p * pair_elements, _MM_HINT_T1);
    }
    __m512bh operand[strips];
#pragma GCC unroll 4
    for (int s = 0; s < strips; ++s) operand[s] = (__m512bh)_mm512_load_si512(w + s * strip_elements);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const __m512bh a = broadcast_pair(row + r * x.stride);
#pragma GCC unroll 4
      for (int s = 0; s < strips; ++s)
        sums[r * strips + s] = _mm512_dpbf16_ps(sums[r * strips + s], a, operand[s]);
    }
    keep_in_registers(sums);
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int s = 0; s < strips; ++s) _mm512_store_ps(c + r * c_stride + s * strip_rows, sums[r * strips + s]);
}

using Stream = void (*)(const Rows&, const bf16*, int, float*, int);
using Multiply = void (*)(const Rows&, const Strips&, const bf16*, float*, int);

// By number of rows, from one.
constexpr Stream streams[] = {stream<1, 4>, stream<2, 4>, stream<3, 4>, stream<4, 2>,  stream<5, 2>,  stream<6, 2>,
                              stream<7, 1>, stream<8, 1>, stream<9, 1>, stream<10, 1>, stream<11, 1>, stream<12, 1>};
template <int strips, bool fetching>
constexpr Multiply blocks[] = {block<1, strips, fetching>, block<2, strips, fetching>, block<3, strips, fetching>,
                               block<4, strips, fetching>, block<5, strips, fetching>, block<6, strips, fetching>};

struct Few {
  static constexpr int rows = 12;
  static constexpr int strips = 2;
  static int height(int) { return rows; }
  static void multiply(const Rows& x, const Strips& weights, const bf16*, float* c, int c_stride) {
    for (int s = 0; s < weights.count; ++s)
      streams[x.count - 1](x, strips_from(weights, s, 1).data, weights.tiles, c + s * strip_rows, c_stride);
  }
};

struct Many {
  static constexpr int rows = 6;
  static constexpr int strips = 4;
  static int height(int count) { return even_height(count, rows); }
  static void multiply(const Rows& x, const Strips& weights, const bf16* ahead, float* c, int c_stride) {
    if (weights.count == 2) return blocks<2, false>[x.count - 1](x, weights, ahead, c, c_stride);
    const auto& by_rows = ahead ? blocks<4, true> : blocks<4, false>;
    by_rows[x.count - 1](x, weights, ahead, c, c_stride);
  }
};

void gate_up_avx512(const GateUp& job, Counters& counters) {
  ++counters.avx512_calls;
  job.x.count <= Few::rows ? gate_up<Few>(job) : gate_up<Many>(job);
}

void down_avx512(const Down& job, Counters& counters) {
  ++counters.avx512_calls;
  job.h.count <= Few::rows ? down<Few>(job) : down<Many>(job);
}

void nothing() {}

}  // namespace

const Kernels avx512_kernels{nothing, nothing, gate_up_avx512, down_avx512, round_all};

}  // namespace ktbench
