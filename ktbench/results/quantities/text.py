"""How numbers are written: four significant digits, an interval to the digits of its median."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import floor, log10
from typing import TypeVar

from ktbench.results.intervals import Interval, is_exact

T = TypeVar("T")
NO_ENDS = "±?"  # of too few values for an interval
DASH = "—"


def in_gib(nbytes: int) -> str:
    """`5.3`."""
    return f"{nbytes / 2**30:.1f}"


def dashed(value: T | None, write: Callable[[T], str]) -> str:
    """A value as `write` gives it; a dash where there is none."""
    return DASH if value is None else write(value)


def decimals(value: float, digits: int = 4) -> int:
    """Places after the point that show so many significant digits."""
    return max(0, digits - 1 - floor(log10(abs(value)))) if value else 0


def number(value: float, digits: int = 4) -> str:
    """1234, 123.4, 12.34, 0.01234."""
    return f"{value:.{decimals(value, digits)}f}"


def interval(value: Interval, scale: float = 1.0) -> str:
    """`12.34 [12.10, 12.61]`."""
    return _with_ends(value, scale, decimals(value.mid * scale))


def ratio(value: Interval) -> str:
    """A speed-up with two places, or three below 2: `1.027 [1.010, 1.040]`."""
    return _with_ends(value, 1.0, 3 if value.mid < 2 else 2)


def percent(value: Interval) -> str:
    """A share: `72 [70, 75]`."""
    return _with_ends(value, 100.0, 0)


def _with_ends(value: Interval, scale: float, places: int) -> str:
    """The ends of the interval in brackets; `±?` where there were too few values for one, nothing where it has none."""
    low, mid, high = (f"{x * scale:.{places}f}" for x in (value.low, value.mid, value.high))
    return f"{mid} [{low}, {high}]" if value.has_ends else mid if is_exact(value) else f"{mid} {NO_ENDS}"


def unit_of(dtype: str) -> str:
    """`TOPS` for integers, which are no floating-point operations, else `TFLOPS`."""
    return "TOPS" if dtype.startswith("int") else "TFLOPS"


def rate(per_s: float, dtype: str) -> str:
    """Operations per second with their unit: `0.798 TOPS`."""
    return f"{number(per_s / 1e12, 3)} {unit_of(dtype)}"


def plus_minus(value: Interval) -> str:
    """The relative half-width; a question mark where there were too few values for one, nothing where it has none."""
    if is_exact(value):
        return ""
    return f"±{value.half_width:.1%}" if value.sound else NO_ENDS


# Between the entries of a cell that is a list of texts, none of which contains it.
SEPARATOR = " | "


def list_text(entries: Iterable[str]) -> str:
    """Texts in one cell, each once, which `str.split(" | ")` takes apart."""
    return SEPARATOR.join(dict.fromkeys(entry.replace("|", "/") for entry in entries))


def pairs_text(values: Mapping[str, object]) -> str:
    """A list of values by name in one cell, such as the reasons why others are missing."""
    return list_text(f"{name}: {value}" for name, value in values.items())
