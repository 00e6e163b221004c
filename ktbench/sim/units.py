"""What the fused kernels take at a time (KTransformers, section 3.2; kernels/core/layout.h)."""

from __future__ import annotations

TASK_COLUMNS = 128  # output columns of a task
# A tile of AMX holds 16 rows of activations against a KiB of weights.
TILE_ROWS, TILE_BYTES = 16, 1024
