"""Runs the program llama-bench: one workload, on lists of settings."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ktbench.peers.llama.rows import Row, read_rows
from ktbench.spec.run_spec import WorkloadSpec

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists:
    """Settings to try; llama-bench runs a test for each combination."""

    threads: Sequence[int]
    ubatch: Sequence[int]
    flash: Sequence[bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """llama-bench and the GGUF file that it is to load."""

    program: str
    file: Path

    def run(self, workload: WorkloadSpec, lists: Lists, timeout_s: float) -> tuple[Row, ...]:
        """The rows of all tests. Raises RuntimeError with the program's last line where it fails or takes longer."""
        output, why = self._run(workload, lists, timeout_s)
        if why:
            raise RuntimeError(why)
        return read_rows(output)

    def run_for(self, workload: WorkloadSpec, lists: Lists, budget_s: float) -> tuple[Row, ...]:
        """The rows of the tests that are done in so many seconds; the program is ended then."""
        return read_rows(self._run(workload, lists, budget_s)[0])

    def _run(self, workload: WorkloadSpec, lists: Lists, timeout_s: float) -> tuple[str, str]:
        """What it printed, and why that is not all; empty where it is."""
        command = [self.program, "-m", str(self.file), *options(workload, lists)]
        tied = partial(_tie, os.getpid())
        try:
            ended = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, preexec_fn=tied)
        except subprocess.TimeoutExpired as late:
            said = _last_line(late.stderr or late.stdout)
            return _text(late.stdout), f"llama-bench took more than {timeout_s:g} s: {said}"
        except OSError as error:
            raise ValueError(f"peer.llama_bench={self.program}: cannot be run: {error.strerror}") from None
        if ended.returncode:
            return _text(ended.stdout), f"llama-bench exited with {ended.returncode}: {_last_line(ended.stderr)}"
        return _text(ended.stdout), ""


def options(workload: WorkloadSpec, lists: Lists) -> tuple[str, ...]:
    """Its options for a workload of one sequence.

    A prefill is one test of as many repetitions as steps, a decode one test that generates as many tokens as steps at
    context depth `prompt`: llama-bench does not say what each took.
    """
    prefill = workload.phase == "prefill"
    sizes = {
        "-p": workload.prompt if prefill else 0,
        "-n": 0 if prefill else workload.steps,
        "-d": 0 if prefill else workload.prompt,
        "-r": workload.steps if prefill else 1,
        "-b": max(workload.prompt, *lists.ubatch),
        "-ub": ",".join(map(str, lists.ubatch)),
        "-t": ",".join(map(str, lists.threads)),
        "-fa": ",".join(str(int(flash)) for flash in lists.flash),
    }
    fixed = ("-ctk", "f16", "-ctv", "f16", "-ngl", "0", "-o", "jsonl")
    return (*(word for name, value in sizes.items() for word in (name, str(value))), *fixed)


def _tie(parent: int) -> None:
    """Have the kernel end this process with its parent (Linux, prctl(2)).

    It would load every core on, when nothing tells others any more that this host is timing.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _last_line(output: bytes | str | None) -> str:
    lines = _text(output).strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
