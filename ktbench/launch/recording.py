"""Runs a recording in a process of its own, which ends with its parent and leaves a whole file or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from ktbench.core.spec import RunSpec

if TYPE_CHECKING:
    from ktbench.engine.recording import Recordable

RECORD: tuple[str, ...] = (sys.executable, "-m", "ktbench.launch.recording")


class RecordingFailed(Exception):
    """The child ended without a profile; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What a child is to record, and the file that it writes."""

    spec: RunSpec
    output: str


def record_apart(asked: Recording, say: Callable[[str], None]) -> None:
    """Have a child write the profile; `say` gets its lines of progress. Raises RecordingFailed.

    The child has a session of its own, so that an interrupt from the terminal is the parent's alone to answer: it kills
    the child and goes on as an interrupt.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = subprocess.Popen(
            RECORD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
        try:
            ended = _follow(child, asked, say)
        finally:
            child.kill()
            child.wait()
        if ended:
            said.seek(0)
            raise RecordingFailed(_why(ended, said.read()))


def _follow(child: subprocess.Popen[bytes], asked: Recording, say: Callable[[str], None]) -> int:
    """The child's exit code, once it is there."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):  # it ended before it read, which its exit code tells
        child.stdin.write(msgspec.json.encode(asked))
        child.stdin.close()
    with child.stdout as progress:
        for line in progress:
            say(line.decode(errors="replace").rstrip())
    return child.wait()


def _why(ended: int, said: str) -> str:
    if ended < 0:
        return f"ended by {signal.Signals(-ended).name}"
    return (said.strip().splitlines() or [f"exit code {ended}"])[-1]


def main() -> int:
    """Entry of the child: what to record on standard input, progress on standard output."""
    from ktbench.engine.recording import record_profile
    from ktbench.host.topology import read_topology
    from ktbench.launch.serve import die_with_parent

    die_with_parent()
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Recording)
    os.sched_setaffinity(0, read_topology().core_cpus)  # before PyTorch counts the cores
    record_profile(_open_engine, asked.spec).save(Path(asked.output))
    return 0


def _open_engine(spec: RunSpec) -> Recordable:
    from ktbench.host.topology import read_topology
    from ktbench.launch.serve import pin_device_role
    from ktbench.measure.systems import open_system

    print(f"loading {spec.summary}", flush=True)
    topology = read_topology()
    cpus, nodes = topology.core_cpus, [node.id for node in topology.domains]
    pin_device_role(cpus, [spec])
    system = open_system([spec], cpus, topology.last_level_cache_bytes or 0, nodes)
    print(f"running workload.steps={spec.workload.steps}", flush=True)
    return cast("Recordable", system)  # of the systems only the hybrid engine has routers


if __name__ == "__main__":
    sys.exit(main())
