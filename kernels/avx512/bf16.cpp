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
  static Vector broadcast(const std::byte* row) {
    return (__m512bh)four_bytes(row);
  }
  static void add(Sum& s, Vector a, Vector w) { asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(w)); }
};

}  // namespace

const KernelSet avx512_bf16_kernels{KernelsAvx512<DotBf16>::kernels};

}  // namespace ktbench
