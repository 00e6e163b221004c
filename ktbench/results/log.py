"""Append-only log of a run: one checked line per fact, flushed to disk before anything else happens."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

from ktbench.files import NOT_REGULAR, append_to, is_named, sync_folder, write_all, write_whole
from ktbench.results.lines import Fact, StoreError, checked_parts, encode, is_log
from ktbench.spec.record import Header

LOG_NAME = "log.jsonl"
# No other line can be read without the plan, so there is a second copy of it.
PLAN_NAME = "plan.jsonl"
HOLDER_NAME = "writer.txt"
_MOST_NOTE = 200  # bytes


def holds_run(folder: Path) -> bool:
    """Whether there is a log in a folder that has facts."""
    with suppress(OSError):
        return bool((folder / LOG_NAME).stat().st_size)
    return False


def already_there(folder: Path) -> StoreError:
    """The refusal to begin a run in a folder that holds one."""
    return StoreError(f"run_name={folder.name}: {folder} holds a run already; continue it with resume={folder.name}")


class NotKept(OSError):
    """Facts that could not be put on disk; the log is as it was before them."""


class Log:
    """Writer of one run folder. Only one process may append at a time; readers need no lock.

    The lock is released when its process ends, however it ends. Half a line at the end, left by a writer that was
    killed, is dropped. Raises StoreError for a folder that cannot be written or locked, to which another process
    writes, whose log is none, or that holds facts already where a `new` run is to begin.
    """

    def __init__(self, folder: Path, *, new: bool = False) -> None:
        self.path = folder / LOG_NAME
        self._holder = folder / HOLDER_NAME
        self._file = self._locked()
        self._introduced: tuple[Fact, ...] = ()
        self._mend()
        if not self._size():
            sync_folder(folder)
            sync_folder(folder.parent)
        elif new:
            self.close()
            raise already_there(folder)

    def introduce(self, *facts: Fact) -> None:
        """Write facts in front of what is appended next: a session that adds nothing leaves the log as it was."""
        self._introduced = facts

    def append(self, *facts: Fact) -> None:
        """Write facts and return only when they are on disk. Raises NotKept; a run without any leaves nothing then."""
        facts, end = (*self._introduced, *facts), self._size()
        try:
            write_all(self._file, b"".join(map(encode, facts)))
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            if not end:
                self.close()
                _remove_empty(self.path)
            raise NotKept(f"{self.path}: {error.strerror}: {self._kept(end)}") from None
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

    def _locked(self) -> IO[bytes]:
        """The file with its lock; one that its writer removes meanwhile is opened anew."""
        while True:
            is_new, file = not self.path.exists(), self._opened()
            if not self._lock(file, is_new=is_new):
                file.close()
                raise StoreError(f"{self.path}: {self._who()} is writing to this run; wait until it has ended")
            if is_named(file, self.path):
                self._note_holder()
                return file
            file.close()

    def _opened(self) -> IO[bytes]:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return append_to(self.path)
        except OSError as error:
            if error.strerror == NOT_REGULAR:
                why = f"this is no log of ktbench ({NOT_REGULAR}), and stays as it is; name another run"
                raise StoreError(f"{self.path}: {why}") from None
            raise _unwritable(folder, error) from None

    def _note_holder(self) -> None:
        """Who writes, for those who come later; a run is written without the note where that is no file of its own."""
        with suppress(OSError), append_to(self._holder) as note:
            note.truncate(0)
            note.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def _lock(self, file: IO[bytes], *, is_new: bool) -> bool:
        try:
            return try_lock(file)
        except StoreError:
            file.close()
            if is_new:
                _remove_empty(self.path)
            raise

    def _kept(self, end: int) -> str:
        """What is there of the run where writing after so many bytes has failed, and what to do."""
        if not end:
            return "nothing is kept; make the disk writable, then repeat the command"
        name = self.path.parent.name
        return (
            "this is not kept, all before it is; make the disk writable, "
            f"then continue with the same command and resume={name}"
        )

    def _copy(self, plan: Header) -> None:
        with suppress(OSError):
            write_whole(self.path.parent / PLAN_NAME, encode(plan), synced=True)

    def _who(self) -> str:
        """The other writer by its own note, which is written after it has the lock."""
        with suppress(OSError, ValueError):
            number = os.open(self._holder, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(number, "rb", buffering=0) as file:
                if note := (file.read(_MOST_NOTE) or b"").decode().strip():
                    return f"another sweep ({note})"
        return "another sweep"

    def _mend(self) -> None:
        """Drops half a line at the end; a whole line that lost its newline gets one. What is no log stays as it is."""
        content = self.path.read_bytes()
        if not is_log(content):
            self.close()
            raise StoreError(f"{self.path}: this is no log of ktbench, and stays as it is; name another run")
        whole = content.rfind(b"\n") + 1
        if whole == len(content):
            return
        if any(isinstance(part, bytes) for part in checked_parts(content[whole:])):
            write_all(self._file, b"\n")
        else:
            self._file.truncate(whole)
            os.fsync(self._file.fileno())

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


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


def _remove_empty(log: Path) -> None:
    """A log to which nothing was written, and its folder unless it holds anything else."""
    with suppress(OSError):
        log.unlink()
        log.parent.rmdir()


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"{folder}: a run cannot be written there ({error.strerror}); start ktbench where you may write")
