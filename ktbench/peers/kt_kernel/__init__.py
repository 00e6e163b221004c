"""kt-kernel, the CPU kernels of KTransformers, from its installed wheel."""
