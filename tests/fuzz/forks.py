"""The side that has the inputs: gives them to a server, one at a time, and judges what became of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.child import CPU_S, UNCAUGHT, Result

ROOT = Path(__file__).parents[2]
_REFUSED, _CODES = 2, (0, 2, 3, 4)
_MOST_LINES, _MOST_S = 3, 2.0
_FRAME = re.compile(r'File "[^"]*/ktbench/([\w./-]+)", line \d+,? in (\w+)')
_PYTHON_TRACE = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with how an input was taken. `kind` is the same for inputs that meet the same mistake."""

    kind: str
    text: str


class Server:
    """A running `tests.fuzz.server`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def attempt(self, target: str, data: Any) -> Result:
        """Have one input carried out."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([target, data]) + "\n")
        self._process.stdin.flush()
        content = json.loads(self._line())
        return Result(**content | {"writes": tuple(content["writes"])})

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the server of inputs ended with {self._process.wait()}")
        return line


@contextmanager
def serving(names: Sequence[str]) -> Iterator[Server]:
    """A server that is ready for inputs of these targets."""
    command = [sys.executable, "-m", "tests.fuzz.server", *names]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        server = Server(process)
        try:
            assert server._line() == "ready\n"
            yield server
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def fault_of(result: Result) -> Fault | None:
    """What no input may do; None where it was accepted, refused in one to three lines, or ended in a row's reason."""
    if result.by in ("SIGXCPU", "patience") or (result.by == "SIGKILL" and result.cpu_s > CPU_S):
        return Fault(f"hang in {_where(result)}", f"over {CPU_S} s of CPU time or without end\n{result.output}")
    if result.by:
        return Fault(f"{result.by} in {_where(result)}", result.output)
    if result.code == UNCAUGHT or _PYTHON_TRACE in result.output:
        last = result.output.strip().splitlines()[-1:] or [""]
        return Fault(f"traceback, {last[0].partition(':')[0]} in {_where(result)}", result.output)
    if result.code not in _CODES:
        return Fault(f"exit code {result.code}", result.output)
    if result.writes:
        return Fault("writes outside of the run folder", "\n".join(result.writes))
    return _of_refusal(result) if result.code == _REFUSED else None


def _of_refusal(result: Result) -> Fault | None:
    lines = result.output.strip().splitlines()
    if not 1 <= len(lines) <= _MOST_LINES:
        return Fault(f"refused in {'no line' if not lines else 'many lines'}", result.output)
    if result.cpu_s > _MOST_S:
        return Fault("refused late", f"after {result.cpu_s:.1f} s of CPU time\n{result.output}")
    return None


def _where(result: Result) -> str:
    """The innermost function of ours."""
    frames = list(_FRAME.finditer(result.output))
    if not frames:
        return "?"
    # A traceback has the innermost call last, what faulthandler prints has it first.
    found = frames[-1] if _PYTHON_TRACE in result.output else frames[0]
    return f"{found[1]}:{found[2]}"
