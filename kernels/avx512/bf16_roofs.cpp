#include <immintrin.h>

#include "core/kernels.h"

namespace ktbench {

double burn_avx512_bf16(long rounds) {
  constexpr int sums_in_flight = 16;
  __m512 sums[sums_in_flight] = {};
  __m512bh factor = (__m512bh)_mm512_setzero_si512();
  for (long i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(factor));
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, factor, factor);
    for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  }
  return 2.0 * 32 * sums_in_flight * rounds;
}

}  // namespace ktbench
