// AVX-512 without its dot product extensions: float32 FMA for bf16, 16-bit multiply-add for integers.
#include "avx512/tables.h"

namespace ktbench {

const KernelSet avx512_kernels{KernelsAvx512<FmaF32, WideF32, Widened>::kernels, KernelsAvx512<MaddS16>::kernels,
                               KernelsAvx512Int4<MaddS16>::kernels, KernelsAvx512Q8<MaddS16>::kernels,
                               KernelsAvx512Q4<MaddS16>::kernels};

}  // namespace ktbench
