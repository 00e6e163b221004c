// AVX-VNNI: vpdpbusd on 32 bytes, for CPUs without AVX-512.
#include "avx2/policies.h"

namespace ktbench {
namespace {

struct Vnni : IntegerSums<true> {
  static constexpr int halves = 1, step = 4;
  static constexpr Activation activation = Activation::u8;
  template <int>
  static Vector load(const std::byte* at) {
    return half_line(at);
  }
  template <int>
  static Vector broadcast(const std::byte* row) {
    return four_bytes(row);
  }
  static void add(Sum& s, Vector a, Vector w) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(s) : "x"(a), "x"(w));
  }

  // Each nibble at the top of a byte: low ones, then high ones.
  static constexpr int quarters = 2, quarter_step = 8, unit = 16;
  template <int quarter>
  static Vector load_int4(const std::byte* at) {
    const __m256i nibbles = quarter ? half_line(at) : _mm256_slli_epi16(half_line(at), 4);
    return _mm256_and_si256(nibbles, _mm256_set1_epi8(static_cast<char>(0xf0)));
  }
  template <int quarter>
  static Vector load_codes(const std::byte* at, const std::int8_t* values) {
    return decoded<quarter != 0>(at, values);
  }
};

}  // namespace

constinit KernelSet avx2_vnni_kernels = kernel_set<KernelsByFormat<Loops, NoKernels, NoKernels, Vnni>>();

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
