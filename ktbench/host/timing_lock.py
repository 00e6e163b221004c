"""One timing at a time on a host: a lock that the kernel releases when its holder ends in any way."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from ktbench.spec.errors import RequestError

_NAME = "ktbench-timing.lock"
_EVERYBODY = 0o666
_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that is timing: `what` it does, its `run` (empty without one), and since when (UTC)."""

    pid: int
    user: str
    what: str
    run: str
    since: str

    def __str__(self) -> str:
        run = f" of run {self.run}" if self.run else ""
        return f"{self.what}{run} (process {self.pid} of {self.user}, since {self.since})"


def lock_file() -> Path:
    """The file whose lock all users of this host share. It is in memory, so that it does not survive a reboot."""
    shared = Path("/dev/shm")
    return (shared if shared.is_dir() else Path("/tmp")) / _NAME


@contextmanager
def timing(
    what: str, run: str = "", on_wait: Callable[[Holder | None], None] | None = None, *, for_any: bool = False
) -> Iterator[None]:
    """Hold the lock while cells are timed. Children do not inherit it, so it ends with this process.

    With `on_wait`, which is called once with the holder, wait if the holder times the same `run` (shards of a sweep on
    one host run one after the other), or with `for_any` for any run. Otherwise raises RequestError with the holder.
    """
    file = _open(lock_file())
    try:
        _take(file, what, None if for_any else run, on_wait)
        _write(file, json.dumps(asdict(Holder(pid=os.getpid(), user=_user(), what=what, run=run, since=_now()))))
        try:
            yield
        finally:
            _write(file, "")
    finally:
        file.close()


def _open(path: Path) -> IO[bytes]:
    """A file that every user may lock. An existing one is opened without O_CREAT, which others may be denied."""
    try:
        with suppress(FileNotFoundError):
            return os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b", buffering=0)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT, _EVERYBODY), "r+b", buffering=0)
    except OSError as error:
        raise RequestError(f"{path}: the lock on timing cannot be opened ({error.strerror})") from None
    with suppress(PermissionError):  # another user created it a moment ago
        os.fchmod(file.fileno(), _EVERYBODY)
    return file


def who_times() -> Holder | None:
    """Who holds the lock, from the note alone: trying the lock could block a process that takes it at that moment."""
    with suppress(OSError), os.fdopen(os.open(lock_file(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return _read(file)
    return None


def _take(file: IO[bytes], what: str, run: str | None, on_wait: Callable[[Holder | None], None] | None) -> None:
    has_waited = False
    while not _try(file):
        holder = _read(file)
        if on_wait is None or (run is not None and holder is not None and holder.run != run):
            raise RequestError(
                f"{what}: this host is timing already: {holder or 'another process of ktbench'}; "
                "two timings disturb each other, wait until it has ended (wait=true does)"
            )
        if not has_waited:
            on_wait(holder)
        has_waited = True
        time.sleep(_POLL_S)


def _try(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(file: IO[bytes], note: str) -> None:
    with suppress(OSError):  # information for others; the lock works without it
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), note.encode(), 0)


def _read(file: IO[bytes]) -> Holder | None:
    """None before the holder has written its note; the note of a killed holder may still be there."""
    try:
        holder = Holder(**json.loads(os.pread(file.fileno(), 1 << 16, 0)))
    except (OSError, ValueError, TypeError):
        return None
    return holder if Path(f"/proc/{holder.pid}").exists() else None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
