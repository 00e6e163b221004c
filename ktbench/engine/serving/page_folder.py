"""A folder of pages of keys and values, a file for each, that one process writes.

A page is there as a whole or not at all for whoever looks after a process was killed (`whole_file`). Nothing waits for
the disk: what a power cut damages fails its checksum and is a miss.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO

from ktbench.files import append_to, whole_file
from ktbench.spec.errors import error_text

_MAGIC, _VERSION = b"ktb-page", 1
# Magic, version, identity of what computes pages, name of the page, bytes of content; then CRC-32 of these and the
# content. 64 bytes, so that content is as aligned as what is read.
_HEADER, _CHECKSUM = struct.Struct("<8sI16s16sQ8x"), struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_DIGEST = 16
_BLOCK = 4096
_SUFFIX, _LOCK = ".page", "lock"
_PAGE = re.compile(r"[0-9a-f]{32}\.page")
_PART = re.compile(r"\.[0-9a-f]{32}\.page\.part")


class DamagedPage(Exception):
    """A file that is not the page it is named for; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPage:
    """A page of the folder: bytes on disk, and when it was last used, in ns of the system's clock."""

    name: str
    disk_bytes: int
    used_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fields:
    """What a header says of its page. The CRC-32 finds every change of up to 32 bits in a row."""

    identity: bytes
    name: str
    length: int
    checksum: int


def disk_bytes(content_bytes: int) -> int:
    """What a page takes on disk, in whole blocks of a file system."""
    return -(-(HEADER_BYTES + content_bytes) // _BLOCK) * _BLOCK


class PageFolder:
    """Names, reads, writes and deletes pages; several threads may, of different pages.

    `identity` is whatever contents depend on besides their key: model, precisions, layout. Pages of other identities
    have other names, so one folder serves several models one after the other. `unwritable` is why nothing can be
    written, empty where it can; then there is no lock, as readers need none. Raises ValueError for a path that is no
    folder, and for a folder that is locked or cannot be.
    """

    def __init__(self, folder: Path, identity: bytes | str) -> None:
        self.path = folder
        self._identity = _digest(identity.encode() if isinstance(identity, str) else identity)
        self._lock: IO[bytes] | None = None
        self.unwritable = ""
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: is no folder; name one for pages of the prefix cache")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # pages tell of the prompts they were made of
            self._lock = append_to(folder / _LOCK)
        except OSError as error:
            self.unwritable = error_text(error)
        if self._lock is not None:
            _take(self._lock, folder)

    def close(self) -> None:
        """Release the folder for other processes."""
        if self._lock is not None:
            self._lock.close()

    def name(self, key: bytes) -> str:
        """The name of a page: a keyed digest, so that any key makes one, and no other identity the same."""
        return _digest(key, self._identity).hex()

    def pages(self) -> list[StoredPage]:
        """All pages, of every identity, the least recently used first. What killed writers left is removed."""
        try:
            found = list(self._scan())
        except OSError:  # nothing is there, or nothing can be seen
            return []
        return sorted(found, key=lambda page: (page.used_ns, page.name))

    def read(self, name: str) -> memoryview:
        """The content of a page. Raises DamagedPage, and OSError where it is gone or cannot be read."""
        with self._file(name).open("rb", buffering=0) as file:  # buffers would copy the content twice
            fields = _fields(header := file.read(HEADER_BYTES))
            if os.fstat(file.fileno()).st_size != HEADER_BYTES + fields.length:
                raise DamagedPage("its length is not the one it was written with")
            content = memoryview(bytearray(fields.length))
            if file.readinto(content) != fields.length:
                raise DamagedPage("it was cut while it was read")
        if fields.checksum != zlib.crc32(content, zlib.crc32(header[: _HEADER.size])):
            raise DamagedPage("it was changed after it was written (checksum differs)")
        if fields.identity != self._identity:
            raise DamagedPage("it is of another model, precision or layout")
        if fields.name != name:
            raise DamagedPage("it is another page")
        return content

    def write(self, name: str, content: bytes, used_ns: int) -> None:
        """Write a page. Raises OSError where the system refuses; nothing of the page is left then."""
        with whole_file(self._file(name)) as part, part.open("wb") as file:
            file.write(self._header(name, content))
            file.write(content)
            file.flush()
            os.utime(file.fileno(), ns=(used_ns, used_ns))

    def use(self, name: str, used_ns: int) -> None:
        """Note when a page was last used, for the next process."""
        with suppress(OSError):
            os.utime(self._file(name), ns=(used_ns, used_ns), follow_symlinks=False)

    def delete(self, name: str) -> None:
        """Delete a page that may be gone already. Raises OSError where it stays."""
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{_SUFFIX}"

    def _scan(self) -> Iterator[StoredPage]:
        with os.scandir(self.path) as entries:
            for entry in entries:
                if _PART.fullmatch(entry.name) and self._lock is not None:
                    with suppress(OSError):
                        Path(entry.path).unlink()
                elif _PAGE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    stat = entry.stat()
                    blocks = disk_bytes(stat.st_size - HEADER_BYTES)
                    yield StoredPage(name=entry.name.removesuffix(_SUFFIX), disk_bytes=blocks, used_ns=stat.st_mtime_ns)

    def _header(self, name: str, content: bytes) -> bytes:
        fields = _HEADER.pack(_MAGIC, _VERSION, self._identity, bytes.fromhex(name), len(content))
        return fields + _CHECKSUM.pack(zlib.crc32(content, zlib.crc32(fields)))


def _fields(header: bytes) -> _Fields:
    """Raises DamagedPage for what is no header of this version."""
    if len(header) != HEADER_BYTES:
        raise DamagedPage("it ends within its header")
    magic, version, identity, name, length = _HEADER.unpack_from(header)
    if magic != _MAGIC:
        raise DamagedPage("it is no page of ktbench")
    if version != _VERSION:
        raise DamagedPage(f"it has version {version}, this ktbench reads {_VERSION}")
    checksum = _CHECKSUM.unpack_from(header, _HEADER.size)[0]
    return _Fields(identity=identity, name=name.hex(), length=length, checksum=checksum)


def _digest(content: bytes, key: bytes = b"") -> bytes:
    return blake2b(content, key=key, digest_size=_DIGEST).digest()


def _take(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(
            f"{folder}: another process keeps pages of its prefix cache there; end it, or name another folder"
        ) from None
    except OSError as error:
        file.close()
        raise ValueError(f"{folder}: cannot be locked ({error.strerror}); name a folder on a local disk") from None
