"""Files that are there as a whole or not at all, whatever ends the process or fills the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeGuard

NOT_REGULAR = "it is no regular file of its own"


class NotWritten(OSError):
    """A file that could not be written; what had its name before still has it. `then` is what to do after mending."""

    def __init__(self, path: Path, number: int | None, reason: str, then: str = "repeat the command") -> None:
        says = f"{reason}: not written, what was there before is unchanged; make it writable, then {then}"
        super().__init__(number, says, str(path))
        self.path, self.reason = path, reason

    @classmethod
    def of(cls, path: Path, error: OSError) -> NotWritten:
        """What the system said, as an error of this file."""
        return cls(path, error.errno, error.strerror or str(error))

    def but_then(self, then: str) -> NotWritten:
        """The same with other advice."""
        return NotWritten(self.path, self.errno, self.reason, then)


@contextmanager
def whole_file(path: Path, *, synced: bool = False) -> Iterator[Path]:
    """Yields where to write, an empty file beside `path`, which becomes `path` if the block ends well.

    Otherwise it is removed; what a killed process has left there is written over. `synced`: it is on disk at the end,
    for what takes long to make. Raises NotWritten where the system refuses to write, where another process writes the
    same file, and where `path` is a folder, a device or a pipe, or what stands beside it a link.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, NOT_REGULAR)
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = _claimed(part)
    except OSError as error:
        raise NotWritten.of(path, error) from None
    with claim:
        try:
            yield part
            if synced:
                os.fsync(claim.fileno())
            part.replace(path)
            if synced:
                sync_folder(path.parent)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if _is_about(error, part):
                raise NotWritten.of(path, error) from None
            raise


def write_whole(path: Path, content: str | bytes, *, synced: bool = False) -> Path:
    """Write bytes, or a text with its newlines as they are. Returns the path. Raises as `whole_file`."""
    with whole_file(path, synced=synced) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def append_to(path: Path) -> IO[bytes]:
    """The regular file of this very name, new where there is none, opened to append without a buffer.

    Folders of runs come from others, too: what a link in them leads to is not written, and no pipe is waited for.
    Raises OSError for a link, a pipe and a device, and where the system refuses.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        number = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # of a link, and of a pipe that nobody reads
            raise OSError(errno.EINVAL, NOT_REGULAR, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    return open(path, "ab", buffering=0, opener=lambda *_: number)


def write_all(file: IO[bytes], content: bytes) -> None:
    """Write to a file without a buffer, and to its disk. Raises OSError; a part may be written then."""
    left = memoryview(content)
    while left:
        written = os.write(file.fileno(), left)
        if not written:
            raise OSError(errno.EIO, "the disk takes nothing and reports no error")
        left = left[written:]
    os.fsync(file.fileno())


def _claimed(part: Path) -> IO[bytes]:
    """The file, locked and empty. What is opened may have been renamed by its writer before it is locked."""
    while True:
        file = append_to(part)
        try:
            _lock(file)
            if is_named(file, part):
                file.truncate(0)
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: IO[bytes]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another process is writing it") from None
    except OSError:
        pass  # a file system without locks


def is_named(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one of that name still."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _is_about(error: BaseException, part: Path) -> TypeGuard[OSError]:
    """Whether writing has failed: errors of reading other files name them."""
    if not isinstance(error, OSError) or isinstance(error, NotWritten):
        return False
    return error.filename is None or str(error.filename) == str(part)


def sync_folder(folder: Path) -> None:
    """A file is found again after a power cut only when the folder that names it is on disk as well."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems have no such thing
            os.fsync(held)
    finally:
        os.close(held)
