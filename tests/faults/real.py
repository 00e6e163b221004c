"""Faults that need rights of their own: a disk that is really full or read-only, a kernel that is out of memory.

Where this machine does not grant them they are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.faults.findings import Finding
from tests.faults.others import bad_worker

_ROOT = Path(__file__).parents[2]
_MEMORY = Path("/sys/fs/cgroup/memory")
_LIMIT_BYTES = 600 << 20
_SWEEP = "import os, sys; from tests.faults.lives import begin, Path; life = begin(Path(sys.argv[1])); \
code = life.end(); print(code); print(life.message())"


def _mounted(folder: Path, options: str, runs: str) -> tuple[int, str] | None:
    """Exit code and message of a sweep whose `runs` is a file system of its own; None where that may not be made."""
    folder.mkdir(parents=True)
    (folder / runs).mkdir()
    script = f'mount -t tmpfs {options} none "$1/{runs}" && exec "$2" -c "$3" "$1"'
    words = ["unshare", "-rm", "sh", "-c", script, "sh", str(folder), sys.executable, _SWEEP]
    try:
        done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    if done.returncode:
        return None
    code, _, message = done.stdout.strip().partition("\n")
    return int(code), message


def really_full(folder: Path) -> Iterator[Finding]:
    """A file system of 64 KiB, which has room for the plan and some turns."""
    if found := _mounted(folder, "-o size=64k", "runs"):
        code, message = found
        assert code == 4, found
        yield Finding(
            fault="full disk, a file system of 64 KiB", times=1, happened=f"exit {code}", message=message, doubled=None,
            lost=None,
        )  # fmt: skip


def really_read_only(folder: Path) -> Iterator[Finding]:
    """A file system that was mounted read-only."""
    if found := _mounted(folder, "-o ro", "runs"):
        code, message = found
        assert code == 2, found
        yield Finding(
            fault="read-only file system", times=1, happened=f"exit {code} before any worker starts", message=message,
            lost=None, doubled=None,
        )  # fmt: skip


def oom_killed(folder: Path) -> Iterator[Finding]:
    """A worker fills its memory cgroup (version 1) until the kernel ends it."""
    group = _MEMORY / f"ktbench-faults-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(_LIMIT_BYTES))
    except OSError:
        return
    try:
        yield bad_worker(folder, "swells", lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    finally:
        group.rmdir()
