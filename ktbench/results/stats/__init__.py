"""Statistics of paired, repeated measurements: plain numbers in, nothing of ours imported."""
