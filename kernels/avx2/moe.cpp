// AVX2 without AVX-VNNI: float32 FMA for bf16, 16-bit multiply-add for integers.
#include "avx2/policies.h"

namespace ktbench {

const KernelSet avx2_kernels{KernelsAvx2<FmaF32>::kernels, KernelsAvx2<MaddS16>::kernels, KernelsAvx2Int4<MaddS16>::kernels,
                             KernelsAvx2Q8<MaddS16>::kernels, KernelsAvx2Q4<MaddS16>::kernels};

}  // namespace ktbench
