"""The device role on a CUDA device: offload to the host in stream order, captured steps, experts in device memory."""
