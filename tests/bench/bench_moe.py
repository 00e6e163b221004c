"""One MoE layer of Qwen3-30B-A3B (64 of its experts): the fused operator per ISA, weights rotated through memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from ktbench._kernels import MoE, OpenMPTeam, PackedExperts, grants
from ktbench.workload.routing import route

EXPERTS, HIDDEN, FFN, TOP_K = 64, 2048, 768, 8
LAYERS = 3  # 1.8 GB: more than last-level caches hold


@pytest.fixture(scope="module")
def layers() -> list[MoE]:
    team = OpenMPTeam(torch.get_num_threads())
    random = np.random.default_rng(0)
    gate, up = (bits(random, FFN, HIDDEN) for _ in range(2))
    down = bits(random, HIDDEN, FFN)
    packed = [PackedExperts(EXPERTS, HIDDEN, FFN) for _ in range(LAYERS)]
    for weights in packed:
        for expert in range(EXPERTS):
            weights.write_expert(expert, gate, up, down, team)
    return [MoE(weights, team) for weights in packed]


def bits(random: np.random.Generator, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    values = random.normal(scale=0.02, size=shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 256, 1024])
@pytest.mark.parametrize("isa", ["avx2", "avx512", "amx"])
def bench_fused(benchmark: BenchmarkFixture, layers: list[MoE], isa: str, tokens: int) -> None:
    if grants()[isa]:
        pytest.skip(grants()[isa])
    benchmark.extra_info |= {"tokens": tokens, "weight_bytes_per_expert": 2 * 3 * HIDDEN * FFN}
    benchmark(one_layer_after_the_other(layers, isa, tokens))


def one_layer_after_the_other(layers: list[MoE], isa: str, tokens: int) -> Callable[[], None]:
    random = np.random.default_rng(tokens)
    x, out = bits(random, tokens, HIDDEN), np.zeros((tokens, HIDDEN), dtype=np.uint16)
    turn = cycle([(moe, route("balanced", tokens, EXPERTS, TOP_K, seed)) for seed, moe in enumerate(layers)])

    def step() -> None:
        moe, (ids, gates) = next(turn)
        moe.forward(x, ids, gates, out, isa=isa, dynamic=True)

    return step
