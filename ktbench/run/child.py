"""Runs heavy work in a subprocess that ends with its parent, and explains how a subprocess ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ktbench.spec.errors import FAILED, error_text
from ktbench.spec.record import Outcome

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")
_OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "annot allocate memory", "out of memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class OomCount:
    """How many processes the kernel has killed because memory ran out, and `where` it counts them.

    `kills` is None without such a counter.
    """

    kills: int | None
    where: str = ""


def oom_count(cgroups: Path = _CGROUPS, own: Path = _OWN, machine: Path = _MACHINE) -> OomCount:
    """The most specific counter that covers this process (cgroups(7), proc_vmstat(5))."""
    for file, where in (*_counters(cgroups, own), (machine, "on this machine")):
        try:
            words = dict(line.split(maxsplit=1) for line in file.read_text().splitlines() if " " in line)
            return OomCount(kills=int(words["oom_kill"]), where=where)
        except (OSError, KeyError, ValueError):
            continue
    return OomCount(kills=None)


def killed_reason(before: OomCount, after: OomCount) -> tuple[bool, str]:
    """Whether SIGKILL came because memory ran out, and what is known about the sender."""
    if before.kills is None or after.kills is None:
        return False, "SIGKILL: out of memory or killed by another process (this machine does not report which)"
    if after.kills > before.kills:
        return True, f"the kernel because memory ran out (it counted an oom_kill {after.where})"
    return False, f"SIGKILL from outside: the kernel counted no oom_kill {after.where}"


def _counters(cgroups: Path, own: Path) -> Iterator[tuple[Path, str]]:
    """Counters of cgroup version 2, then of version 1. A container may see its own group at the root."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        return
    for _, controllers, path in groups:
        below = path.lstrip("/")
        if not controllers:
            yield from ((cgroups / at / "memory.events", "in this cgroup") for at in (below, ""))
        elif "memory" in controllers.split(","):
            yield from ((cgroups / "memory" / at / "memory.oom_control", "in this cgroup") for at in (below, ""))


def child_exit_code(body: Callable[[], None]) -> int:
    """Run `body` in a child that ends with its parent; a failing file is one line on stderr."""
    from ktbench.run.worker_process import die_with_parent

    die_with_parent()
    try:
        body()
    except OSError as error:
        print(error_text(error), file=sys.stderr)
        return FAILED
    return 0


class ChildFailed(Exception):
    """The child could not be started or ended with an exit code other than 0; the text says why."""

    def __init__(self, code: int, why: str, outcome: Outcome = Outcome.CRASHED) -> None:
        super().__init__(why)
        self.code, self.outcome = code, outcome


def run_subprocess(command: Sequence[str], request: object, say: Callable[[str], None]) -> None:
    """Run a child that reads `request` as JSON; `say` gets its lines of progress. Raises ChildFailed.

    The child has its own session, so that an interrupt from the terminal reaches the parent only: it kills the child
    and raises the interrupt again.
    """
    before = oom_count()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise ChildFailed(1, error_text(error)) from None
        try:
            ended = _follow(child, request, say)
        finally:
            _end(child)
        if ended:
            output.seek(0)
            raise _failure(ended, output.read(), before)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the process group of the child, which leads its own session: everything it started ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _follow(child: subprocess.Popen[bytes], request: object, say: Callable[[str], None]) -> int:
    """The child's exit code, once it has ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):  # it ended before reading, as its exit code shows
        child.stdin.write(msgspec.json.encode(request))
        child.stdin.close()
    with child.stdout as progress:
        for line in progress:
            say(line.decode(errors="replace").rstrip())
    return child.wait()


def _failure(code: int, output: str, before: OomCount) -> ChildFailed:
    lines = output.strip().splitlines()
    outcome, why = ending_of(code, lines[-1] if lines else "", before)
    return ChildFailed(code, lines[-1] if code > 0 and lines else f"the subprocess {why}", outcome)


def ending_of(code: int | None, last_line: str, before: OomCount) -> tuple[Outcome, str]:
    """How a process ended, by its exit code and the last line of its output; a code of None: it cannot be killed.

    `before` was counted before the process ran out of memory, if it did.
    """
    if code == -signal.SIGKILL:
        no_memory, by = killed_reason(before, oom_count())
        return (Outcome.NO_MEMORY if no_memory else Outcome.CRASHED), f"was ended by {by}"
    outcome = Outcome.NO_MEMORY if any(words in last_line for words in _OUT_OF_MEMORY) else Outcome.CRASHED
    if code is None:
        return outcome, "does not respond and cannot be killed"
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    return outcome, f"{ended}: {last_line}" if code >= 0 or outcome is Outcome.NO_MEMORY else ended
