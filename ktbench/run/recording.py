"""Runs a recording in a process of its own, which ends with its parent and leaves a whole file or none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from ktbench.run.apart import run_apart
from ktbench.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from ktbench.engine.workload.recorded import Recordable

RECORD: tuple[str, ...] = (sys.executable, "-m", "ktbench.run.recording")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What a child is to record, and the file that it writes."""

    spec: RunSpec
    output: str


def record_apart(asked: Recording, say: Callable[[str], None]) -> None:
    """Have a child write the profile; `say` gets its lines of progress. Raises ChildFailed."""
    run_apart(RECORD, asked, say)


def main() -> int:
    """Entry of the child: what to record on standard input, progress on standard output."""
    from ktbench.engine.workload.recorded import record_profile
    from ktbench.host.topology import read_topology
    from ktbench.run.serve import die_with_parent

    die_with_parent()
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Recording)
    os.sched_setaffinity(0, read_topology().core_cpus)  # before PyTorch counts the cores
    record_profile(_open_engine, asked.spec).save(Path(asked.output))
    return 0


def _open_engine(spec: RunSpec) -> Recordable:
    from ktbench.host.topology import read_topology
    from ktbench.run.serve import pin_device_role
    from ktbench.run.systems import open_system

    print(f"loading {spec.summary}", flush=True)
    topology = read_topology()
    cpus, nodes = topology.core_cpus, [node.id for node in topology.domains]
    pin_device_role(cpus, [spec])
    system = open_system([spec], cpus, topology.last_level_cache_bytes or 0, nodes)
    print(f"running workload.steps={spec.workload.steps}", flush=True)
    return cast("Recordable", system)  # of the systems only the hybrid engine has routers


if __name__ == "__main__":
    sys.exit(main())
