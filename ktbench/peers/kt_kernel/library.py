"""The parts of kt-kernel that are called: settings, pools of workers, and experts loaded and run on them.

Letters: T tokens, k experts of a token, H hidden width. Its weight layouts are from its sources,
kt-kernel/operators/amx/la: `BufferB::_pack_block` of amx_kernels.hpp for int8, `BufferBInt4Impl` of amx_buffers.hpp for
int4.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ktbench.engine.forms import ExpertMatrices, ExpertStore
from ktbench.engine.layer import Call
from ktbench.engine.protocol import Unsupported
from ktbench.engine.roles import reach
from ktbench.engine.routing import Routing
from ktbench.peers.layers import BoundBackend, Rounding
from ktbench.resources import in_checkout
from ktbench.spec.peers import BY_NAME, KT_MOST_BYTES
from ktbench.spec.shape import MoEShape

# Up to this many cores, starting with a core without a worker would lose too much.
_FEW_CORES = 4

# By the peer's format, the fastest first; those of AMX run AVX-512 on CPUs without AMX.
_CLASSES = {"bf16": ("AMXBF16_MOE", "AVX2BF16_MOE"), "int8": ("AMXInt8_MOE",), "int4": ("AMXInt4_MOE",)}
# Its buffers hold whole tiles: M_STEP of its kernels is 32.
_TOKENS_STEP = 32
_TASKS = Path("/proc/self/task")
_WORKER = "numa_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The pools that share a call, each with a part of every expert: NUMA node and workers of each."""

    nodes: tuple[int, ...]
    workers: tuple[int, ...]

    @property
    def threads(self) -> int:
        """Workers of all pools."""
        return sum(self.workers)

    @property
    def context(self) -> None:
        """Empty: nothing is slow to change, since the weights of every setting are loaded beforehand."""
        return None

    def __str__(self) -> str:
        """As notes write it: `2 workers in 1 pool`."""
        workers, pools = sum(self.workers), len(self.workers)
        return f"{workers} worker{'s' * (workers > 1)} in {pools} pool{'s' * (pools > 1)}"


def settings_for(cores: int, nodes: Sequence[int], copies_bytes: int) -> tuple[Setting, ...]:
    """Settings to try on `cores` cores of these NUMA nodes, beginning with the default.

    The thread that submits a call spins until the workers are done. So a worker on every core is one thread too many,
    while on few cores a core without a worker is a large loss: both are tried, and on one node also a pool for each
    half of the cores, which synchronise once per call instead of after each phase. As many settings as fit into 8 GiB
    with the weights of each, `copies_bytes`, but at least one. Raises Unsupported for nodes that kt-kernel cannot
    number.
    """
    pools = len(nodes)
    if tuple(nodes) != tuple(range(pools)):
        raise Unsupported(f"kt-kernel has a pool for each NUMA node from 0 on, these cores lie on {list(nodes)}")
    if cores < pools:
        raise Unsupported(f"kt-kernel needs a worker on each of {pools} NUMA nodes, there are {cores} threads")
    settings = [Setting(nodes=tuple(nodes), workers=_share_cores(cores, pools))]
    if cores > pools:
        settings.append(Setting(nodes=tuple(nodes), workers=_share_cores(cores - 1, pools)))
    if cores > _FEW_CORES:
        settings.reverse()
    if pools == 1 and cores > 1:
        settings.append(Setting(nodes=(0, 0), workers=_share_cores(cores, 2)))
    return tuple(settings[: max(1, KT_MOST_BYTES // copies_bytes)])


def _share_cores(cores: int, pools: int) -> tuple[int, ...]:
    return tuple(cores // pools + (i < cores % pools) for i in range(pools))


def as_stored(expert: ExpertMatrices, kind: str, pools: int) -> ExpertMatrices:
    """The values of an expert's matrices when stored as bf16, int8 or int4.

    Each row has one scale. The columns of `down` are split over the pools, and each pool scales its own part.
    """
    stored = _STORED[kind]
    down = torch.cat([stored(part) for part in expert.down.float().chunk(pools, dim=1)], dim=1)
    return replace(expert, gate=stored(expert.gate.float()), up=stored(expert.up.float()), down=down)


def _int4(matrix: Tensor) -> Tensor:
    """An int8 of up to 112 in magnitude, rounded to a multiple of 16 (-7 to 7 times 16), ties away from 0."""
    fine, scales = Rounding(most=112).numbers(matrix)
    coarse = torch.sign(fine) * torch.floor((fine.float().abs() + 8) / 16) * 16
    return coarse * scales


_STORED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "bf16": lambda matrix: matrix,
    "int8": Rounding(most=127),
    "int4": _int4,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class KtExperts(BoundBackend):
    """One layer on one pool: `experts` is kt-kernel's object, `store` gives its original bf16 weights.

    Implements `BindableBackend`.
    """

    experts: Any
    pool: Pool
    store: ExpertStore
    kind: str
    pools: int
    most_tokens: int

    def bind(self, hidden: Tensor, routing: Routing, output: Tensor) -> Call:
        """The call on `hidden` [T, H] that writes `output` [T, H], both bf16 and contiguous.

        Raises ValueError for more tokens than there is room for, which kt-kernel does not check.
        """
        if len(hidden) > self.most_tokens:
            raise ValueError(f"kt-kernel was given room for {self.most_tokens} tokens, this call has {len(hidden)}")
        count = torch.tensor([len(hidden)], dtype=torch.int32)
        ids, gates = routing.ids.contiguous(), routing.gates.contiguous()
        pointers = (tensor.data_ptr() for tensor in (ids, gates, hidden, output))
        task = self.experts.forward_task(count.data_ptr(), ids.shape[1], *pointers, False)
        return _Task(pool=self.pool, task=task, arrays=(count, ids, gates, hidden), output=output)

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as kt-kernel stores them, float32."""
        return as_stored(self.store(i), self.kind, self.pools)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """A kt-kernel task and the memory to which it points."""

    pool: Pool
    task: Any
    arrays: tuple[Tensor, ...]
    output: Tensor

    def __call__(self) -> Tensor:
        self.pool.run(self.task)
        return self.output


@dataclass(frozen=True, kw_only=True, slots=True)
class KtLibrary:
    """The package: `extension` is its compiled module, `variant` the instruction sets for which it was built."""

    extension: Any
    version: str
    variant: str

    @classmethod
    def load(cls) -> KtLibrary:
        """Imports kt-kernel. Raises Unsupported if it is not installed or has no build for this CPU."""
        try:
            import kt_kernel
        except (ImportError, RuntimeError) as error:
            install = in_checkout(BY_NAME["kt-kernel"].install)
            raise Unsupported(
                f"kt-kernel cannot be imported ({error}): {install} makes an environment with it"
            ) from None
        return cls(extension=kt_kernel.kt_kernel_ext, version=kt_kernel.__version__, variant=kt_kernel.__cpu_variant__)

    def experts_class(self, kind: str) -> Any:
        """The class that runs experts stored as bf16, int8 or int4. Raises Unsupported if the build has none."""
        names = [name for name in _CLASSES[kind] if hasattr(self.extension.moe, name)]
        if not names:
            raise Unsupported(f"kt-kernel {self.version} ({self.variant}): has no {_CLASSES[kind][-1]} on this CPU")
        return getattr(self.extension.moe, names[0])


class Pool:
    """Workers on one cpu of each core, and the thread that submits calls to them.

    That thread spins while they work: it is restricted to the cores without a worker, or else to the last core.
    """

    def __init__(self, library: KtLibrary, setting: Setting, cpus: Sequence[int]) -> None:
        config = library.extension.WorkerPoolConfig()
        config.subpool_count = len(setting.nodes)
        config.subpool_numa_map, config.subpool_thread_count = list(setting.nodes), list(setting.workers)
        before = set(_threads())
        with reach(cpus):
            self.cpu_infer = library.extension.CPUInfer(config)
        _place({thread: name for thread, name in _threads().items() if thread not in before}, setting, cpus)

    def run(self, task: Any) -> None:
        """Run a task to its end."""
        self.cpu_infer.submit(task)
        self.cpu_infer.sync()


def _threads() -> dict[int, str]:
    """Names of this process's threads by id."""
    return {int(task.name): (task / "comm").read_text().strip() for task in _TASKS.iterdir()}


def _place(threads: dict[int, str], setting: Setting, cpus: Sequence[int]) -> None:
    """Workers are named after node and core, such as `numa_0_t_1`, numbering the cores of the whole node.

    On one node they are pinned to the given cores; on several they stay where they are.
    """
    spare = set(cpus[sum(setting.workers) :]) or {cpus[-1]}
    for thread, name in threads.items():
        if not name.startswith(_WORKER):
            os.sched_setaffinity(thread, spare)
        elif len(set(setting.nodes)) == 1:
            os.sched_setaffinity(thread, {cpus[int(name.rpartition("_")[2])]})


def load_experts(
    library: KtLibrary, kind: str, pool: Pool, shape: MoEShape, store: ExpertStore, most_tokens: int
) -> Any:
    """The experts of one layer in kt-kernel's own memory, for calls of up to `most_tokens` tokens.

    Weights come from `store`, which need not hold more than one expert; while loading, all are held as bf16. Raises
    Unsupported for sizes that its tiles cannot hold.
    """
    gate, up, down = _stack(store, shape)
    config = library.extension.moe.MOEConfig(shape.experts, shape.top_k, shape.hidden, shape.expert_ffn, 0)
    config.max_len = -(-most_tokens // _TOKENS_STEP) * _TOKENS_STEP
    config.gate_proj, config.up_proj, config.down_proj = gate.data_ptr(), up.data_ptr(), down.data_ptr()
    config.pool = pool.cpu_infer.backend_
    try:
        experts = library.experts_class(kind)(config)
    except RuntimeError as error:
        sizes = f"hidden={shape.hidden} and expert width {shape.expert_ffn}"
        raise Unsupported(f"kt-kernel cannot hold {kind} experts of {sizes}: {error}") from None
    pool.run(experts.load_weights_task())
    return experts


def _stack(store: ExpertStore, shape: MoEShape) -> tuple[Tensor, Tensor, Tensor]:
    rows = (shape.experts, shape.expert_ffn, shape.hidden)
    gate, up = (torch.empty(rows, dtype=torch.bfloat16) for _ in range(2))
    down = torch.empty((shape.experts, shape.hidden, shape.expert_ffn), dtype=torch.bfloat16)
    for i in range(shape.experts):
        expert = store(i)
        gate[i], up[i], down[i] = expert.gate, expert.up, expert.down
    return gate, up, down
