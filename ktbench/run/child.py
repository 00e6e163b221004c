"""Runs one piece of heavy work in a process of its own, which ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ktbench.spec.errors import error_text
from ktbench.spec.record import Outcome

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


@dataclass(frozen=True, kw_only=True, slots=True)
class OomCount:
    """How many processes the kernel has ended for want of memory, and `where` it counted them.

    `kills` is None where nothing counts them.
    """

    kills: int | None
    where: str = ""


def oom_count(cgroups: Path = _CGROUPS, own: Path = _OWN, machine: Path = _MACHINE) -> OomCount:
    """The counter that is nearest to this process (cgroups(7), proc_vmstat(5))."""
    for file, where in (*_counters(cgroups, own), (machine, "on this machine")):
        try:
            words = dict(line.split(maxsplit=1) for line in file.read_text().splitlines() if " " in line)
            return OomCount(kills=int(words["oom_kill"]), where=where)
        except (OSError, KeyError, ValueError):
            continue
    return OomCount(kills=None)


def killed_reason(before: OomCount, after: OomCount) -> tuple[bool, str]:
    """Whether a process that SIGKILL ended was ended for want of memory, and by whom it was, as far as is known."""
    if before.kills is None or after.kills is None:
        return False, "SIGKILL: out of memory or killed by another process (this machine does not report which)"
    if after.kills > before.kills:
        return True, f"the kernel because memory ran out (it counted an oom_kill {after.where})"
    return False, f"SIGKILL from outside: the kernel counted no oom_kill {after.where}"


def _counters(cgroups: Path, own: Path) -> Iterator[tuple[Path, str]]:
    """Of version 2, then of version 1. A container may see its own group at the root."""
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


class ChildFailed(Exception):
    """The child could not be started or ended with another exit code than 0; the text says why."""

    def __init__(self, code: int, why: str, outcome: Outcome = Outcome.CRASHED) -> None:
        super().__init__(why)
        self.code, self.outcome = code, outcome


def run_subprocess(command: Sequence[str], asked: object, say: Callable[[str], None]) -> None:
    """Run a child that reads `asked` as JSON; `say` gets its lines of progress. Raises ChildFailed.

    The child has a session of its own, so that an interrupt from the terminal is the parent's alone to answer: it kills
    the child and goes on as an interrupt.
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
            ended = _follow(child, asked, say)
        finally:
            _end(child)
        if ended:
            output.seek(0)
            raise _failed(ended, output.read(), before)


def _end(child: subprocess.Popen[bytes]) -> None:
    """The child leads a session of its own, so whatever it started ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _follow(child: subprocess.Popen[bytes], asked: object, say: Callable[[str], None]) -> int:
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


def _failed(ended: int, output: str, before: OomCount) -> ChildFailed:
    no_memory, by = killed_reason(before, oom_count())
    if ended == -signal.SIGKILL and no_memory:
        return ChildFailed(ended, f"ended by {by}", Outcome.NO_MEMORY)
    if ended < 0:
        return ChildFailed(ended, f"ended by {signal.Signals(-ended).name}")
    last = (output.strip().splitlines() or [f"exit code {ended}"])[-1]
    return ChildFailed(ended, last, Outcome.NO_MEMORY if last.startswith("MemoryError") else Outcome.CRASHED)
