"""Raises the walls around this process, for good. Runs in the child: imports little."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress

from ktbench.eval.sandbox import landlock, linux, seccomp
from ktbench.eval.sandbox.job import Walls

_STACK_BYTES = 64 * 2**20  # deep recursion is no error
_OPEN_FILES = 64


def raise_walls(asked: Walls) -> list[str]:
    """Deny this process network, files, processes and signals, and limit it; the walls that are up, in words.

    Only files below `readable` and in the present folder may be read, and only /dev/null written. Raises OSError with
    one line where the kernel cannot deny files or network: nothing may be run then.
    """
    if (machine := os.uname().machine) != "x86_64":
        raise OSError(errno.ENOSYS, f"the list of harmless system calls is one of x86-64, and this is {machine}")
    _limit(asked["cpu_s"], asked["memory_bytes"], asked["output_bytes"])
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    walls = ["limits of time, memory, output and threads", *_namespaces()]
    linux.drop_capabilities()
    _die_with(asked["parent"])
    version = _landlock([*asked["readable"], "."])
    _seccomp()
    return [*walls, f"Landlock {version} (files)", "seccomp (network, processes, signals)"]


def _limit(cpu_s: int, memory_bytes: int, output_bytes: int) -> None:
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_STACK: _STACK_BYTES,
        resource.RLIMIT_FSIZE: output_bytes,  # what it prints goes to a file in memory
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        granted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (granted, granted))


def _namespaces() -> list[str]:
    """A second wall before the network, where it is granted; seccomp denies the network by itself."""
    with suppress(OSError):
        linux.leave_namespaces()
        return ["namespaces (user, network)"]
    return []


def _die_with(parent: int) -> None:
    """The kernel kills this process when the parent dies. New namespaces undo this, so it comes after them."""
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _landlock(readable: Sequence[str]) -> int:
    """The version of Landlock that holds this process."""
    try:
        version = landlock.version()
        landlock.deny_files(readable, ["/dev/null"])
    except OSError as error:
        needs = "Linux 5.13 or later with landlock among its security modules"
        raise OSError(
            error.errno, f"Landlock, which denies files, is missing ({error.strerror}); needs {needs}"
        ) from None
    return version


def _seccomp() -> None:
    try:
        seccomp.deny_calls()
    except OSError as error:
        raise OSError(error.errno, f"seccomp, which denies the network, is missing ({error.strerror})") from None
