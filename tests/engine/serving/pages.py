"""Pages of the disk level, their files, and ways to damage them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from ktbench.engine.serving.disk import DiskPages

BLOCK = 4096


@contextmanager
def opened(
    folder: Path, *, limit: int = 2**30, identity: bytes | str = "model", memory: int = 2**24, **more: Any
) -> Iterator[DiskPages]:
    """The folder's pages, closed at the end: all that is queued is written then."""
    pages = DiskPages(folder, limit, identity, memory_bytes=memory, **more)
    try:
        yield pages
    finally:
        pages.close()


def written(pages: DiskPages) -> Mapping[str, int]:
    """The counters as soon as nothing is queued."""
    deadline = time.monotonic() + 60
    while (counts := pages.counters())["disk_queued"]:
        assert time.monotonic() < deadline
        time.sleep(0.0002)
    return counts


def until_ahead(pages: DiskPages, count: int) -> None:
    """Wait for so many pages that are read ahead, and no more."""
    deadline = time.monotonic() + 60
    while pages.counters()["disk_ahead"] != count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def key_of(i: int) -> bytes:
    return b"key %d" % i


def content_of(i: int, length: int) -> bytes:
    """What a key always stands for."""
    return Random(i).randbytes(length)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.page"))


def file_of(pages: DiskPages, i: int) -> Path:
    folder = pages._folder
    return folder.path / f"{folder.name(key_of(i))}.page"


def damage(file: Path, random: Random, kinds: Sequence[str] = ("flip", "cut", "append")) -> None:
    """Flip a bit, cut, or append; when the page was last used is left as it is."""
    content, used_ns = bytearray(file.read_bytes()), file.stat().st_mtime_ns
    match random.choice(kinds):
        case "flip":
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        case "cut":
            del content[random.randrange(len(content)) :]
        case "append":
            content += random.randbytes(random.randrange(1, 100))
    file.write_bytes(content)
    os.utime(file, ns=(used_ns, used_ns))
