// AVX-512 VBMI: lookups of bytes turn e4m3 into bf16.
#include "avx512/tables.h"

namespace ktbench {

constinit KernelSet avx512_vbmi_kernels = kernel_set<KernelsByFormat<Loops, NoKernels, Loops::ByTile<FmaF32>, void>>();

}  // namespace ktbench
