"""What a GPU machine is: `machine` prints facts as JSON; `device` prints where CUDA's threads run, and attention."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Heads, width of keys and of values: of Qwen3-30B-A3B, of DeepSeek-V3, and a small one, batch and heads first.
_SHAPES = (((1, 32, 1, 128), 128), ((1, 128, 1, 192), 128), ((2, 4, 1, 24), 16))


def machine() -> dict[str, Any]:
    """Facts and ids as records keep them, and by capability why it is missing."""
    from ktbench.host.capabilities import machine_capabilities
    from ktbench.host.environment import environment

    here = environment()
    return {
        "code_id": here.code_id,
        "env_id": here.env_id,
        "commit": here.facts["commit"],
        "dirty": here.facts["dirty"],
        "missing": machine_capabilities(),
        "facts": here.facts,
    }


def threads(before: set[int]) -> Iterator[str]:
    """Name and cores of each thread of this process that was not there before."""
    for thread in sorted(_threads() - before):
        name = Path(f"/proc/self/task/{thread}/comm").read_text().strip()
        yield f"thread {name} runs on {sorted(os.sched_getaffinity(thread))}"


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def device() -> Iterator[str]:
    """Lines on the threads that CUDA starts as the engine opens it, and on the kernels that attention takes."""
    import torch

    if not torch.cuda.is_available():
        yield "no CUDA device"
        return
    from ktbench.engine.decode.program import CallRecorder
    from ktbench.engine.load import open_cuda
    from ktbench.engine.roles import new_threads_on, split_cpus
    from ktbench.host.topology import read_topology
    from ktbench.spec.engine import EngineSpec

    before, roles = _threads(), split_cpus(read_topology().core_cpus, EngineSpec(device="cuda"))
    os.sched_setaffinity(0, roles.device[:1])
    with new_threads_on(roles.callbacks):
        open_cuda(CallRecorder())
    yield f"callbacks belong on {list(roles.callbacks)}, the host role on {list(roles.host)}"
    yield from threads(before)
    for shape, values in _SHAPES:
        yield from _attention(shape, values)


def _attention(shape: tuple[int, ...], values: int) -> Iterator[str]:
    """First call, second call and kernel of decode attention over two lengths, with and without a mask."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    for length in (72, 73):
        k = torch.randn(*shape[:2], length, shape[3], device="cuda", dtype=torch.bfloat16)
        mask = torch.ones(shape[0], 1, 1, length, dtype=torch.bool, device="cuda")
        for name, given in (("no mask", None), ("mask", mask)):
            kernel = torch._fused_sdp_choice(q, k, k[..., :values], attn_mask=given)
            took_ms = []
            for _ in range(2):
                torch.cuda.synchronize()
                began = time.perf_counter()
                output = scaled_dot_product_attention(q, k, k[..., :values], attn_mask=given)
                torch.cuda.synchronize()
                took_ms.append(1e3 * (time.perf_counter() - began))
            finite = "finite" if output.isfinite().all() else "NOT FINITE"
            took = f"{took_ms[0]:.1f} then {took_ms[1]:.2f} ms, {finite}"
            yield f"attention {shape} over {length}, {name}: kernel {kernel}, {took}"


def main(word: str) -> None:
    """Print what is asked for."""
    if word == "machine":
        print(json.dumps(machine()))
    else:
        for line in device():
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
