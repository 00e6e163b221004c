"""The worker's side: load once, then take turns until the parent goes away."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from ktbench.engine.protocol import HostRole, System, Unsupported
from ktbench.engine.roles import reach, split_cpus
from ktbench.engine.weight_plan import WeightPlan
from ktbench.host.cuda import read_cuda_devices
from ktbench.host.energy import open_meters
from ktbench.host.roofs import Roofs, open_pool_roofs, open_roofs, pin_openmp
from ktbench.host.topology import Topology, read_topology
from ktbench.host.watch import MachineWatch
from ktbench.peers.opening import open_peer
from ktbench.run.messages import Answer, Open, Task, Trace, send
from ktbench.run.session import RoofSampler, Session, Unwatched, Watch
from ktbench.spec.peers import BY_NAME
from ktbench.spec.run_spec import RunSpec


def open_system(
    specs: Sequence[RunSpec], cpus: Sequence[int], cache_bytes: int = 0, nodes: Sequence[int] = (0,)
) -> System:
    """The system for cells that share weights: loads once, in every layout that a cell needs.

    `cpus` has one cpu of every core that it may use; they lie on these NUMA nodes and share `cache_bytes` of
    last-level cache (0: not known).
    """
    host = HostRole(cores=len(cpus), cpus=tuple(cpus), nodes=tuple(nodes), cache_bytes=cache_bytes)
    if specs[0].system != "ktbench":
        return open_peer(specs, host)
    holding = WeightPlan.of(specs, host)
    if specs[0].workload.phase == "layer":
        from ktbench.engine.load_layer import load_layer

        return load_layer(specs[0].model, host=host, keep_original=holding.original, packing=holding.packing)
    from ktbench.engine.load import load_engine

    return load_engine(specs[0].model, holding, host)


_PR_SET_PDEATHSIG = 1
# Beyond what a peer's threads spin: until they sleep.
_REST_S = 0.01
OpenSystem = Callable[[Sequence[RunSpec]], System]
OpenRoofs = Callable[[Sequence[RunSpec]], RoofSampler]
OpenWatch = Callable[[Sequence[RunSpec]], Watch]


def serve(
    open_system: OpenSystem,
    open_roofs: OpenRoofs,
    requests: IO[bytes],
    answers: IO[bytes],
    open_watch: OpenWatch = lambda specs: Unwatched(),
) -> int:
    """Serve one parent: returns when its end of the pipe closes."""
    die_with_parent()
    opened = msgspec.json.decode(requests.readline(), type=Open)
    specs = [cell.spec for cell in opened.cells]
    try:
        session = Session(
            system=open_system(specs),
            roofs=open_roofs(specs),
            code_id=opened.code_id,
            env_id=opened.env_id,
            sitting=opened.sitting,
            watch=open_watch(specs),
        )
        send(answers, Answer())
        for line in requests:
            send(answers, _answer(session, msgspec.json.decode(line, type=Task)))
    except Unsupported as error:
        send(answers, Answer(unsupported=str(error)))
        return 1
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        send(answers, Answer(no_memory=str(error).splitlines()[0] if str(error) else "out of memory"))
        return 1
    return 0


def _answer(session: Session, task: Task) -> Answer:
    if not isinstance(task, Trace):
        logits = None if task.logits is None else Path(task.logits)
        return Answer(record=session.turn(task.cell, task.round, logits))
    try:
        return Answer(timeline=session.timeline(task.cell))
    except Unsupported as error:
        return Answer(unsupported=str(error))


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch reports a failed allocation as a RuntimeError, ours is a MemoryError."""
    text = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, however that ends (Linux, prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit("the parent ended before the worker started")


def main() -> int:
    """Entry of `python -m ktbench.run.serve ANSWERS_FD`: requests on standard input."""
    # One thread for each physical core. PyTorch's OpenMP counts the cores when it is loaded, so this comes first.
    topology = read_topology()
    os.sched_setaffinity(0, topology.core_cpus)
    import torch  # noqa: F401

    with os.fdopen(int(sys.argv[1]), "wb") as answers:
        return serve(
            lambda specs: _system(specs, topology),
            lambda specs: _roofs(specs, topology),
            sys.stdin.buffer,
            answers,
            lambda specs: _watch(specs, topology),
        )


def _system(specs: Sequence[RunSpec], topology: Topology) -> System:

    cpus = topology.core_cpus
    if not _brings_threads(specs):
        pin_device_role(cpus, specs)
    return open_system(specs, cpus, topology.last_level_cache_bytes or 0, [node.id for node in topology.domains])


def _rest_s(specs: Sequence[RunSpec]) -> float:
    """Seconds after which the threads of a peer sleep; ours do at once."""
    return BY_NAME[specs[0].system].spin_s + _REST_S if _brings_threads(specs) else 0.0


def _brings_threads(specs: Sequence[RunSpec]) -> bool:
    """Threads that a peer starts inherit where this one may run: it stays free to run on all cores."""
    return specs[0].system != "ktbench" and BY_NAME[specs[0].system].own_threads


def pin_device_role(cpus: Sequence[int], specs: Sequence[RunSpec]) -> None:
    """PyTorch's threads stay on the device role's cores from now on, which are all `cpus` where the roles share them.

    Left to itself the kernel likes to wake two of them on one core. Raises ValueError where there are too few cores.
    """
    import torch

    device = max((split_cpus(cpus, spec.engine).device for spec in specs), key=len)
    pin_openmp(device)
    torch.set_num_threads(len(device))


def _roofs(specs: Sequence[RunSpec], topology: Topology) -> Roofs:
    """Of the whole machine: where others than PyTorch have threads, of a pool that leaves them alone in between."""
    engine, cpus = specs[0].engine, topology.core_cpus
    if engine.roles == "shared" and not _brings_threads(specs):
        return open_roofs(cpus[: engine.threads])
    with reach(cpus):
        return open_pool_roofs(cpus[: engine.threads], rest_s=_rest_s(specs))


def _watch(specs: Sequence[RunSpec], topology: Topology) -> MachineWatch:
    """Of all cpus, siblings included; of GPUs where cells use them."""
    on_cuda = any(spec.engine.device == "cuda" for spec in specs)
    return MachineWatch(topology.cpus, open_meters(read_cuda_devices() if on_cuda else None))


if __name__ == "__main__":
    sys.exit(main())
