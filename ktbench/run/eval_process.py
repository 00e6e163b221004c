"""Evaluates cells on a suite in a subprocess, which reports each task before the next."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING

import msgspec

from ktbench.engine.loading.progress import Loading, LoadProgress
from ktbench.run.child import child_exit_code, run_subprocess
from ktbench.spec.lm_eval import LMEvalNames
from ktbench.spec.record import Cell, SampleResult, TaskResult
from ktbench.spec.suite import SuiteSpec

if TYPE_CHECKING:
    from ktbench.host.topology import Topology

_REPORT_EVERY_S = 10.0
ANSWER: tuple[str, ...] = (sys.executable, "-m", "ktbench.run.eval_process")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRequest:
    """Cells that share weights, and the open `tasks` of each by cell key.

    `references` maps cell keys to the cell with whose distributions they are compared; these files are in `folder`,
    cached answers in `answers`. `created` is the run's creation time.
    """

    cells: tuple[Cell, ...]
    suite: SuiteSpec
    tasks: dict[str, tuple[str, ...]]
    references: dict[str, str]
    folder: str
    created: str
    answers: str
    code_id: str
    env_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalProgress:
    """One message of the child: its activity, the progress of loading, or the result of a task with its answers."""

    doing: str = ""
    loading: Loading | None = None
    result: TaskResult | None = None
    samples: tuple[SampleResult, ...] = ()


def evaluate_in_subprocess(request: EvalRequest, on_progress: Callable[[EvalProgress], None]) -> None:
    """Evaluate in a child; `on_progress` gets its messages as they arrive. Raises ChildFailed."""
    run_subprocess(ANSWER, request, lambda line: on_progress(msgspec.json.decode(line.encode(), type=EvalProgress)))


def main() -> int:
    """Entry of the child: the request on standard input, messages on standard output."""
    return child_exit_code(_answer)


def _answer() -> None:
    from ktbench.host.topology import read_topology

    output = _own_stdout()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=EvalRequest)
    topology = read_topology()
    os.sched_setaffinity(0, topology.core_cpus)  # before PyTorch counts the cores

    def say(message: EvalProgress) -> None:
        output.write(msgspec.json.encode(message) + b"\n")
        output.flush()

    _evaluate(request, topology, say)


def _own_stdout() -> IO[bytes]:
    """Standard output, reserved for messages: output of libraries goes to standard error."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _evaluate(request: EvalRequest, topology: Topology, say: Callable[[EvalProgress], None]) -> None:
    from ktbench.run.worker_process import host_role, prepare_host, require_code

    require_code(request.code_id)
    say(EvalProgress(doing=f"loading {request.cells[0].spec.summary}"))
    host = host_role(topology)
    prepare_host(host.cpus, [cell.spec for cell in request.cells])  # imports PyTorch, as the following do
    from ktbench.engine.generate import open_generator
    from ktbench.eval.session import EvalSession, Ids, Reference

    ids = Ids(code=request.code_id, env=request.env_id, created=datetime.fromisoformat(request.created))
    loading = LoadProgress(lambda report: say(EvalProgress(loading=report)))
    generator = open_generator([cell.spec for cell in request.cells], host, loading)
    checkpoint = str(request.cells[0].spec.model.path)
    session = EvalSession.open(generator, checkpoint, request.suite, Path(request.answers), ids, progress(say))
    for cell in request.cells:
        unmodified = request.references[cell.key]
        for task in request.tasks[cell.key]:
            file = reference_file(Path(request.folder), unmodified, task)
            reference = Reference(path=file, is_this=unmodified == cell.key)
            result, samples = session.evaluate(cell, task, reference, sample_file(request, cell, task))
            say(EvalProgress(result=result, samples=samples))
    session.close()


def progress(say: Callable[[EvalProgress], None], clock: Callable[[], float] = monotonic) -> Callable[[int, int], None]:
    """Reports every 10 s how many requests are answered; short tasks report only their end."""
    reported_s = clock()

    def answered(done: int, of: int) -> None:
        nonlocal reported_s
        if done == of:
            reported_s = clock()
        elif clock() - reported_s >= _REPORT_EVERY_S:
            reported_s = clock()
            say(EvalProgress(doing=f"    {done:,} of {of:,} requests answered"))

    return answered


def sample_file(request: EvalRequest, cell: Cell, task: str) -> Path:
    """Where lm-eval's log of a cell's answers to a task is written."""
    names = LMEvalNames.of(request.suite, request.created)
    return Path(request.folder) / names.folder(cell) / names.samples(task)


def reference_file(folder: Path, reference: str, task: str) -> Path:
    """The file with the distributions of the cell `reference`, with which others are compared."""
    return folder / "references" / f"{reference}-{task.replace('/', '-')}.logp"


if __name__ == "__main__":
    sys.exit(main())
