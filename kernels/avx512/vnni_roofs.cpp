#include <immintrin.h>

#include "core/kernels.h"

namespace ktbench {

double burn_avx512_vnni(long rounds) {
  constexpr int sums_in_flight = 16;
  __m512i sums[sums_in_flight] = {};
  __m512i factor = _mm512_setzero_si512();
  for (long i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(factor));
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, factor, factor);
    for (__m512i& sum : sums) asm volatile("" : "+v"(sum));
  }
  return 2.0 * 64 * sums_in_flight * rounds;
}

}  // namespace ktbench
