"""Runs a generated program in a child process, watches it, and describes how it ended."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypedDict

from ktbench.eval.sandbox.restrictions import Restrictions


class SandboxUnavailable(RuntimeError):
    """The machine cannot isolate a program from files or network, so none is run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of one program.

    For each of its tests it has `seconds` of processor time, and may sleep for `sleep_s`: waiting for a processor does
    not count, so that a busy machine does not fail a right answer. `memory_bytes` are resident: mapped but untouched
    memory is free, up to ADDRESSES times as much. `output_bytes` limits its output and its results.
    """

    seconds: int = 6
    sleep_s: int = 12
    memory_bytes: int = 2**31
    output_bytes: int = 16 * 2**20
    threads: int = 32

    def __post_init__(self) -> None:
        for name in ("seconds", "sleep_s", "memory_bytes", "output_bytes", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"limits.{name}={getattr(self, name)}: must be 1 or above")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramResult:
    """How a program ended. `why` is what kept it from finishing, '' if it `finished`.

    `values` are its function's results as JSON, one for each call that returned.
    """

    finished: bool
    stdout: str
    values: tuple[object, ...] = ()
    why: str = ""


class PythonProgram(TypedDict):
    """What to run: `sources` in turn in one namespace, then `function` with each of `arguments`.

    `function` is '' for none, and a method if there is a class Solution. The program sees `name` as `__name__`.
    `may_exit` allows sys.exit as an end.
    """

    sources: Sequence[str]
    name: str
    function: str
    arguments: Sequence[Sequence[object]]
    may_exit: bool


class Job(TypedDict):
    """The parent's request to the child, as JSON.

    A program that reached its end returns `token`; `libraries` are folders from which it may import.
    """

    program: PythonProgram
    restrictions: Restrictions
    libraries: Sequence[str]
    token: str


ADDRESSES = 8  # stacks of 32 threads, a JIT compiler's and an allocator's reserves
_MIB = 2**20
_POLL_S = 0.02
_ROOT = str(Path(__file__).parents[3])
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from ktbench.eval.sandbox.jail import main; main({_ROOT!r})"
_PYTHON = ("-P", "-s", "-S", "-X", "utf8", "-c", _START)
# The same order of sets in every run; only one thread in a program that imports numpy.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildResult:
    """The results of a child. `stopped` is why it was killed, '' if it ended by itself."""

    report: bytes
    stdout: bytes
    stopped: str
    status: int


def run_child(job: Job, stdin: str, limits: Limits) -> ChildResult:
    """Run a job in an empty folder until it ends or exceeds `limits` between two of its reports.

    It gets only four files from us, all in memory: job, standard input, output and report.
    """
    reports = 2 + len(job["program"]["sources"]) + len(job["program"]["arguments"])  # start, each of these, end
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        request, given = (
            _sealed_file(opened, json.dumps(job).encode()),
            _sealed_file(opened, stdin.encode(errors="replace")),
        )
        printed, report = (_memory(opened), _memory(opened))
        process = subprocess.Popen(
            [sys.executable, *_PYTHON, str(request), str(report)],
            stdin=given,
            stdout=printed,
            stderr=subprocess.DEVNULL,
            pass_fds=(request, report),
            env=_ENVIRONMENT,
            cwd=folder,
            start_new_session=True,
        )
        try:
            stopped = _watch(process, report, limits, reports)
        finally:
            process.kill()
            status = process.wait()
        size = limits.output_bytes
        return ChildResult(
            report=os.pread(report, size, 0), stdout=os.pread(printed, size, 0), stopped=stopped, status=status
        )


def _memory(opened: ExitStack) -> int:
    """An open file in memory whose number is not that of a standard stream, even if these are closed here."""
    made = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(made)
    opened.callback(os.close, fd)
    return fd


def _sealed_file(opened: ExitStack, content: bytes) -> int:
    """An open file in memory that can no longer be written."""
    fd = _memory(opened)
    os.truncate(fd, len(content))
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _watch(process: subprocess.Popen[bytes], report: int, limits: Limits, reports: int) -> str:
    """Wait until a child ends; the reason if it must be killed. The limits apply between two of its `reports`."""
    reported, report_cpu_s, report_slept_s = 0, 0.0, 0.0
    slept_s, seen = 0.0, monotonic()
    while not _has_ended(process):
        usage = _usage(process.pid)
        before, seen = seen, monotonic()
        slept_s += seen - before if usage.sleeps else 0.0
        if (size := os.fstat(report).st_size) > reported:
            reported, report_cpu_s, report_slept_s = size, usage.cpu_s, slept_s
        if usage.cpu_s - report_cpu_s > limits.seconds:
            return f"took more than {limits.seconds} s"
        if slept_s - report_slept_s > limits.sleep_s or slept_s > reports * limits.sleep_s:
            return f"slept for more than {limits.sleep_s} s"
        if usage.threads > limits.threads:
            return f"started more than {limits.threads} threads"
        if usage.resident_bytes + _hidden_bytes(process.pid, usage, limits) > limits.memory_bytes:
            return _over_memory(limits)
    return ""


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ends within the polling interval."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is not None


class _Usage(NamedTuple):
    """A process's resource usage. It `sleeps` if it is neither running nor runnable."""

    sleeps: bool
    cpu_s: float
    threads: int
    mapped_bytes: int
    resident_bytes: int


def _usage(pid: int) -> _Usage:
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return _Usage(
        sleeps=not any(state in "RD" for state in _states(pid)),
        cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        threads=int(fields[17]),
        mapped_bytes=int(fields[20]),
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
    )


def _hidden_bytes(pid: int, usage: _Usage, limits: Limits) -> int:
    """Memory that may be in shared mappings without being resident: a process can drop pages and keep the memory.

    Shared mappings are counted in full if a process maps more than its limit.
    """
    if usage.mapped_bytes <= limits.memory_bytes:
        return 0
    with suppress(OSError):
        maps = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
        spans = [line[0].split("-") for line in maps if line[-2:] == ["/dev/zero", "(deleted)"]]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)
    return 0


def _states(pid: int) -> Iterator[str]:
    """The state of each thread, except those that are just ending."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield _stat(path)[0]


def _stat(path: Path) -> list[str]:
    """The fields after the name, which may contain blanks."""
    return path.read_text().rpartition(")")[2].split()


_DEFAULT = Limits()
_SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom"),
    "/proc/cpuinfo",  # numba reads it
)
_REFUSED = "generated programs do not run here"

Line = Mapping[str, object]  # of a child's report


def run_program(source: str, *, stdin: str = "", tests: str = "", limits: Limits = _DEFAULT) -> ProgramResult:
    """Run a Python program, then `tests` in its namespace, which pass if they raise nothing.

    Without tests it is a whole program: `__name__` is `__main__`, and it may end with sys.exit. With tests, it may not
    exit before they end. Tests share the process, so a malicious program can pass them, with objects that equal
    everything or by inspecting the calling frames. Raises SandboxUnavailable if the machine cannot isolate it from
    files and network.
    """
    sources = [source, tests] if tests else [source]
    name = "solution" if tests else "__main__"
    return _run(PythonProgram(sources=sources, name=name, function="", arguments=(), may_exit=not tests), stdin, limits)


def call_program(
    source: str, function: str, arguments: Sequence[Sequence[object]], *, limits: Limits = _DEFAULT
) -> ProgramResult:
    """Run a Python program, then call its function with each of `arguments`, in one process; each call has `limits`.

    `function` is a method if the program has a class Solution. Arguments and values are JSON. Raises
    SandboxUnavailable.
    """
    program = PythonProgram(sources=[source], name="solution", function=function, arguments=arguments, may_exit=False)
    return _run(program, "", limits)


@cache
def sandbox_mechanisms() -> tuple[str, ...]:
    """The isolation mechanisms of this machine, in words. Raises SandboxUnavailable if nothing may be run."""
    program = PythonProgram(sources=["import decimal"], name="solution", function="", arguments=(), may_exit=False)
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"{_REFUSED}: what keeps them in is Linux's (seccomp, Landlock)")
    job = _job(program, _DEFAULT)
    left = run_child(job, "", _DEFAULT)
    lines = list(_lines(left.report))
    first = lines[0] if lines else {"refused": "the process for them did not start"}
    if why := first.get("refused") or _why(left, lines, job["token"], _DEFAULT):
        raise SandboxUnavailable(f"{_REFUSED}: {why}")
    words = first["mechanisms"]
    return tuple(map(str, words)) if isinstance(words, list) else ()


def _run(program: PythonProgram, stdin: str, limits: Limits) -> ProgramResult:
    sandbox_mechanisms()  # checked here, since a program may forge its report
    job = _job(program, limits)
    left = run_child(job, stdin, limits)
    lines = list(_lines(left.report))
    why = _why(left, lines, job["token"], limits)
    values = tuple(line["value"] for line in lines if "value" in line)
    return ProgramResult(finished=not why, stdout=left.stdout.decode(errors="replace"), values=values, why=why)


def _job(program: PythonProgram, limits: Limits) -> Job:
    return {
        "program": program,
        "restrictions": {
            "parent": os.getpid(),
            "cpu_s": limits.seconds * (2 + len(program["arguments"])),
            "address_bytes": ADDRESSES * limits.memory_bytes,
            "output_bytes": limits.output_bytes,
            "readable": _readable(),
        },
        "libraries": _libraries(),
        "token": secrets.token_hex(16),
    }


@cache
def _libraries() -> tuple[str, ...]:
    """Folders of installed packages: this environment's, and others on its path."""
    own = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    return tuple(
        dict.fromkeys([*own, *(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))])
    )


@cache
def _readable() -> tuple[str, ...]:
    """Real paths of the Python installation and of the libraries it is linked with."""
    own = [f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in (*own, *_libraries(), *_SYSTEM)))


def _lines(report: bytes) -> Iterator[Line]:
    """The lines of a report up to the first corrupted one."""
    for text in report.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(line, dict):
            return
        yield line


def _why(left: ChildResult, lines: Sequence[Line], token: str, limits: Limits) -> str:
    """What kept the program from finishing; '' for nothing."""
    last = lines[-1] if lines else {}
    if left.stopped:
        return left.stopped
    if max(len(left.stdout), len(left.report)) >= limits.output_bytes:
        return f"printed or returned more than {limits.output_bytes / _MIB:g} MiB"
    if why := last.get("why"):
        return _over_memory(limits) if why == "memory" else str(why)
    if left.status < 0:
        return _signal_reason(-left.status, limits)
    return "" if last.get("end") == token else "ended before it was through"


def _over_memory(limits: Limits) -> str:
    return f"used more than {limits.memory_bytes / _MIB:g} MiB"


def _signal_reason(number: int, limits: Limits) -> str:
    if number in {signal.SIGKILL, signal.SIGXCPU}:  # the kernel's own limit of processor time
        return f"took more than {limits.seconds} s"
    named = number in set(signal.Signals)  # real-time signals have no names
    return f"ended by {signal.Signals(number).name if named else f'signal {number}'}"
