"""The prefix cache below the device's pages: keys of their contents, and copies in memory and on a disk.

A key is the digest of the key before it and of the tokens of its own page (blake2b), so that equal keys mean equal
tokens from the first on; the first follows from all that decides the numbers: weights, formats and kernels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ktbench.engine.loading.weights_id import weights_id
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import digest, to_wire

_KEY_BYTES = 16
# Of the settings of an engine those that decide how fast a step is, not what it gives.
_SPEED_ALONE = ("serving", "placement", "threads", "roles", "device_threads")


class PageStore(Protocol):
    """The level below: `ktbench.engine.serving.disk.DiskPages`."""

    def get(self, key: bytes) -> bytes | memoryview | None:
        """Contents of a page; None where they are not there."""

    def put(self, key: bytes, content: memoryview, *, wait: bool) -> None:
        """Keep a copy of contents."""

    def use(self, keys: Sequence[bytes]) -> None:
        """Pages of a prompt are asked for: its last ones make room first."""

    def read_ahead(self, prompts: Iterable[Iterable[bytes]]) -> None:
        """Contents of pages of prompts that will be asked for in this order; no others."""

    def flush(self) -> None:
        """Wait until what was put is written."""

    def counters(self) -> Mapping[str, int]:
        """What was read, written and deleted, by names of its own."""

    def close(self) -> None:
        """End."""


def first_key(spec: RunSpec) -> bytes:
    """What the keys of a cell begin with."""
    engine = {name: value for name, value in to_wire(spec.engine.without_serving).items() if name not in _SPEED_ALONE}
    numbers = [weights_id(spec.model), spec.precision, spec.device_precision, to_wire(spec.inject), engine]
    return blake2b(digest([*numbers, spec.engine.serving.page_tokens]).encode(), digest_size=_KEY_BYTES).digest()


def next_key(before: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a page of tokens behind others."""
    return blake2b(before + np.asarray(tokens, np.int64).tobytes(), digest_size=_KEY_BYTES).digest()


class PageCopies:
    """Contents of pages that have left the device: up to `ram_bytes` in memory, and what leaves those on the disk.

    A step must not wait for a slow disk: what its queue has no room for is dropped, but inside `waiting`.
    """

    def __init__(self, ram_bytes: int, disk: PageStore | None) -> None:
        self._limit, self._disk = ram_bytes, disk
        self._held: OrderedDict[bytes, Tensor] = OrderedDict()
        self.nbytes = 0
        self._waits = False
        self._read = 0

    def put(self, key: bytes, content: Tensor) -> None:
        """Keep a copy of the contents of a page, bf16 [numbers]."""
        if key in self._held:
            self._held.move_to_end(key)
        elif content.nbytes > self._limit:
            self._write(key, content)
        else:
            self._held[key] = content.clone()
            self.nbytes += content.nbytes
        while self.nbytes > self._limit:
            self._write(*self._pop())

    def take(self, key: bytes, to: Tensor) -> bool:
        """Move the contents from memory to `to`, or copy them from the disk; False where they are nowhere."""
        found = self._held.pop(key, None)
        if found is not None:
            self.nbytes -= found.nbytes
            self._read += 1
            to.copy_(found)
            return True
        content = None if self._disk is None else self._disk.get(key)
        if content is None or len(content) != to.nbytes:
            return False
        to.copy_(_numbers(content, to.dtype))
        return True

    def use(self, keys: Sequence[bytes]) -> None:
        """Note that pages of a prompt are asked for: its last ones, of no use alone, make room first.

        Those that a level above has are left out: they come down again when they leave it.
        """
        for key in reversed(keys):
            if key in self._held:
                self._held.move_to_end(key)
        if self._disk is not None:
            self._disk.use([key for key in keys if key not in self._held])

    def read_ahead(self, prompts: Iterable[Iterable[bytes]]) -> None:
        """Have the disk level fetch what is not in memory of the pages of prompts, in order of their admission."""
        if self._disk is not None:
            self._disk.read_ahead((key for key in keys if key not in self._held) for keys in prompts)

    def counters(self) -> Mapping[str, int]:
        """Pages read of memory, and what the disk level counts."""
        return {"ram_pages_read": self._read, **({} if self._disk is None else self._disk.counters())}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, a full queue of the disk is waited for."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def forget(self) -> None:
        """Drop what is in memory."""
        self._held.clear()
        self.nbytes = 0

    def close(self) -> None:
        """What is in memory goes to the disk, where there is one."""
        self._write_all()
        if self._disk is not None:
            self._disk.close()

    def to_disk(self) -> None:
        """The same, and what comes later is kept again."""
        self._write_all()
        if self._disk is not None:
            self._disk.flush()

    def _write_all(self) -> None:
        while self._held:
            self._write(*self._pop())

    def _pop(self) -> tuple[bytes, Tensor]:
        key, content = self._held.popitem(last=False)
        self.nbytes -= content.nbytes
        return key, content

    def _write(self, key: bytes, content: Tensor) -> None:
        if self._disk is not None:
            self._disk.put(key, content.contiguous().view(torch.uint8).numpy().data, wait=self._waits)


def _numbers(content: bytes | memoryview, dtype: torch.dtype) -> Tensor:
    read_only = np.frombuffer(content, np.uint8)
    return torch.from_numpy(read_only.copy()).view(dtype)
