"""How numbers are written: four significant digits, an interval to the digits of its median."""

from __future__ import annotations

from math import floor, log10

from ktbench.stats.intervals import Interval

DASH = "—"


def decimals(value: float, digits: int = 4) -> int:
    """Places after the point that show so many significant digits."""
    return max(0, digits - 1 - floor(log10(abs(value)))) if value else 0


def number(value: float, digits: int = 4) -> str:
    """1234, 123.4, 12.34, 0.01234."""
    return f"{value:.{decimals(value, digits)}f}"


def interval(value: Interval, scale: float = 1.0) -> str:
    """`12.34 [12.10, 12.61]`."""
    places = decimals(value.mid * scale)
    low, mid, high = (f"{x * scale:.{places}f}" for x in (value.low, value.mid, value.high))
    return f"{mid} [{low}, {high}]"


def ratio(value: Interval) -> str:
    """A speed-up with two places, or three below 2: `1.027 [1.010, 1.040]`."""
    places = 3 if value.mid < 2 else 2
    return f"{value.mid:.{places}f} [{value.low:.{places}f}, {value.high:.{places}f}]"


def unit_of(dtype: str) -> str:
    """`TOPS` for integers, which are no floating-point operations, else `TFLOPS`."""
    return "TOPS" if dtype.startswith("int") else "TFLOPS"


def rate(per_s: float, dtype: str) -> str:
    """Operations per second with their unit: `0.798 TOPS`."""
    return f"{number(per_s / 1e12, 3)} {unit_of(dtype)}"


def plus_minus(value: Interval) -> str:
    """The relative half-width; a question mark where there were too few values for one."""
    return f"±{value.half_width:.1%}" if value.sound else "±?"
