"""kt-kernel, KTransformers' CPU kernels, from the installed wheel."""
