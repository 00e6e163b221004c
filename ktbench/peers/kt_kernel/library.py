"""What of kt-kernel is called: pools of workers, and experts that are loaded and run on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ktbench.engine.forms import ExpertStore
from ktbench.engine.protocol import Unsupported
from ktbench.engine.roles import reach
from ktbench.peers.kt_kernel.settings import Setting
from ktbench.spec.peers import BY_NAME
from ktbench.spec.shape import MoEShape

# By the peer's format. On CPUs without AMX these run AVX-512.
_CLASSES = {"bf16": "AMXBF16_MOE", "int8": "AMXInt8_MOE", "int4": "AMXInt4_MOE"}
# Its buffers hold whole tiles: M_STEP of its kernels is 32.
_TOKENS_STEP = 32
_TASKS = Path("/proc/self/task")
_WORKER = "numa_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """The package: `extension` is its compiled module, `variant` the instruction sets that this was built for."""

    extension: Any
    version: str
    variant: str

    @classmethod
    def load(cls) -> Library:
        """Imports kt-kernel. Raises Unsupported where it is not installed or has no build for this CPU."""
        try:
            import kt_kernel
        except (ImportError, RuntimeError) as error:
            install = BY_NAME["kt-kernel"].install
            raise Unsupported(
                f"kt-kernel cannot be imported ({error}): {install} makes an environment with it"
            ) from None
        return cls(extension=kt_kernel.kt_kernel_ext, version=kt_kernel.__version__, variant=kt_kernel.__cpu_variant__)

    def experts_class(self, kind: str) -> Any:
        """The class that runs experts stored as bf16, int8 or int4. Raises Unsupported where the build has none."""
        found = getattr(self.extension.moe, _CLASSES[kind], None)
        if found is None:
            raise Unsupported(f"kt-kernel {self.version} ({self.variant}): has no {_CLASSES[kind]} on this CPU")
        return found


class Pool:
    """Workers on one cpu of each core, and the thread that hands calls over to them.

    That thread spins while they work: it is kept to the cores without a worker, or else to the last one.
    """

    def __init__(self, library: Library, setting: Setting, cpus: Sequence[int]) -> None:
        config = library.extension.WorkerPoolConfig()
        config.subpool_count = len(setting.nodes)
        config.subpool_numa_map, config.subpool_thread_count = list(setting.nodes), list(setting.workers)
        before = set(_threads())
        with reach(cpus):
            self.cpu_infer = library.extension.CPUInfer(config)
        _place({thread: name for thread, name in _threads().items() if thread not in before}, setting, cpus)

    def run(self, task: Any) -> None:
        """A task from begin to end."""
        self.cpu_infer.submit(task)
        self.cpu_infer.sync()


def _threads() -> dict[int, str]:
    """Name of each thread of this process by its id."""
    return {int(task.name): (task / "comm").read_text().strip() for task in _TASKS.iterdir()}


def _place(threads: dict[int, str], setting: Setting, cpus: Sequence[int]) -> None:
    """Workers call themselves after node and core, such as `numa_0_t_1`, and count the cores of the whole node.

    On one node they are sent to the cores that were given; on several they stay where they are.
    """
    spare = set(cpus[sum(setting.workers) :]) or {cpus[-1]}
    for thread, name in threads.items():
        if not name.startswith(_WORKER):
            os.sched_setaffinity(thread, spare)
        elif len(set(setting.nodes)) == 1:
            os.sched_setaffinity(thread, {cpus[int(name.rpartition("_")[2])]})


def load_experts(library: Library, kind: str, pool: Pool, shape: MoEShape, store: ExpertStore, most_tokens: int) -> Any:
    """The experts of one layer in kt-kernel's own memory, for calls of up to `most_tokens` tokens.

    Weights come from `store`, which need not hold more than one expert; for the time of loading all are here as bf16.
    Raises Unsupported for sizes that its tiles cannot hold.
    """
    gate, up, down = _stacked(store, shape)
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


def _stacked(store: ExpertStore, shape: MoEShape) -> tuple[Tensor, Tensor, Tensor]:
    rows = (shape.experts, shape.expert_ffn, shape.hidden)
    gate, up = (torch.empty(rows, dtype=torch.bfloat16) for _ in range(2))
    down = torch.empty((shape.experts, shape.hidden, shape.expert_ffn), dtype=torch.bfloat16)
    for i in range(shape.experts):
        expert = store(i)
        gate[i], up[i], down[i] = expert.gate, expert.up, expert.down
    return gate, up, down
