"""Has cells answer a suite in a process of its own, which says every answer before it goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING

import msgspec

from ktbench.run.apart import run_apart
from ktbench.spec.record import Cell, SampleResult, TaskResult
from ktbench.spec.suite import SuiteSpec

if TYPE_CHECKING:
    from ktbench.engine.protocol import HostRole

_SAY_EVERY_S = 10.0
ANSWER: tuple[str, ...] = (sys.executable, "-m", "ktbench.run.answering")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """Cells that share weights, and what each is to answer.

    `tasks` names by cell key the tasks that are open. `references` gives by cell key the cell that distributions are
    held against; the first of those lie in `folder`, answers that may be used again in `answers`.
    """

    cells: tuple[Cell, ...]
    suite: SuiteSpec
    tasks: dict[str, tuple[str, ...]]
    references: dict[str, str]
    folder: str
    answers: str
    code_id: str
    env_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One message of the child: what it is doing, or a task that ended with its answers."""

    doing: str = ""
    asked: TaskResult | None = None
    scored: tuple[SampleResult, ...] = ()


def answer_apart(asking: Asking, heard: Callable[[Said], None]) -> None:
    """Have a child answer; `heard` gets its messages as they come. Raises ChildFailed."""
    run_apart(ANSWER, asking, lambda line: heard(msgspec.json.decode(line.encode(), type=Said)))


def main() -> int:
    """Entry of the child: what to ask on standard input, messages on standard output."""
    from ktbench.host.topology import read_topology
    from ktbench.run.serve import die_with_parent

    die_with_parent()
    said = _own_stdout()
    asking = msgspec.json.decode(sys.stdin.buffer.read(), type=Asking)
    topology = read_topology()
    os.sched_setaffinity(0, topology.core_cpus)  # before PyTorch counts the cores

    def say(message: Said) -> None:
        said.write(msgspec.json.encode(message) + b"\n")
        said.flush()

    _answer(asking, say)
    return 0


def _own_stdout() -> IO[bytes]:
    """Standard output for messages alone: what libraries print goes to standard error."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _answer(asking: Asking, say: Callable[[Said], None]) -> None:
    from ktbench.eval.session import EvalSession, Ids, Reference

    say(Said(doing=f"loading {asking.cells[0].spec.summary}"))
    ids = Ids(code=asking.code_id, env=asking.env_id)
    session = EvalSession.open(
        asking.cells, _host(asking.cells), asking.suite, Path(asking.answers), ids, progress(say)
    )
    for cell in asking.cells:
        unmodified = asking.references[cell.key]
        for task in asking.tasks[cell.key]:
            path = reference_file(Path(asking.folder), unmodified, task)
            asked, scored = session.evaluate(cell, task, Reference(path=path, is_this=unmodified == cell.key))
            say(Said(asked=asked, scored=scored))
    session.close()


def progress(say: Callable[[Said], None], clock: Callable[[], float] = monotonic) -> Callable[[int, int], None]:
    """Says now and then how many requests are answered; tasks that take a moment only say that they ended."""
    said_s = clock()

    def answered(done: int, of: int) -> None:
        nonlocal said_s
        if done == of:
            said_s = clock()
        elif clock() - said_s >= _SAY_EVERY_S:
            said_s = clock()
            say(Said(doing=f"    {done:,} of {of:,} requests answered"))

    return answered


def reference_file(folder: Path, reference: str, task: str) -> Path:
    """Where the distributions of the cell `reference` lie that others are held against."""
    return folder / "references" / f"{reference}-{task.replace('/', '-')}.logp"


def _host(cells: Sequence[Cell]) -> HostRole:
    from ktbench.engine.protocol import HostRole
    from ktbench.host.topology import read_topology
    from ktbench.run.serve import pin_device_role

    topology = read_topology()
    cpus, nodes = topology.core_cpus, tuple(node.id for node in topology.domains)
    pin_device_role(cpus, [cell.spec for cell in cells])
    return HostRole(cores=len(cpus), cpus=cpus, nodes=nodes, cache_bytes=topology.last_level_cache_bytes or 0)


if __name__ == "__main__":
    sys.exit(main())
