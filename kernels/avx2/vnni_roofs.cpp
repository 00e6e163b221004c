#include <immintrin.h>

#include "core/kernels.h"

namespace ktbench {

double burn_avx2_vnni(long rounds) {
  constexpr int sums_in_flight = 12;
  __m256i sums[sums_in_flight] = {};
  __m256i factor = _mm256_setzero_si256();
  for (long i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(factor));
    for (__m256i& sum : sums) sum = _mm256_dpbusd_avx_epi32(sum, factor, factor);
    for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
  }
  return 2.0 * 32 * sums_in_flight * rounds;
}

}  // namespace ktbench
