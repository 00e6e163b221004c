"""Numbers, strings and arrays out of the head of a GGUF file, from left to right; nothing in it is trusted."""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any

# Kinds of values by number (ggml's docs/gguf.md), as `struct` reads them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH_BYTES = 8


class Cursor:
    """Reads little-endian values. Raises ValueError for one that does not fit, and for a kind that does not exist."""

    def __init__(self, data: mmap) -> None:
        self.at = 0
        self._data = data

    def take(self, count: int) -> bytes:
        """The next so many bytes."""
        self._require(count)
        self.at += count
        return self._data[self.at - count : self.at]

    def u32(self) -> int:
        """A number of 32 bits without sign."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """A number of 64 bits without sign."""
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        """A string: its length in bytes, then UTF-8."""
        try:
            return self.take(self.u64()).decode()
        except UnicodeDecodeError:
            raise ValueError("damaged, a string in its header is not UTF-8") from None

    def value(self) -> Any:
        """A value after its kind: a number, a string, or a list of either."""
        kind = self.u32()
        return self._array() if kind == _ARRAY else self._one(kind)

    def _one(self, kind: int) -> Any:
        return self.text() if kind == _STRING else self._numbers(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind, count = self.u32(), self.u64()
        if kind != _STRING:
            return list(self._numbers(kind, count))
        self._require(count * _LENGTH_BYTES)
        return [self.text() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> tuple[Any, ...]:
        """Arrays of arrays, which the format has but no model uses, are refused like kinds that do not exist."""
        if kind not in _NUMBERS:
            raise ValueError(f"damaged, its header has a value of kind {kind}")
        self._require(count * struct.calcsize(f"<{_NUMBERS[kind]}"))
        form = f"<{count}{_NUMBERS[kind]}"
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def _require(self, count: int) -> None:
        if count > len(self._data) - self.at:
            raise ValueError(f"truncated, its header does not fit in {len(self._data):,} bytes")
