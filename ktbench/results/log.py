"""Append-only log of a run: one checked line per fact, flushed to disk before anything else happens."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

from ktbench.results.lines import Fact, StoreError, checked_parts, encode
from ktbench.spec.record import Header

LOG_NAME = "log.jsonl"
# No other line can be read without the plan, so there is a second copy of it.
PLAN_NAME = "plan.jsonl"
HOLDER_NAME = "writer.txt"


class NotKept(OSError):
    """Facts that could not be put on disk; the log is as it was before them."""


class Log:
    """Writer of one run folder. Only one process may append at a time; readers need no lock.

    The lock is released when its process ends, however it ends. Half a line at the end, left by a writer that was
    killed, is dropped. Raises StoreError for a folder that cannot be written or locked, to which another process
    writes, or that holds facts already where a `new` run is to begin.
    """

    def __init__(self, folder: Path, *, new: bool = False) -> None:
        self.path = folder / LOG_NAME
        self._holder = folder / HOLDER_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritable(folder, error) from None
        self._lock()
        self._introduced: tuple[Fact, ...] = ()
        self._mend()
        if not self._size():
            _sync_names(folder)
        elif new:
            self.close()
            raise StoreError(
                f"run_name={folder.name}: {folder} holds a run already; continue it with resume={folder.name}"
            )

    def introduce(self, *facts: Fact) -> None:
        """Write facts in front of what is appended next: a session that adds nothing leaves the log as it was."""
        self._introduced = facts

    def append(self, *facts: Fact) -> None:
        """Write facts and return only when they are on disk. Raises NotKept."""
        facts, end = (*self._introduced, *facts), self._size()
        try:
            self._write(b"".join(map(encode, facts)))
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            raise NotKept(
                f"{self.path}: {error.strerror}: this is not kept, all before it is; make the disk writable, "
                f"then continue with the same command and resume={self.path.parent.name}"
            ) from None
        self._introduced = ()
        for fact in facts:
            if isinstance(fact, Header):
                self._copy(fact)

    def close(self) -> None:
        """Release the run for other writers."""
        if not self._file.closed:
            with suppress(OSError):  # a note without its lock is ignored
                self._holder.unlink()
            self._file.close()

    def _lock(self) -> None:
        try:
            if not try_lock(self._file):
                raise StoreError(f"{self.path}: {self._who()} is writing to this run; wait until it has ended")
        except StoreError:
            self._file.close()
            raise
        with suppress(OSError):
            self._holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")

    def _copy(self, plan: Header) -> None:
        with suppress(OSError), (self.path.parent / PLAN_NAME).open("wb") as file:
            file.write(encode(plan))
            file.flush()
            os.fsync(file.fileno())

    def _who(self) -> str:
        """The other writer by its own note, which is written after it has the lock."""
        with suppress(OSError, ValueError):
            if note := self._holder.read_text().strip():
                return f"another sweep ({note})"
        return "another sweep"

    def _mend(self) -> None:
        """Drops half a line at the end; a whole line that lost its newline gets one."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole == len(content):
            return
        if any(isinstance(part, bytes) for part in checked_parts(content[whole:])):
            self._write(b"\n")
        else:
            self._file.truncate(whole)
            os.fsync(self._file.fileno())

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            left = left[os.write(self._file.fileno(), left) :]
        os.fsync(self._file.fileno())


def free_folder(parent: Path, name: str) -> Path:
    """A new folder `parent`/`name`, or `name`-2 and so on where that is taken. Raises StoreError."""
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(folder, error) from None
    raise AssertionError("numbers do not end")


def try_lock(file: IO[bytes], *, shared: bool = False) -> bool:
    """Lock an open log until it is closed; False where another process holds it.

    A `shared` lock only keeps writers away. Raises StoreError where the file system gives no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(
            f"{file.name}: {error.strerror}: this file system gives no locks; put runs/ on one that does"
        ) from None
    return True


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"{folder}: a run cannot be written there ({error.strerror}); start ktbench where you may write")


def _sync_names(folder: Path) -> None:
    """A file is found again after a power cut only when the folder that names it is on disk as well."""
    for named in (folder, folder.parent):
        held = os.open(named, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # some network file systems have no such thing
                os.fsync(held)
        finally:
            os.close(held)
