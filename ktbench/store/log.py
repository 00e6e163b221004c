"""Append-only log of a run: one checked JSON line per fact, flushed to disk before anything else happens."""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ktbench.core.errors import RequestError
from ktbench.core.plain import to_plain
from ktbench.core.published import Published
from ktbench.core.record import Environment, Header, Record
from ktbench.core.scored import Asked, Scored

LOG_NAME = "log.jsonl"
SCHEMA = 2
Fact = Header | Environment | Record | Published | Scored | Asked
KINDS: dict[type[Fact], str] = {
    Header: "header",
    Environment: "environment",
    Record: "record",
    Published: "published",
    Scored: "scored",
    Asked: "asked",
}


class StoreError(RequestError):
    """A log that cannot be read: says which file and line, and what is wrong with it."""


class Log:
    """Writer of one run folder. Only one process may append at a time; readers need no lock."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / LOG_NAME
        self._file = self.path.open("ab")
        self._lock()
        self._drop_half_line()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StoreError(f"{self.path}: another sweep is writing to this run") from None

    def _drop_half_line(self) -> None:
        """A killed writer may leave half a line; nothing was promised for it, so it goes before we append."""
        size = self.path.stat().st_size
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < size:
            self._file.truncate(whole)
            os.fsync(self._file.fileno())

    def append(self, *facts: Fact) -> None:
        """Write facts and return only when they are on disk."""
        self._file.writelines(map(encode, facts))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the run for other writers."""
        self._file.close()


def encode(fact: Fact) -> bytes:
    """One log line. The CRC-32 comes first and covers every byte after its comma, up to the newline."""
    body = json.dumps(to_plain(fact), sort_keys=True, separators=(",", ":"), allow_nan=False)
    checked = f'"schema":{SCHEMA},"kind":"{KINDS[type(fact)]}","body":{body}}}'.encode()
    return b'{"crc":%d,%s\n' % (zlib.crc32(checked), checked)


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(kind, body) of every whole line.

    Half a line at the end is dropped: its writer was killed. Raises StoreError for any other damage.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield _decode(line, f"{path}:{number}")


def _decode(line: bytes, where: str) -> tuple[str, Any]:
    try:
        content = json.loads(line)
        kind, body, crc, schema = (content[key] for key in ("kind", "body", "crc", "schema"))
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{where}: not a log line of ktbench") from None
    if zlib.crc32(line.partition(b",")[2].rstrip(b"\n")) != crc:
        raise StoreError(f"{where}: the line was changed after it was written (checksum differs)")
    if schema != SCHEMA:
        raise StoreError(f"{where}: schema {schema}, this version reads {SCHEMA}")
    return kind, body
