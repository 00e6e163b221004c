// AVX-512 without its dot product extensions: float32 FMA for bf16, 16-bit multiply-add for integers.
#include "avx512/tables.h"

namespace ktbench {

constinit KernelSet avx512_kernels =
    kernel_set<KernelsByFormat<Loops, Loops::ByRow<FmaF32, WideF32, WidenedPanels>, Loops::ByTile<FmaF32>, MaddS16>>();

}  // namespace ktbench
