"""One MoE layer of Qwen3-30B-A3B (64 of its experts): the fused operator by precision, ISA and tokens per expert.

Each step uses eight experts, which take turns through more memory than last-level caches hold. extra_info carries what
the median step did per second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture
from torch.nn.functional import linear, silu

from ktbench._kernels import MoE, OpenMPTeam, PackedExperts, Team, ThreadPool
from tests.kernels.tables import GGUF, PRECISIONS, isas_of, needs

EXPERTS, HIDDEN, FFN, ACTIVE = 64, 2048, 768, 8
ENOUGH = 1 << 30  # bytes of weights, in as many layers as that takes
TOKENS_PER_EXPERT = (1, 2, 4, 8, 16, 64, 256, 1024)
KERNELS = [
    pytest.param(precision, isa, marks=needs(isa), id=f"{precision}-{isa}")
    for precision in PRECISIONS
    for isa in isas_of(precision)
    if isa not in {"reference", "amx_emulated"}  # which are there to be right
]

Bits = NDArray[np.uint16]


class Expert(NamedTuple):
    gate: Bits
    up: Bits
    down: Bits


class Layers(NamedTuple):
    """Of one precision; every expert has the same weights, in memory of its own."""

    moes: list[MoE]
    expert_bytes: int


@pytest.fixture(scope="module")
def expert() -> Expert:
    random = np.random.default_rng(0)
    return Expert(bits(random, FFN, HIDDEN), bits(random, FFN, HIDDEN), bits(random, HIDDEN, FFN))


@pytest.fixture(scope="module")
def team() -> Team:
    return OpenMPTeam(torch.get_num_threads())


@pytest.fixture(scope="module")
def layers(request: pytest.FixtureRequest, expert: Expert, team: Team) -> Layers:
    def packed() -> PackedExperts:
        weights = PackedExperts(EXPERTS, HIDDEN, FFN, request.param)
        for index in range(EXPERTS):
            weights.write_expert(index, *expert, team)
        return weights

    first = packed()
    return Layers(
        [MoE(weights, team) for weights in [first, *(packed() for _ in range(ENOUGH // first.nbytes))]],
        first.nbytes // EXPERTS,
    )


def bits(random: np.random.Generator, *shape: int) -> Bits:
    values = random.normal(scale=0.02, size=shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def eights() -> list[range]:
    """Experts of one step after the other."""
    return [range(first, first + ACTIVE) for first in range(0, EXPERTS, ACTIVE)]


def note_rates(benchmark: BenchmarkFixture, *, tokens: int, expert_bytes: int) -> None:
    if benchmark.stats is None:  # --benchmark-disable
        return
    seconds = benchmark.stats.stats.median
    benchmark.extra_info |= {
        "tokens_per_expert": tokens,
        "TFLOPS": ACTIVE * tokens * 2 * 3 * HIDDEN * FFN / seconds / 1e12,
        "GB/s": ACTIVE * expert_bytes / seconds / 1e9,
    }


@pytest.mark.parametrize("tokens", TOKENS_PER_EXPERT)
@pytest.mark.parametrize(("layers", "isa"), KERNELS, indirect=["layers"])
def bench_fused(benchmark: BenchmarkFixture, layers: Layers, isa: str, tokens: int) -> None:
    benchmark(fused_step(layers.moes, isa, tokens))
    note_rates(benchmark, tokens=tokens, expert_bytes=layers.expert_bytes)


def fused_step(moes: list[MoE], isa: str, tokens: int) -> Callable[[], None]:
    x = bits(np.random.default_rng(tokens), tokens, HIDDEN)
    out, gates = np.zeros_like(x), np.full((tokens, ACTIVE), 1 / ACTIVE, np.float32)
    turns = cycle([(moe, np.tile(np.array(active), (tokens, 1))) for moe in moes for active in eights()])

    def step() -> None:
        moe, ids = next(turns)
        moe.forward(x, ids, gates, out, isa=isa, dynamic=True)

    return step


class TorchLayer(NamedTuple):
    gate_up: torch.Tensor  # [E, 2 I, H]
    down: torch.Tensor  # [E, H, I]


@pytest.fixture(scope="module")
def torch_layers(expert: Expert) -> list[TorchLayer]:
    def of(weights: Bits) -> torch.Tensor:
        return torch.from_numpy(weights).view(torch.bfloat16).repeat(EXPERTS, 1, 1)

    copies = 1 + ENOUGH // (EXPERTS * 2 * 3 * HIDDEN * FFN)
    return [TorchLayer(of(np.concatenate([expert.gate, expert.up])), of(expert.down)) for _ in range(copies)]


@pytest.mark.parametrize("tokens", TOKENS_PER_EXPERT)
def bench_torch_loop(benchmark: BenchmarkFixture, torch_layers: list[TorchLayer], tokens: int) -> None:
    """What `+v` and `+m` replace: one expert after the other, in bf16, as Transformers does it."""
    x = torch.from_numpy(bits(np.random.default_rng(tokens), tokens, HIDDEN)).view(torch.bfloat16)
    turns = cycle([(layer, active) for layer in torch_layers for active in eights()])
    every_token = torch.arange(tokens)

    @torch.inference_mode()
    def step() -> None:
        layer, active = next(turns)
        out = torch.zeros_like(x)
        for e in active:
            gate, up = linear(x[every_token], layer.gate_up[e]).chunk(2, dim=-1)
            out.index_add_(0, every_token, linear(silu(gate) * up, layer.down[e]) / ACTIVE)

    benchmark(step)
    note_rates(benchmark, tokens=tokens, expert_bytes=2 * 3 * HIDDEN * FFN)


@pytest.mark.parametrize("precision", PRECISIONS)
def bench_packing(benchmark: BenchmarkFixture, expert: Expert, team: Team, precision: str) -> None:
    """GB/s of bf16 weights read, the scales of int4 searched."""
    weights = PackedExperts(EXPERTS, HIDDEN, FFN, precision)
    indices = cycle(range(EXPERTS))
    benchmark(lambda: weights.write_expert(next(indices), *expert, team))
    if benchmark.stats is not None:
        benchmark.extra_info["GB/s"] = 2 * 3 * HIDDEN * FFN / benchmark.stats.stats.median / 1e9


@pytest.mark.parametrize("precision", GGUF)
def bench_packing_blocks(benchmark: BenchmarkFixture, team: Team, precision: str) -> None:
    """GB/s of GGUF's blocks read."""
    weights, random = PackedExperts(EXPERTS, HIDDEN, FFN, precision), np.random.default_rng(0)
    block_bytes = {"q8_0": 34, "q4_0": 18}[precision]
    shapes = [(FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)]
    gate, up, down = (random.integers(0, 256, (n, k // 32 * block_bytes), np.uint8) for n, k in shapes)
    indices = cycle(range(EXPERTS))
    benchmark(lambda: weights.write_expert_blocks(next(indices), gate, up, down, team))
    if benchmark.stats is not None:
        benchmark.extra_info["GB/s"] = 3 * gate.nbytes / benchmark.stats.stats.median / 1e9


@pytest.mark.parametrize("kind", ["OpenMP", "pool", "own pool"])
def bench_submit_and_wait(benchmark: BenchmarkFixture, kind: str) -> None:
    """A layer of next to no work: what is left is the way there and back."""
    threads = torch.get_num_threads()
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    team = OpenMPTeam(threads) if kind == "OpenMP" else ThreadPool(cpus, 1000, own=kind == "own pool")
    x = np.zeros((1, 32), np.uint16)
    call = (x, np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32), x.copy())
    moe = MoE(PackedExperts(1, 32, 32), team)
    benchmark(lambda: moe.submit(*call, isa="reference").wait())
