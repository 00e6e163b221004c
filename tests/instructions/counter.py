"""Counts the instructions that a call executes in a shared library, as many on a busy machine as on a quiet one."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ktbench.host.code import load_extension

SOURCE = Path(__file__).parent / "counter.c"
_WARM_UPS = 2  # symbols are bound, memory is reserved: after one call, as tried


class CannotCount(Exception):
    """Nothing can be counted here; the text is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """Counts on the thread that opened it, which must be the only one that executes the library's code meanwhile."""

    library: ctypes.CDLL

    def count(self, call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> int:
        """Instructions of the library in `call`, warmed up and counted twice, each time after `prepare`.

        RuntimeError where the two differ: something else than the call decides what is executed.
        """
        for _ in range(_WARM_UPS):
            prepare()
            call()
        first, second = self._counted(call, prepare), self._counted(call, prepare)
        if first != second:
            raise RuntimeError(f"the same call has executed {first:,} instructions, then {second:,}")
        return first

    def _counted(self, call: Callable[[], object], prepare: Callable[[], object]) -> int:
        prepare()
        gc.disable()  # destructors of the library may run whenever garbage is collected
        self.library.counter_begin()
        try:
            call()
        finally:
            counted = int(self.library.counter_end())
            gc.enable()
        return counted


def missing() -> str:
    """Why nothing can be counted on this machine, in a line; empty where it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"instructions are counted on Linux and x86-64 only, this is {sys.platform} on {platform.machine()}"
    if not shutil.which("cc"):
        return "there is no C compiler for the counter (cc): install gcc or clang"
    return load_extension().reason


@contextmanager
def open_counter(library: str, *, only_steps: bool = False) -> Iterator[Counter]:
    """A counter of the code in a loaded library, at most one at a time in a process; it keeps to one CPU meanwhile.

    `library` is the file's path. `only_steps` single-steps every instruction, which is slow and needs no breakpoints.
    Raises CannotCount.
    """
    if reason := missing():
        raise CannotCount(reason)
    first, nbytes = _code_of(library)
    before = os.sched_getaffinity(0)
    with TemporaryDirectory() as folder:
        counter = _built(Path(folder) / "counter.so")
        if error := counter.counter_open(first, nbytes, only_steps):
            raise CannotCount(f"the system does not let code be written ({os.strerror(error)})")
        try:
            os.sched_setaffinity(0, {min(before)})  # a team whose caller is on another CPU moves it there, and back
            yield Counter(library=counter)
        finally:
            counter.counter_close()
            os.sched_setaffinity(0, before)


def compiler_of(library: str) -> str:
    """Names and versions of the compilers that made the code of a library, as its comment section says."""
    named = re.findall(rb"GCC: \([^)\0]*\) [^\0]+|[^\0]*clang version [^\0]+", Path(library).read_bytes())
    return ", ".join(sorted({name.decode(errors="replace") for name in named})) or "unknown"


def _built(path: Path) -> ctypes.CDLL:
    words = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(path), str(SOURCE)]
    if (made := subprocess.run(words, capture_output=True, text=True, check=False)).returncode:
        raise CannotCount(f"the counter does not compile: {(made.stderr.splitlines() or ['no message'])[0]}")
    library = ctypes.CDLL(str(path))
    library.counter_open.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.counter_end.restype = ctypes.c_uint64
    return library


def _code_of(library: str) -> tuple[int, int]:
    """Address and bytes of the library's executable mapping."""
    real = os.path.realpath(library)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_, path = line.split(maxsplit=5)
        if permissions == "r-xp" and path == real:
            first, end = (int(address, 16) for address in addresses.split("-"))
            return first, end - first
    raise CannotCount(f"{library} has no code in this process")
