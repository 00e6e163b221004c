"""Runs a generated program and says how it ended."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from ktbench.eval.sandbox.child import Left, run_child
from ktbench.eval.sandbox.job import Job, Program
from ktbench.eval.sandbox.limits import Ended, Limits, Unprotected, in_bytes

_DEFAULT = Limits()
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom")
_REFUSED = "generated programs do not run here"

Line = Mapping[str, object]  # of a child's report


def run_program(source: str, *, stdin: str = "", tests: str = "", limits: Limits = _DEFAULT) -> Ended:
    """Run a Python program, and after it `tests` in its namespace, which pass when they raise nothing.

    Without tests it is a whole program: `__name__` is `__main__` and sys.exit is a fine end. With tests an exit before
    their end is not. Tests share the process, so a program that is out to pass them can, by objects that equal all or
    by what it finds in the frames that call it. Raises Unprotected where the machine cannot keep it from files and
    network.
    """
    sources = [source, tests] if tests else [source]
    name = "solution" if tests else "__main__"
    return _run(Program(sources=sources, name=name, function="", arguments=(), may_exit=not tests), stdin, limits)


def call_program(
    source: str, function: str, arguments: Sequence[Sequence[object]], *, limits: Limits = _DEFAULT
) -> Ended:
    """Run a Python program, then call its function with each of `arguments`, in one process; each call has `limits`.

    `function` is a method where the program has a class Solution. Arguments and values are JSON. Raises Unprotected.
    """
    program = Program(sources=[source], name="solution", function=function, arguments=arguments, may_exit=False)
    return _run(program, "", limits)


@cache
def sandbox_powers() -> tuple[str, ...]:
    """What keeps a program in on this machine, in words. Raises Unprotected where nothing may be run."""
    program = Program(sources=["import decimal"], name="solution", function="", arguments=(), may_exit=False)
    if not sys.platform.startswith("linux"):
        raise Unprotected(f"{_REFUSED}: what keeps them in is Linux's (seccomp, Landlock)")
    job = _job(program, _DEFAULT)
    left = run_child(job, "", _DEFAULT)
    lines = list(_lines(left.report))
    first = lines[0] if lines else {"refused": "the process for them did not start"}
    if why := first.get("refused") or _why(left, lines, job["token"], _DEFAULT):
        raise Unprotected(f"{_REFUSED}: {why}")
    words = first["walls"]
    return tuple(map(str, words)) if isinstance(words, list) else ()


def _run(program: Program, stdin: str, limits: Limits) -> Ended:
    sandbox_powers()  # refuses here: what the report of a program says is the program's own word
    job = _job(program, limits)
    left = run_child(job, stdin, limits)
    lines = list(_lines(left.report))
    why = _why(left, lines, job["token"], limits)
    values = tuple(line["value"] for line in lines if "value" in line)
    return Ended(finished=not why, stdout=left.stdout.decode(errors="replace"), values=values, why=why)


def _job(program: Program, limits: Limits) -> Job:
    return {
        "program": program,
        "walls": {
            "parent": os.getpid(),
            "cpu_s": limits.seconds * (2 + len(program["arguments"])),
            "memory_bytes": limits.memory_bytes,
            "output_bytes": limits.output_bytes,
            "readable": _readable(),
        },
        "libraries": _libraries(),
        "token": secrets.token_hex(16),
    }


@cache
def _libraries() -> tuple[str, ...]:
    return tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))


@cache
def _readable() -> tuple[str, ...]:
    """Real paths of the Python installation and of the libraries it is linked with."""
    own = [f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in (*own, *_libraries(), *_SYSTEM)))


def _lines(report: bytes) -> Iterator[Line]:
    """The lines of a report up to the first that the program has spoilt."""
    for said in report.splitlines():
        try:
            line = json.loads(said)
        except (ValueError, RecursionError):
            return
        if not isinstance(line, dict):
            return
        yield line


def _why(left: Left, lines: Sequence[Line], token: str, limits: Limits) -> str:
    """What kept the program from finishing; '' where nothing did."""
    last = lines[-1] if lines else {}
    if left.stopped:
        return left.stopped
    if max(len(left.stdout), len(left.report)) >= limits.output_bytes:
        return f"printed or returned more than {in_bytes(limits.output_bytes)}"
    if said := last.get("why"):
        return f"used more than {in_bytes(limits.memory_bytes)}" if said == "memory" else str(said)
    if left.status < 0:
        return _of_signal(-left.status, limits)
    return "" if last.get("end") == token else "ended before it was through"


def _of_signal(number: int, limits: Limits) -> str:
    if number in {signal.SIGKILL, signal.SIGXCPU}:  # the kernel's own watch over processor time
        return f"took more than {limits.seconds} s"
    named = number in set(signal.Signals)  # real-time signals have no names
    return f"ended by {signal.Signals(number).name if named else f'signal {number}'}"
