"""The device role on a CUDA device: hand-over to the host in stream order, captured steps, experts that live there."""
