"""Readers of the kernel's small text files, which are absent if the machine lacks a feature."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_SIZE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def read_text(path: Path) -> str | None:
    """Stripped content; None if the file is absent or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The number in the file; None if it is absent or not a number (`max`)."""
    text = read_text(path)
    return int(text) if text and text.lstrip("-").isdecimal() else None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Ascending numbers of a kernel list such as `0-3,8`; an empty list is written as an empty line."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def parse_size(text: str) -> int:
    """Bytes of a kernel size such as `48K`."""
    unit = _SIZE_UNITS.get(text[-1:])
    return int(text[:-1]) * unit if unit else int(text)


def parse_counts(text: str) -> dict[str, int]:
    """Name and first number of every line, as in /proc/meminfo, /proc/vmstat and cpu.stat; colons are dropped."""
    pairs = (line.split()[:2] for line in text.splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def sum_known(values: Iterable[int | None]) -> int | None:
    """The sum of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
