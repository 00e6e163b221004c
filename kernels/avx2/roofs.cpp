#include <immintrin.h>

#include "core/kernels.h"

namespace ktbench {
namespace {

constexpr int sums_in_flight = 12;

inline __m256i line_half(const char* at) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(at)); }

}  // namespace

// Indexed on purpose: gcc's form with a moving pointer reads 15 % less per second on Granite Rapids.
void read_avx2(const void* data, std::size_t bytes) {
  __m256i sums[4];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  const char* base = static_cast<const char*>(data);
  for (std::size_t at = 0; at < bytes; at += sizeof sums) {
    asm volatile("" : "+r"(at), "+r"(base));
    for (int i = 0; i < 4; ++i) sums[i] = _mm256_xor_si256(sums[i], line_half(base + at + i * sizeof(__m256i)));
  }
  for (__m256i& sum : sums) asm volatile("" : : "x"(sum));
}

// Two streams side by side, prefetched as the kernels for few rows do.
void read_avx2_pairs(const void* data, std::size_t bytes) {
  constexpr std::size_t span = 64 << 10, near = 512, far = 4096;
  __m256i sums[4];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  const char* base = static_cast<const char*>(data);
  for (; bytes >= 2 * span; bytes -= 2 * span, base += 2 * span)
    for (std::size_t at = 0; at < span; at += 64) {
      asm volatile("" : "+r"(at), "+r"(base));
      for (int stream = 0; stream < 2; ++stream) {
        const char* line = base + stream * span + at;
        _mm_prefetch(line + near, _MM_HINT_T0);
        _mm_prefetch(line + far, _MM_HINT_T1);
        for (int i = 0; i < 2; ++i) {
          __m256i& sum = sums[2 * stream + i];
          sum = _mm256_xor_si256(sum, line_half(line + i * sizeof(__m256i)));
        }
      }
    }
  for (__m256i& sum : sums) asm volatile("" : : "x"(sum));
  read_avx2(base, bytes);
}

double burn_avx2_fma(long rounds) {
  __m256 sums[sums_in_flight] = {};
  __m256 factor = _mm256_setzero_ps();
  for (long i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(factor));
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(factor, factor, sum);
    for (__m256& sum : sums) asm volatile("" : "+x"(sum));
  }
  return 2.0 * 8 * sums_in_flight * rounds;
}

double burn_avx2_madd(long rounds) {
  __m256i sums[sums_in_flight] = {};
  __m256i factor = _mm256_setzero_si256();
  for (long i = 0; i < rounds; ++i) {
    for (__m256i& sum : sums) {
      asm volatile("" : "+x"(factor));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(factor, factor));
    }
    for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
  }
  return 2.0 * 16 * sums_in_flight * rounds;
}

// Blocks of 32 products: eight vpmaddubsw are summed in 16 bits before they are widened and scaled, as 4-bit weights allow.
double burn_avx2_blocks(long rounds) {
  constexpr int blocks = 8, products = 8;
  __m256i sums[blocks];
  __m256 scaled[blocks / 2] = {};
  __m256i factor = _mm256_setzero_si256();
  for (long i = 0; i < rounds; ++i) {
    for (__m256i& sum : sums) {
      asm volatile("" : "+x"(factor));
      sum = _mm256_maddubs_epi16(factor, factor);
    }
    for (int product = 1; product < products; ++product)
      for (__m256i& sum : sums) {
        asm volatile("" : "+x"(factor));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(factor, factor));
      }
    for (int block = 0; block < blocks; ++block) {
      __m256 whole = _mm256_cvtepi32_ps(_mm256_madd_epi16(sums[block], factor));
      asm volatile("" : "+x"(whole));
      scaled[block / 2] = _mm256_fmadd_ps(whole, whole, scaled[block / 2]);
    }
    for (__m256& sum : scaled) asm volatile("" : "+x"(sum));
  }
  return 2.0 * 32 * products * blocks * rounds;
}

}  // namespace ktbench
