#include <immintrin.h>

#include "core/kernels.h"

namespace ktbench {
namespace {

constexpr int sums_in_flight = 16;

}  // namespace

double burn_avx512_fma(long rounds) {
  __m512 sums[sums_in_flight] = {};
  __m512 factor = _mm512_setzero_ps();
  for (long i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(factor));
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(factor, factor, sum);
    for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  }
  return 2.0 * 16 * sums_in_flight * rounds;
}

double burn_avx512_madd(long rounds) {
  __m512i sums[sums_in_flight] = {};
  __m512i factor = _mm512_setzero_si512();
  for (long i = 0; i < rounds; ++i) {
    for (__m512i& sum : sums) {
      asm volatile("" : "+v"(factor));
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(factor, factor));
    }
    for (__m512i& sum : sums) asm volatile("" : "+v"(sum));
  }
  return 2.0 * 32 * sums_in_flight * rounds;
}

// As burn_avx2_blocks.
double burn_avx512_blocks(long rounds) {
  constexpr int blocks = 12, products = 8;
  __m512i sums[blocks];
  __m512 scaled[blocks / 2] = {};
  __m512i factor = _mm512_setzero_si512();
  for (long i = 0; i < rounds; ++i) {
    for (__m512i& sum : sums) {
      asm volatile("" : "+v"(factor));
      sum = _mm512_maddubs_epi16(factor, factor);
    }
    for (int product = 1; product < products; ++product)
      for (__m512i& sum : sums) {
        asm volatile("" : "+v"(factor));
        sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(factor, factor));
      }
    for (int block = 0; block < blocks; ++block) {
      __m512 whole = _mm512_cvtepi32_ps(_mm512_madd_epi16(sums[block], factor));
      asm volatile("" : "+v"(whole));
      scaled[block / 2] = _mm512_fmadd_ps(whole, whole, scaled[block / 2]);
    }
    for (__m512& sum : scaled) asm volatile("" : "+v"(sum));
  }
  return 2.0 * 64 * products * blocks * rounds;
}

}  // namespace ktbench
