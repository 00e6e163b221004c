// AVX-512 BF16: vdpbf16ps adds two products of bf16 to a float32 sum.
#include "avx512/tables.h"

namespace ktbench {
namespace {

struct DotBf16 : FloatSums {
  using Vector = __m512bh;
  static constexpr int halves = 1, step = 4;
  static constexpr Activation activation = Activation::bf16;
  template <int>
  static Vector load(const std::byte* at) {
    return (__m512bh)line(at);
  }
  template <int>
  static Vector of_pairs(__m512i pairs) {
    return (__m512bh)pairs;
  }
  template <int>
  static Vector broadcast(const std::byte* row) {
    return (__m512bh)four_bytes(row);
  }
  static void add(Sum& s, Vector a, Vector w) { asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(w)); }
};

}  // namespace

constinit KernelSet avx512_bf16_kernels = kernel_set<KernelsByFormat<Loops, Loops::ByRow<DotBf16>, Loops::ByTile<DotBf16>, void>>();

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
