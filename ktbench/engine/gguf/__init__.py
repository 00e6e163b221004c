"""GGUF, the file format of llama.cpp: our models written to it and read from it."""
