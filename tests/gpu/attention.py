"""Attention of a token with a mask, in a graph of 48 layers: PyTorch's kernel and products over parts of the context.

python -m tests.gpu.attention
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ktbench.engine.cuda.attention import attend_in_parts

_LAYERS, _LAUNCHES = 48, 40


def us_a_layer(attend: Callable[[], Tensor]) -> float:
    """Median over launches of a graph, in microseconds."""
    attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_LAYERS):
            attend()
    took = []
    for _ in range(_LAUNCHES):
        torch.cuda.synchronize()
        began = perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        took.append(perf_counter() - began)
    return median(took) / _LAYERS * 1e6


def main() -> None:
    """A line for every number of sequences and positions, of Qwen3-30B-A3B's heads."""
    for batch in (1, 8):
        for positions in (256, 512, 1024, 2048, 4096, 8192, 32768):
            q = torch.randn(batch, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
            k, v = (torch.randn(batch, 4, positions, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            mask = torch.ones(batch, 1, 1, positions, device="cuda", dtype=torch.bool)
            packed = q.view(batch, 4, 8, 128)
            kernel = us_a_layer(lambda: scaled_dot_product_attention(packed, k, v, attn_mask=mask))  # noqa: B023
            parts = us_a_layer(lambda: attend_in_parts(q, k, v, mask, None))  # noqa: B023
            flash = us_a_layer(lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True))  # noqa: B023
            print(
                f"batch {batch}, {positions} positions: kernel with a mask {kernel:.1f}, parts {parts:.1f}, "
                f"FlashAttention without a mask {flash:.1f} us a layer"
            )


if __name__ == "__main__":
    main()
