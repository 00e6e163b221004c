"""What the hand-over between device and host costs, layer by layer in one graph: its parts, and both mechanisms.

    python -m tests.gpu.handover [--dry-run]

Times are medians over launches of a graph, divided by its layers. `--dry-run` takes a device of CPU tensors.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ktbench._kernels import HandOver, MoE, PackedExperts, ThreadPool, grants
from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.cuda.graph import CudaCapturing
from ktbench.engine.cuda.handover import HostLink
from ktbench.engine.cuda.offload import HostOffloadBackend
from ktbench.engine.cuda.stream import CurrentStream, SideStream
from ktbench.engine.decode.timeline import ModuleWatch
from ktbench.engine.roles import new_threads_on, reach, split_cpus
from ktbench.engine.routing import Routing
from ktbench.host.topology import read_topology
from ktbench.spec.engine import EngineSpec, Handover

LAYERS, LAUNCHES = 48, 60
HIDDEN, FFN, EXPERTS, TOP_K = 2048, 32, 8, 8  # of Qwen3-30B-A3B, but for the experts, which are to take no time
_LINK_BYTES = 1 << 30
MECHANISMS: tuple[Handover, ...] = ("host_function", "flags")


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A device: where tensors are made, its streams and captures, and where the host's threads run."""

    device: torch.device
    current: Any
    side: Any
    capturing: Any
    callbacks: tuple[int, ...]
    pool: tuple[int, ...]

    @property
    def is_real(self) -> bool:
        """Whether it is a CUDA device."""
        return self.device.type == "cuda"


class Experts:
    """Small experts of one layer on a pool of the host, as `FusedExperts` offers them."""

    settings = None

    def __init__(self, pool: ThreadPool) -> None:
        packed, draw = PackedExperts(EXPERTS, HIDDEN, FFN), np.random.default_rng(0)
        for i in range(EXPERTS):
            shapes = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
            packed.write_expert(i, *(_bits(torch.from_numpy(draw.standard_normal(s))) for s in shapes))
        self._moe = MoE(packed, pool)

    def host_call(self, hidden: Tensor, routing: Routing, output: Tensor) -> Any:
        arrays = hidden.view(torch.uint16).numpy(), routing.ids.numpy(), routing.gates.numpy()
        return self._moe.host_call(*arrays, output.view(torch.uint16).numpy(), **_widest())

    @staticmethod
    def hand_over(*calls: Any) -> HandOver:
        return HandOver(*calls)

    def alone_s(self) -> float:
        """Seconds of a call of one token by itself."""
        hidden = np.zeros((1, HIDDEN), np.uint16)
        call = hidden, np.arange(TOP_K)[None], np.ones((1, TOP_K), np.float32), np.empty_like(hidden)
        return _median_s(lambda: self._moe.submit(*call, **_widest()).wait())


def _widest() -> dict[str, bool]:
    return {next(name for name in ("avx512", "avx2") if not grants()[name]): True}


def _bits(matrix: Tensor) -> Any:
    return matrix.bfloat16().view(torch.uint16).numpy()


def _median_s(run: Callable[[], object], times: int = LAUNCHES) -> float:
    seen = []
    for _ in range(times):
        began = perf_counter()
        run()
        seen.append(perf_counter() - began)
    return median(seen)


def open_device() -> Opened:
    """The CUDA device as the engine opens it: CUDA's threads on a core that launches no kernels and runs no experts."""
    cpus = read_topology().core_cpus
    roles = split_cpus(cpus, EngineSpec(device="cuda"))
    os.sched_setaffinity(0, roles.device[:1])
    with new_threads_on(roles.callbacks):
        device = torch.device("cuda", torch.cuda.current_device())
        side = SideStream()
        side.start()
    return Opened(
        device=device,
        current=CurrentStream(),
        side=side,
        capturing=CudaCapturing(),
        callbacks=roles.callbacks,
        pool=roles.host,
    )


def open_fake() -> Opened:
    """CPU tensors that stand for a device."""
    from tests.engine.cuda.fakes import FakeDevice

    device = FakeDevice()
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return Opened(
        device=torch.device("cpu"), current=device, side=device, capturing=device, callbacks=cpus[:1], pool=cpus[-1:]
    )


def layer_us(opened: Opened, put: Callable[[Tensor], object], layers: int) -> float:
    """Microseconds of a layer in a graph of so many, each of which is what `put` does with a tensor on the device."""
    x = torch.zeros(1, HIDDEN, dtype=torch.bfloat16, device=opened.device)

    def run() -> None:
        for _ in range(layers):
            x.add_(1)
            put(x)

    with torch.inference_mode():
        with opened.capturing.aside():
            run()
        with opened.capturing.captured() as graph:
            run()

        def launch() -> None:
            graph.replay()
            opened.current.finish()

        return 1e6 * _median_s(launch) / layers


def parts(opened: Opened, layers: int) -> Iterator[str]:
    """What each node of a hand-over adds to a layer that is one small kernel."""
    host = torch.empty(1, HIDDEN, dtype=torch.bfloat16, pin_memory=opened.is_real)
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0
    kernel = layer_us(opened, lambda x: None, layers)
    yield f"one small kernel: {kernel:.2f} us a layer"

    def beside(put: Callable[[Tensor], object]) -> float:
        def forked(x: Tensor) -> None:
            opened.side.fork()
            put(x)
            opened.side.join()

        return layer_us(opened, forked, layers) - kernel

    yield f"  to the side stream and back: {beside(lambda x: None):+.2f} us"
    yield f"  and a function of the host: {beside(lambda x: opened.side.call(nothing, 0)):+.2f} us"
    yield f"  and a copy to the host: {beside(lambda x: opened.side.copy(host, x)):+.2f} us"
    yield f"  and a copy to the device: {beside(lambda x: opened.side.copy(x, host)):+.2f} us"
    if opened.is_real:
        yield from _mapped(opened, host, kernel, layers)


def _mapped(opened: Opened, host: Tensor, kernel_us: float, layers: int) -> Iterator[str]:
    """The same bytes by a kernel that writes, or reads, the host's memory itself."""

    seen = SimpleNamespace(
        __cuda_array_interface__={
            "shape": (host.nbytes,),
            "typestr": "|u1",
            "data": (host.data_ptr(), False),
            "version": 3,
        }
    )
    try:
        mapped = torch.as_tensor(seen, device=opened.device).view(torch.bfloat16).view(host.shape)
    except (RuntimeError, TypeError, ValueError) as error:
        yield f"  mapped memory: PyTorch does not take it as the device's: {str(error).splitlines()[0]}"
        return
    yield f"  a kernel writes mapped memory: {layer_us(opened, mapped.add_, layers) - kernel_us:+.2f} us"
    yield f"  a kernel reads mapped memory: {layer_us(opened, lambda x: x.add_(mapped), layers) - kernel_us:+.2f} us"


def mechanisms(opened: Opened, layers: int) -> Iterator[str]:
    """A layer's whole hand-over of one token beyond its experts, by each mechanism, on time and with deferral."""
    with reach(opened.pool):
        pool = ThreadPool(list(opened.pool), 2000, own=True)
    experts = Experts(pool)
    alone_us = 1e6 * experts.alone_s()
    yield f"experts by themselves: {alone_us:.2f} us on {len(opened.pool)} threads"
    kernel_us = layer_us(opened, lambda x: None, layers)
    for name in MECHANISMS:
        link = HostLink(opened.side, pinned=opened.is_real, cpus=opened.callbacks if opened.is_real else ())
        try:
            link.choose(name)
            backend: Any = HostOffloadBackend(experts, link, ModuleWatch(), layer=0)  # type: ignore[arg-type]
            for deferred in (0, 3):
                took_us = layer_us(opened, _two_layers(backend, opened.device, deferred), layers // 2) / 2
                yield f"hand-over by {name}, {deferred} deferred: {took_us - kernel_us / 2 - alone_us:.2f} us a layer"
            link.mechanism.check()
            backend.check()
            del backend
            link.choose("host_function")
        except (OSError, RuntimeError) as error:  # the other mechanism counts all the same
            yield f"hand-over by {name}: FAILED: {str(error).splitlines()[0]}"


def _two_layers(backend: ExpertsBackend, device: torch.device, deferred: int) -> Callable[[Tensor], object]:
    """The second adds what the first defers, and defers nothing."""
    ids, gates = torch.arange(TOP_K, device=device)[None], torch.ones(1, TOP_K, device=device) / TOP_K
    on_time = TOP_K - deferred
    due = Routing(ids=ids[:, :on_time].contiguous(), gates=gates[:, :on_time].contiguous())
    late = Routing(ids=ids[:, on_time:].contiguous(), gates=gates[:, on_time:].contiguous()) if deferred else None

    def put(x: Tensor) -> None:
        fetch, following = backend.begin(x, due, late, None)
        x.copy_(fetch())
        fetch, _ = backend.begin(x, due, None, following)
        x.copy_(fetch())

    return put


def placed(opened: Opened, layers: int) -> Iterator[str]:
    """A function of the host where CUDA's threads share the core of the thread that waits, against a core of theirs."""
    main, own = os.sched_getaffinity(0), set(opened.callbacks)
    ours = [thread for thread in _threads() if os.sched_getaffinity(thread) == own and thread != os.getpid()]
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0
    for where, cores in (("with the waiting thread", main), ("by themselves", own)):
        for thread in ours if opened.is_real else ():
            os.sched_setaffinity(thread, cores)
        took_us = layer_us(opened, lambda x: opened.side.call(nothing, 0), 1)
        yield f"a launch with a function of the host, {len(ours)} threads of CUDA {where}: {took_us:.2f} us"


def _threads() -> list[int]:
    return sorted(int(task.name) for task in Path("/proc/self/task").iterdir())


def link_speed(opened: Opened) -> Iterator[str]:
    """GB/s of pinned copies both ways, for experts that stream to the device."""
    nbytes = _LINK_BYTES if opened.is_real else 1 << 20
    host = torch.ones(nbytes, dtype=torch.uint8, pin_memory=opened.is_real)
    device = torch.empty_like(host, device=opened.device, pin_memory=False)
    for name, to, source in (("device", device, host), ("host", host, device)):

        def copy(to: Tensor = to, source: Tensor = source) -> None:
            opened.current.finish()
            to.copy_(source, non_blocking=True)
            opened.current.finish()

        yield f"{nbytes >> 20:,} MiB pinned to the {name}: {nbytes / _median_s(copy, 5) / 1e9:.1f} GB/s"


def main(words: Sequence[str] | None = None) -> None:
    """Print a line for each measurement when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--layers", type=int, default=LAYERS)
    asked = parser.parse_args(words)
    opened = open_fake() if asked.dry_run else open_device()
    for lines in (parts, mechanisms, placed):
        for line in lines(opened, asked.layers):
            print(line, flush=True)
    for line in link_speed(opened):
        print(line, flush=True)


if __name__ == "__main__":
    main()
