"""Quantised weights of safetensors folders: which tensors make a matrix, and the blocks that these stand for."""
