"""The disk level of the prefix cache: pages in a folder, written and read ahead beside the engine's steps.

A file for each page, and not one file of segments: deleting the least recently used page frees its space at once and
nothing is ever compacted; a killed process leaves whole pages, and the index is a listing of the folder. A page has
about a megabyte (16 tokens of DeepSeek-V3: 1.1 MiB), so that a file costs little beside its content.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

from ktbench.engine.serving.page_folder import DamagedPage, PageFolder, disk_bytes
from ktbench.files import NotWritten
from ktbench.spec.serving.pages import DISK_MEMORY_BYTES

_LOG = logging.getLogger(__name__)


class DiskPages:
    """Pages by key in a folder of at most `limit_bytes`; the least recently used make room, over restarts as well.

    A key stands for its content: one that is held is not written again. Pages that wait to be written, and pages read
    ahead, take at most `memory_bytes` each; pages that come when the queue is full are dropped. What is damaged or not
    of this `identity` is a miss, with one warning. A disk that takes no more is left alone for `retry_s` seconds, with
    one warning until it takes pages again. One thread calls it. Raises ValueError for a limit below 1, and as
    `PageFolder`.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        identity: bytes | str,
        *,
        memory_bytes: int = DISK_MEMORY_BYTES,
        retry_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if limit_bytes < 1:
            raise ValueError(f"{folder}: a limit of {limit_bytes} bytes, must be 1 or more")
        self._limit, self._memory = limit_bytes, memory_bytes
        self._folder = PageFolder(folder, identity)
        # All that follows is read and changed under this lock.
        self._changed = threading.Condition()
        self._counts: Counter[str] = Counter()
        found = self._folder.pages()
        self._held = OrderedDict((page.name, page.disk_bytes) for page in found)  # the least recently used first
        self._held_bytes = sum(self._held.values())
        self._used_ns = max((page.used_ns for page in found), default=0)
        self._queued: dict[str, bytes] = {}
        self._queued_bytes = 0
        self._ahead: dict[str, memoryview | None] = {}  # contents, once they are there
        self._wanted: deque[str] = deque()
        self._reading: str | None = None
        self._is_closed = False
        self._retry_s, self._clock = retry_s, clock
        self._refused_until = -inf  # by the clock
        self._is_refusing = False  # as far as is known
        if self._folder.unwritable:
            self._refused_until = inf
            self._warn_unwritten(self._folder.unwritable, "no pages are written there")
        self._unless_refused(lambda: self._shrink_to(limit_bytes))
        self._threads = [
            threading.Thread(target=loop, name=f"ktbench {loop.__name__.strip('_')}", daemon=True)
            for loop in (self._write_queued, self._read_wanted)
        ]
        for thread in self._threads:
            thread.start()

    def get(self, key: bytes) -> bytes | memoryview | None:
        """The content of a page, from memory where it is queued or read ahead; None where there is none."""
        name = self._folder.name(key)
        with self._changed:
            content = self._in_memory(name)
        content = self._read(name) if content is None else content
        with self._changed:
            self._counts["disk_misses" if content is None else "disk_hits"] += 1
        return content

    def put(self, key: bytes, content: bytes | bytearray | memoryview, *, wait: bool = False) -> None:
        """Queue a copy of a page for writing, unless it is held, the queue is full or nothing is written any more.

        With `wait` a full queue is waited for.
        """
        name, nbytes = self._folder.name(key), memoryview(content).nbytes
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: not self._queued or self._queued_bytes + nbytes <= self._memory)
            if name in self._queued or name in self._held:
                self._use(name)
            elif self._takes(nbytes):
                self._queued[name] = bytes(content)
                self._queued_bytes += nbytes
                self._changed.notify_all()
            else:
                self._counts["disk_dropped"] += 1

    def contains(self, key: bytes) -> bool:
        """Whether a page is held or queued. It may prove damaged when it is read."""
        name = self._folder.name(key)
        with self._changed:
            return name in self._held or name in self._queued

    def use(self, keys: Sequence[bytes]) -> None:
        """Note that pages of a prompt, in its order, are asked for: its last ones, of no use alone, make room first."""
        with self._changed:
            for key in reversed(keys):
                self._use(self._folder.name(key))

    def read_ahead(self, prompts: Iterable[Iterable[bytes]]) -> None:
        """Begin to read the pages of prompts that `get` will ask for in this order, as many as memory takes.

        Other pages that were read ahead make room. Of a prompt nothing is read behind its first page that is nowhere.
        """
        with self._changed:
            ahead: dict[str, memoryview | None] = {}
            room = self._memory
            for name, size in self._readable(prompts):
                if name in ahead:
                    continue
                if (room := room - size) < 0:
                    break
                ahead[name] = self._ahead.get(name)
            self._ahead = ahead
            self._wanted = deque(name for name in ahead if ahead[name] is None and name != self._reading)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all that is queued is written, or dropped where the disk takes no more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queued)

    def counters(self) -> Mapping[str, int]:
        """Cumulative counts of pages, and what is held, queued and read ahead now."""
        names = ("disk_hits", "disk_misses", "disk_written", "disk_dropped", "disk_deleted", "disk_damaged")
        with self._changed:
            return {name: self._counts[name] for name in names} | {
                "disk_pages": len(self._held),
                "disk_bytes": self._held_bytes,
                "disk_queued": len(self._queued),
                "disk_ahead": sum(content is not None for content in self._ahead.values()),
            }

    def close(self) -> None:
        """Write what is queued, end the threads and release the folder."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._folder.close()

    def _in_memory(self, name: str) -> bytes | memoryview | None:
        """A page that is queued or read ahead; one that is being read is waited for, it would take as long again."""
        self._changed.wait_for(lambda: self._reading != name)
        if name in self._queued:
            return self._queued[name]
        return self._ahead.pop(name, None)

    @property
    def _is_writable(self) -> bool:
        return self._clock() >= self._refused_until

    def _takes(self, nbytes: int) -> bool:
        """Whether a page is accepted for writing."""
        is_open = self._is_writable and not self._is_closed
        return is_open and disk_bytes(nbytes) <= self._limit and self._queued_bytes + nbytes <= self._memory

    def _use(self, name: str) -> None:
        if name in self._held:
            self._held.move_to_end(name)
            self._folder.use(name, self._now_ns())

    def _now_ns(self) -> int:
        """The time, later than all before it, whatever the clock does."""
        self._used_ns = max(self._used_ns + 1, time.time_ns())
        return self._used_ns

    def _write_queued(self) -> None:
        """Until closed. Only this thread takes pages from the queue and deletes any for others."""
        while (name := self._next_queued()) is not None:
            self._unless_refused(partial(self._write, name, self._queued[name]))

    def _next_queued(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._is_closed)
            return next(iter(self._queued), None)

    def _write(self, name: str, content: bytes) -> None:
        size = disk_bytes(len(content))
        self._shrink_to(self._limit - size)
        with self._changed:
            used_ns = self._now_ns()
        self._folder.write(name, content, used_ns)
        with self._changed:
            self._queued_bytes -= len(self._queued.pop(name))
            self._held[name] = size
            self._held_bytes += size
            self._counts["disk_written"] += 1
            self._is_refusing = False
            self._changed.notify_all()

    def _shrink_to(self, most_bytes: int) -> None:
        """Delete least recently used pages. Raises OSError where they stay."""
        while (name := self._next_to_delete(most_bytes)) is not None:
            self._folder.delete(name)

    def _next_to_delete(self, most_bytes: int) -> str | None:
        with self._changed:
            if self._held_bytes <= most_bytes or not self._is_writable:
                return None
            name, size = self._held.popitem(last=False)
            self._held_bytes -= size
            self._counts["disk_deleted"] += 1
            return name

    def _unless_refused(self, change: Callable[[], None]) -> None:
        """Change the folder; where the system refuses, nothing is written for a while."""
        try:
            change()
        except OSError as error:
            with self._changed:
                is_first, self._is_refusing = not self._is_refusing, True
            if is_first:  # before anyone learns that the queue is empty
                why = error.reason if isinstance(error, NotWritten) else error.strerror or str(error)
                self._warn_unwritten(why, f"pages are written there again once that is possible, tried every "
                                          f"{self._retry_s:g} s")  # fmt: skip
            with self._changed:
                self._refused_until = self._clock() + self._retry_s
                self._counts["disk_dropped"] += len(self._queued)
                self._queued.clear()
                self._queued_bytes = 0
                self._changed.notify_all()

    def _warn_unwritten(self, why: str, then: str) -> None:
        _LOG.warning("%s: %s: %s; what it holds is still read", self._folder.path, why, then)

    def _read_wanted(self) -> None:
        """Until closed."""
        while (name := self._next_wanted()) is not None:
            content = self._read(name)
            with self._changed:
                self._reading = None
                if content is None:
                    self._ahead.pop(name, None)
                elif name in self._ahead:
                    self._ahead[name] = content
                self._changed.notify_all()

    def _next_wanted(self) -> str | None:
        """The next page to read that nobody has asked for meanwhile."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._wanted or self._is_closed)
                if self._is_closed:
                    return None
                name = self._wanted.popleft()
                if name in self._ahead:
                    self._reading = name
                    return name

    def _readable(self, prompts: Iterable[Iterable[bytes]]) -> Iterator[tuple[str, int]]:
        """Names and bytes on disk of pages that were read ahead or can be."""
        for prompt in prompts:
            for name in map(self._folder.name, prompt):
                content = self._ahead.get(name)  # may be deleted meanwhile
                size = self._held.get(name) if content is None else disk_bytes(len(content))
                if size is not None:
                    yield name, size
                elif name not in self._queued:
                    break

    def _read(self, name: str) -> memoryview | None:
        """A page from disk; None where there is none, or none that can be believed."""
        with self._changed:
            if name not in self._held:
                return None
        try:
            return self._folder.read(name)
        except FileNotFoundError:  # deleted a moment ago, or by someone else
            self._discard(name)
        except (DamagedPage, OSError) as error:
            self._discard(name)
            self._warn_damaged(name, error)
        return None

    def _discard(self, name: str) -> None:
        """Forget a page and delete it where that is possible."""
        with self._changed:
            self._held_bytes -= self._held.pop(name, 0)
            with suppress(OSError):
                self._folder.delete(name)

    def _warn_damaged(self, name: str, error: Exception) -> None:
        with self._changed:
            self._counts["disk_damaged"] += 1
            is_first = self._counts["disk_damaged"] == 1
        if is_first:
            why = error.strerror if isinstance(error, OSError) else error
            _LOG.warning("%s: page %s is not used: %s; further ones are counted only", self._folder.path, name[:8], why)
