"""A child process for one program: started with nothing of ours, watched, killed when it takes too much."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from ktbench.eval.sandbox.job import Job
from ktbench.eval.sandbox.limits import Limits

_POLL_S = 0.02
_ROOT = str(Path(__file__).parents[3])
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from ktbench.eval.sandbox.jail import main; main({_ROOT!r})"
_PYTHON = ("-P", "-s", "-S", "-X", "utf8", "-c", _START)
# One order of sets in every run; no thread for each core in a program that imports numpy.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What a child has left behind. `stopped` says why it was killed, '' where it ended by itself."""

    report: bytes
    stdout: bytes
    stopped: str
    status: int


def run_child(job: Job, stdin: str, limits: Limits) -> Left:
    """Run a job in an empty folder until it ends or takes more than `limits` between two of its reports.

    It gets no file of ours but four that lie in memory: job, standard input, what it prints, what it reports.
    """
    turns = 2 + len(job["program"]["sources"]) + len(job["program"]["arguments"])  # start, each of these, end
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        asked, given = (_sealed(opened, json.dumps(job).encode()), _sealed(opened, stdin.encode(errors="replace")))
        printed, report = (_memory(opened), _memory(opened))
        process = subprocess.Popen(
            [sys.executable, *_PYTHON, str(asked), str(report)],
            stdin=given,
            stdout=printed,
            stderr=subprocess.DEVNULL,
            pass_fds=(asked, report),
            env=_ENVIRONMENT,
            cwd=folder,
            start_new_session=True,
        )
        try:
            stopped = _watched(process, report, limits, turns)
        finally:
            process.kill()
            status = process.wait()
        size = limits.output_bytes
        return Left(report=os.pread(report, size, 0), stdout=os.pread(printed, size, 0), stopped=stopped, status=status)


def _memory(opened: ExitStack) -> int:
    """An open file in memory."""
    fd = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    opened.callback(os.close, fd)
    return fd


def _sealed(opened: ExitStack, content: bytes) -> int:
    """An open file in memory that nobody can write any more."""
    fd = _memory(opened)
    os.truncate(fd, len(content))
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _watched(process: subprocess.Popen[bytes], report: int, limits: Limits, turns: int) -> str:
    """Wait until a child ends, or say why it has to be killed. Each report begins a new turn."""
    reported, turn_cpu_s, turn_slept_s = 0, 0.0, 0.0
    slept_s, seen = 0.0, monotonic()
    while not _has_ended(process):
        sleeps, cpu_s, threads = _gauge(process.pid)
        before, seen = seen, monotonic()
        slept_s += seen - before if sleeps else 0.0
        if (size := os.fstat(report).st_size) > reported:
            reported, turn_cpu_s, turn_slept_s = size, cpu_s, slept_s
        if cpu_s - turn_cpu_s > limits.seconds:
            return f"took more than {limits.seconds} s"
        if slept_s - turn_slept_s > limits.sleep_s or slept_s > turns * limits.sleep_s:
            return f"slept for more than {limits.sleep_s} s"
        if threads > limits.threads:
            return f"started more than {limits.threads} threads"
    return ""


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ends within the time between two looks at it."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is not None


def _gauge(pid: int) -> tuple[bool, float, int]:
    """Whether a process neither runs nor is about to, the seconds of processor time that it has used, its threads."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return not any(state in "RD" for state in _states(pid)), cpu_s, int(fields[17])


def _states(pid: int) -> Iterator[str]:
    """The state of each thread, but those that end at this moment."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield _stat(path)[0]


def _stat(path: Path) -> list[str]:
    """The fields behind the name, which may hold blanks."""
    return path.read_text().rpartition(")")[2].split()
