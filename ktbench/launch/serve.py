"""The worker's side: load once, then take turns until the parent goes away."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import IO

import msgspec

from ktbench.core.spec import RunSpec
from ktbench.engine.protocol import System
from ktbench.host.roofs import open_roofs, pin_openmp
from ktbench.host.topology import read_topology
from ktbench.launch.messages import Answer, Open, Turn, send
from ktbench.measure.session import RoofSampler, Session

_PR_SET_PDEATHSIG = 1
OpenSystem = Callable[[Sequence[RunSpec]], System]
OpenRoofs = Callable[[Sequence[RunSpec]], RoofSampler]


def serve(open_system: OpenSystem, open_roofs: OpenRoofs, requests: IO[bytes], answers: IO[bytes]) -> int:
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
        )
        send(answers, Answer())
        for line in requests:
            turn = msgspec.json.decode(line, type=Turn)
            send(answers, Answer(record=session.turn(turn.cell, turn.round)))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        send(answers, Answer(no_memory=str(error).splitlines()[0] if str(error) else "out of memory"))
        return 1
    return 0


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
    """Entry of `python -m ktbench.launch.serve ANSWERS_FD`: requests on standard input."""
    # One thread for each physical core. PyTorch's OpenMP counts the cores when it is loaded, so this comes first; its
    # threads then stay where they are, since the kernel likes to wake two of them on one core.
    topology = read_topology()
    cpus, nodes = topology.core_cpus, [node.id for node in topology.domains]
    os.sched_setaffinity(0, cpus)
    import torch  # noqa: F401

    pin_openmp(cpus)
    from ktbench.measure.systems import open_system

    with os.fdopen(int(sys.argv[1]), "wb") as answers:
        return serve(
            lambda specs: open_system(specs, len(cpus), topology.last_level_cache_bytes or 0, nodes),
            lambda specs: open_roofs(specs[0].engine.threads or len(cpus)),
            sys.stdin.buffer,
            answers,
        )


if __name__ == "__main__":
    sys.exit(main())
