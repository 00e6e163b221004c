"""Bytes that the workers of a plan will hold, of this machine and of its GPU, estimated before anything loads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import TypeAlias

from ktbench.spec.cells import layer_copies, points_of, worker_groups
from ktbench.spec.errors import RequestError
from ktbench.spec.peers import KT_MOST_BYTES, KT_SETTINGS, OURS, peer_of
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.pages import PageMemory, copies_bytes, page_memory, whole_cells
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.shape import cached_in_all, moe_shape, sliced_config
from ktbench.spec.step.work import (
    BF16_BYTES,
    cache_bytes,
    is_mapped,
    linear_bytes,
    packed_bytes,
    plain_bytes,
    sizes_of,
    token_cache_bytes,
    trained_bytes,
)
from ktbench.spec.weights import (
    BY_ACCURACY,
    DEVICE_UNPACKS,
    PAIRS_AT_ONCE,
    STREAMED_CHUNK_BYTES,
    Precision,
    expert_bytes,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineMemory:
    """Bytes of a machine: free for workers, all that it has, and its last-level cache, 0 where these are not known."""

    free_bytes: int = 0
    total_bytes: int = 0
    cache_bytes: int = 0


def blocks_of(cells: Sequence[Cell], memory: MachineMemory) -> tuple[tuple[Cell, ...], ...]:
    """Points whose workers are in memory together, each in the first block that has room for its own."""
    sizes = worker_bytes(cells, memory)
    blocks: list[list[Cell]] = []
    for point in points_of(cells):
        block = next((block for block in blocks if _held([*block, *point], sizes) <= memory.free_bytes), None)
        if block is None:
            blocks.append(block := [])
        block += point
    return tuple(map(tuple, blocks))


def _held(cells: Sequence[Cell], sizes: dict[WeightsKey, int]) -> int:
    return sum(sizes[key] for key in {cell.weights_key for cell in cells})


_GIB = 2**30
_F16_BYTES = 2
# Of a GPU: CUDA's context, workspaces of its libraries, graphs and activations.
GPU_RESERVE_BYTES = 2 * _GIB
# Interpreter, PyTorch and Transformers once imported (resident set of an idle worker), and the buffer of the read roof.
_PROCESS_BYTES = int(0.6 * _GIB)
_ROOF_BYTES = _GIB

# Workloads whose traces a worker keeps, each with the cache that its prompt left.
KEPT_WORKLOADS = 4

WeightsKey: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes of one worker by purpose. `original` are expert weights as checkpoints hold them, `packed` our tiles.

    `dense` are packed linear layers, which come on top of the `others` that they are packed from. What a peer holds in
    a format of its own counts as packed, too. `trained` is what a training step adds: LoRA, its optimiser, and what the
    backward pass needs. `cache` are the pages of served requests, and the copies of them that the
    prefix cache has room for, or the slots of llama.cpp's server.
    """

    original: int
    packed: int
    others: int
    dense: int
    trained: int
    cache: int
    workspace: int
    fixed: int

    @property
    def total(self) -> int:
        """Bytes of the worker."""
        return sum(getattr(self, one.name) for one in fields(self))


def estimate_memory(cells: Sequence[Cell], memory: MachineMemory) -> MemoryEstimate:
    """Estimate for the cells of one worker, which share their weights.

    In the layer phase a worker holds one layer, in as many copies as it takes to read past the cache.
    """
    specs = [cell.spec for cell in cells]
    if specs[0].system != OURS and peer_of(specs[0].system).remote:
        fixed = _PROCESS_BYTES + _ROOF_BYTES
        return MemoryEstimate(original=0, packed=0, others=0, dense=0, trained=0, cache=0, workspace=0, fixed=fixed)
    is_layer = specs[0].workload.phase == "layer"

    def copied(nbytes: int) -> int:
        return nbytes * (layer_copies(nbytes, memory.cache_bytes) if is_layer else 1)

    return MemoryEstimate(
        original=_original(specs, copied(plain_bytes(specs[0]))),
        packed=_packed(specs, copied(packed_bytes(specs[0]))) + _saved(specs),
        others=0 if is_layer else _others(specs[0]),
        dense=linear_bytes(specs[0]) if any(spec.engine.packed_dense or is_mapped(spec) for spec in specs) else 0,
        trained=max(_trained_here(spec) for spec in specs),
        cache=max(*(_cache(spec, memory) for spec in specs), _slots(specs)),
        workspace=max(_workspace(spec) for spec in specs),
        fixed=_PROCESS_BYTES + _ROOF_BYTES,
    )


def _original(specs: Sequence[RunSpec], layout_bytes: int) -> int:
    """A peer of a layer alone is given it as checkpoints hold it, or packs it from there."""
    if _packs_a_layer(specs[0]):
        return specs[0].model.shape.experts * expert_bytes(specs[0].model.shape, "bf16")
    return layout_bytes if any(needs_original(spec) for spec in specs) else 0


def _packed(specs: Sequence[RunSpec], layout_bytes: int) -> int:
    """kt-kernel loads its weights anew for every setting that it is tuned over (`ktbench.peers.kt_kernel.library`).

    zentorch keeps what it is given beside what it packs, int4 unpacked: seen as up to 1.4 times the bytes of bf16.
    """
    if specs[0].system == "zentorch":
        return 2 * max(layout_bytes, _original(specs, layout_bytes))
    if specs[0].system == "kt-kernel":
        return max(layout_bytes, min(KT_SETTINGS * layout_bytes, KT_MOST_BYTES))
    return layout_bytes if _packs_a_layer(specs[0]) or any(needs_packed(spec) for spec in specs) else 0


def _saved(specs: Sequence[RunSpec]) -> int:
    """A layer that is saved is in memory a second time until it is mapped; the largest counts."""
    shape, formats = specs[0].model.shape, specs[0].model.expert_formats(specs[0].precision)
    saves = any(spec.maps_packed and spec.engine.fused for spec in specs)
    return shape.experts * max(expert_bytes(shape, *pair) for pair in formats) if saves else 0


def _packs_a_layer(spec: RunSpec) -> bool:
    """Whether a peer is given the weights of a layer alone, and packs them itself."""
    return spec.workload.phase == "layer" and spec.system not in (OURS, "transformers")


def needs_original(spec: RunSpec) -> bool:
    """Whether a cell runs the experts through PyTorch on weights as checkpoints hold them."""
    return not needs_packed(spec)


def needs_packed(spec: RunSpec) -> bool:
    """Whether a cell runs experts on packed weights: the fused operator, or a peer in its own format."""
    return spec.engine.fused or (spec.system != OURS and len(peer_of(spec.system).types) > 1)


def _others(spec: RunSpec) -> int:
    shape = spec.model.shape
    return (shape.vocab * shape.hidden if is_mapped(spec) else shape.other_params) * BF16_BYTES


def _pages(spec: RunSpec, memory: MachineMemory) -> PageMemory | None:
    """Pages of a cell whose requests our engine serves."""
    if spec.workload.phase != "serve" or spec.system != OURS:
        return None
    shape = spec.model.shape
    numbers = cached_in_all(spec.model.config, shape.layers)
    return page_memory(spec.engine.serving, numbers, shape.positions, memory.total_bytes)


def _cache(spec: RunSpec, memory: MachineMemory) -> int:
    pages = _pages(spec, memory)
    copies = copies_bytes(spec.engine.serving) if spec.engine.prefix_cache else 0
    return 0 if pages is None else pages.nbytes + copies


def _slots(specs: Sequence[RunSpec]) -> int:
    """Keys and values of llama.cpp's server, in F16: of as many of the longest request as any cell has at once."""
    if specs[0].system != "llama-server":
        return 0
    longest = whole_cells(1 + max(map(_longest, specs)))
    numbers = cached_in_all(specs[0].model.config, specs[0].model.shape.layers)
    return max(spec.most_at_once for spec in specs) * longest * numbers * _F16_BYTES


def _longest(spec: RunSpec) -> int:
    stream = spec.workload.stream
    assert stream is not None
    return _longest_prompt(spec.workload.prompt, stream) + (stream.longest_answer or stream.answer)


def _longest_prompt(prompt: int, stream: StreamSpec) -> int:
    """Of lengths that are drawn without a limit the mean counts."""
    return stream.shared_prefix + (stream.longest_prompt or prompt)


def _workspace(spec: RunSpec) -> int:
    """Activations of one step: for each of the k experts of a token its input, gate, up and output in float32."""
    shape = spec.model.shape
    return 4 * _step_tokens(spec) * shape.top_k * (2 * shape.hidden + 3 * shape.expert_ffn)


def _trained_here(spec: RunSpec) -> int:
    """In the memory of the host."""
    adds = trained_bytes(spec)
    return adds.experts + (0 if spec.engine.device == "cuda" else adds.network)


def _step_tokens(spec: RunSpec) -> int:
    """Of the largest step; where requests are served, the next token of each, and prompts, without +k whole ones."""
    work, serving = spec.workload, spec.engine.serving
    if work.stream is None:
        return work.batch * work.prompt
    longest = _longest_prompt(work.prompt, work.stream)
    prompts = serving.chunk_tokens + (0 if spec.engine.chunked_prefill else longest)
    return serving.max_sequences + prompts


def worker_bytes(cells: Sequence[Cell], memory: MachineMemory) -> dict[WeightsKey, int]:
    """Bytes of every worker of a plan by the weights it holds."""
    return {group[0].weights_key: estimate_memory(group, memory).total for group in worker_groups(cells)}


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
        weights=BF16_BYTES * specs[0].model.shape.other_params,
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
    tokens = work.batch * (work.prompt + (work.steps if work.has_context else 0))
    kept = work.has_context or work.chunk is not None
    return tokens * (kept * token_cache_bytes(spec) + sizes_of(spec).expanded_key_bytes)


class NotEnoughMemory(RequestError):
    """What is to be measured does not fit in the memory that is free."""


def require_memory(cells: Sequence[Cell], memory: MachineMemory) -> int:
    """Bytes that are held at once at most: of all workers, or of as many as there is room for.

    The workers of one point stay together, since its cells take turns; those of other points may have to make room.
    Raises NotEnoughMemory naming needed and free bytes where the workers of one point do not fit.
    """
    sizes, free_bytes = worker_bytes(cells, memory), memory.free_bytes
    for point in points_of(cells):
        groups = worker_groups(point)
        needed = sum(sizes[group[0].weights_key] for group in groups)
        if needed > free_bytes:
            part = point[0].part
            raise NotEnoughMemory(
                f"{f'{part}: ' if part else ''}{_model(point[0].spec)} needs {needed / _GIB:.1f} GiB "
                f"({needed:,} bytes), free are {free_bytes / _GIB:.1f} GiB ({free_bytes:,} bytes)"
                f"{_hint(groups, needed - free_bytes, memory)}"
            )
    return min(sum(sizes.values()), free_bytes)


def _model(spec: RunSpec) -> str:
    layers = "one layer" if spec.workload.phase == "layer" else f"{spec.model.shape.layers} layers"
    return f"{spec.model.name} with {layers}"


def _hint(groups: Sequence[Sequence[Cell]], excess: int, memory: MachineMemory) -> str:
    """What fewer pages would do, or leaving layers or experts out, where that is the remedy."""
    spec = groups[0][0].spec
    model = spec.model
    pages = _pages(spec, memory)
    if pages is not None and (left := pages.count - ceil(excess / (len(groups) * pages.page_bytes))) > 0:
        return f"; engine.serving.cache_tokens={left * spec.engine.serving.page_tokens} would fit"
    if model.path is not None:
        return ""
    if spec.workload.phase == "layer":
        return "; build fewer with model.experts=N"
    fitting = _fitting_layers(groups, memory)
    lighter = _lighter(groups, memory)
    whole = f"all layers with precision={lighter}" if lighter else ""
    if not fitting:
        return f"; {whole} would fit" if whole else "; not even one MoE layer fits"
    return f"; model.layers={fitting} would fit{f', or {whole}' if whole else ''}"


def _fitting_layers(groups: Sequence[Sequence[Cell]], memory: MachineMemory) -> int:
    """As many layers as all workers have room for together; 0 where one with routed experts is too much."""
    model = groups[0][0].spec.model
    config, depth, vocab = model.config, model.shape.layers, model.shape.vocab
    layers = [one for one in range(1, depth) if moe_shape(sliced_config(config, depth, one, vocab)).moe_layers]

    def is_too_much(count: int) -> bool:
        sliced = [[replace(cell, spec=_sliced(cell.spec, count)) for cell in group] for group in groups]
        return sum(estimate_memory(group, memory).total for group in sliced) > memory.free_bytes

    found = bisect_left(layers, True, key=is_too_much)
    return layers[found - 1] if found else 0


def _sliced(spec: RunSpec, layers: int) -> RunSpec:
    """The cell on fewer layers; its vocabulary shrinks with the depth, as model.vocab=auto has it."""
    model, shape = spec.model, spec.model.shape
    keeps_all = model.is_slice and shape.vocab == model.full_vocab
    vocab = shape.vocab if keeps_all else max(1, round(shape.vocab * layers / shape.layers))
    return replace(spec, model=replace(model, config=sliced_config(model.config, shape.layers, layers, vocab)))


def _lighter(groups: Sequence[Sequence[Cell]], memory: MachineMemory) -> Precision | None:
    """The most accurate format in which cells fit that all can run in another; None where there is none."""
    cells = [cell for group in groups for cell in group]
    if not all(cell.spec.system == "ktbench" and cell.spec.engine.fused for cell in cells):
        return None
    for precision in BY_ACCURACY:
        packed = [replace(cell, spec=replace(cell.spec, precision=precision)) for cell in cells]
        if sum(worker_bytes(packed, memory).values()) <= memory.free_bytes:
            return precision
    return None
