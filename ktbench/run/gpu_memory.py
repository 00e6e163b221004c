"""Bytes that the workers of a plan will take of a GPU, by purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.sim.sizes import sizes_of
from ktbench.spec.cells import worker_groups
from ktbench.spec.memory import GPU_RESERVE_BYTES, KEPT_WORKLOADS, cache_bytes, token_cache_bytes, trained_bytes
from ktbench.spec.peers import OURS
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import DEVICE_UNPACKS, PAIRS_AT_ONCE, STREAMED_CHUNK_BYTES, expert_bytes

_BF16_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """Bytes of a GPU that one worker takes, by purpose.

    `weights` are all but routed experts, `experts` those that live there or pass through, `cache` keys and values of
    prompts and steps. Prompts of prefill are run anew each time. `trained` is what training adds to the network.
    """

    weights: int
    experts: int
    cache: int
    trained: int = 0
    reserve: int = GPU_RESERVE_BYTES

    @property
    def total(self) -> int:
        """Bytes of the worker."""
        return self.weights + self.experts + self.cache + self.trained + self.reserve


def gpu_memory(specs: Sequence[RunSpec], nodes: int) -> GpuMemory:
    """What cells of this machine that share their weights, and take turns, need of its GPU.

    The engine's device role is in bf16. Cells whose experts are split over several NUMA `nodes` hold those of the
    device in bf16, too.
    """
    prompts = {spec.workload: cache_bytes(spec) for spec in specs}
    return GpuMemory(
        weights=_BF16_BYTES * specs[0].model.shape.other_params,
        experts=max(_gpu_expert_bytes(spec, nodes) for spec in specs),
        cache=sum(sorted(prompts.values())[-KEPT_WORKLOADS:]) + max(_step_cache_bytes(spec) for spec in specs),
        trained=max(trained_bytes(spec).network for spec in specs),
    )


def gpu_workers(cells: Sequence[Cell], nodes: int) -> list[tuple[RunSpec, GpuMemory]]:
    """The workers of cells that use a GPU, each with the spec of its first cell."""
    on_gpu = [cell for cell in cells if cell.spec.engine.device == "cuda"]
    groups = [[cell.spec for cell in group] for group in worker_groups(on_gpu)]
    return [(specs[0], gpu_memory(specs, nodes)) for specs in groups]


def _gpu_expert_bytes(spec: RunSpec, nodes: int) -> int:
    """Experts that live there and room to unpack some; of a pass that streams, both buffers and a chunk unpacked.

    Fiddler's scheme has room for one.
    """
    engine, shape = spec.engine, spec.model.shape
    bf16 = expert_bytes(shape, "bf16")
    if spec.system != OURS:
        return bf16
    parts = engine.domains or (nodes if spec.model.packed is None else 1)
    held = expert_bytes(shape, spec.precision if spec.precision in DEVICE_UNPACKS and parts == 1 else "bf16")
    chunk = max(1, STREAMED_CHUNK_BYTES // held)
    if engine.device_prefill_tokens:
        return chunk * (2 * held + bf16)
    placed = round(engine.placement.ratio * shape.moe_layers * shape.experts)
    at_once = PAIRS_AT_ONCE if held == bf16 else max(chunk, PAIRS_AT_ONCE)
    return placed * held + (at_once * bf16 if placed else 0)


def _step_cache_bytes(spec: RunSpec) -> int:
    """The cache as it grows in a trial, and keys and values of one layer as attention reads them.

    Of latent attention the cache has the latents, which are expanded one layer after the other. Prefill in one pass
    keeps nothing.
    """
    work = spec.workload
    if work.phase == "train":
        return 0
    tokens = work.batch * (work.prompt + (work.steps if work.phase == "decode" else 0))
    kept = work.phase == "decode" or work.chunk is not None
    return tokens * (kept * token_cache_bytes(spec) + sizes_of(spec).expanded_key_bytes)
