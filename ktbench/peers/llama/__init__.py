"""llama.cpp: driven through its C functions, and as its own benchmark program and server."""
