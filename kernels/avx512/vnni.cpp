// AVX-512 VNNI: vpdpbusd adds four products of unsigned and signed bytes to an int32 sum.
#include "avx512/tables.h"

namespace ktbench {
namespace {

struct Vnni : IntegerSums<true> {
  using Vector = __m512i;
  static constexpr int halves = 1, step = 4;
  static constexpr Activation activation = Activation::u8;
  template <int>
  static Vector load(const std::byte* at) {
    return line(at);
  }
  template <int>
  static Vector broadcast(const std::byte* row) {
    return four_bytes(row);
  }
  static void add(Sum& s, Vector a, Vector w) { asm("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(a), "v"(w)); }

  // Each nibble at the top of a byte: low ones, then high ones.
  static constexpr int quarters = 2, quarter_step = 8, unit = 16;
  template <int quarter>
  static Vector load_int4(const std::byte* at) {
    const __m512i nibbles = quarter ? line(at) : _mm512_slli_epi16(line(at), 4);
    return _mm512_and_si512(nibbles, _mm512_set1_epi8(static_cast<char>(0xf0)));
  }
  template <int quarter>
  static Vector load_codes(const std::byte* at, const std::int8_t* values) {
    return decoded<quarter != 0>(at, values);
  }
};

}  // namespace

constinit KernelSet avx512_vnni_kernels = kernel_set<KernelsByFormat<Loops, NoKernels, NoKernels, Vnni>>();

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
