// AVX2 without AVX-VNNI: float32 FMA for bf16, 16-bit multiply-add for integers.
#include "avx2/policies.h"

namespace ktbench {

constinit KernelSet avx2_kernels = kernel_set<KernelsByFormat<Loops, Loops::ByRow<FmaF32>, Loops::ByTile<FmaF32>, MaddS16>>();

}  // namespace ktbench
