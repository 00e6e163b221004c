"""The kernel's small text files: one value each, absent where the machine has nothing to say."""

from __future__ import annotations

from pathlib import Path

_SIZE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def read_text(path: Path) -> str | None:
    """Stripped content; None where the file is absent or the kernel refuses to say."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The number in the file; None where it is absent or says something else (`max`)."""
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
