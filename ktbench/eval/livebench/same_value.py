"""Whether two formulae are the same function of their names."""

from __future__ import annotations

import cmath
import random
from collections.abc import Iterator

from ktbench.eval.livebench.latex import Formula, read_formula
from ktbench.eval.livebench.latex_values import Point, Value

POINTS = 12
ENOUGH = 4  # points at which both formulae have a value
EXACT = 1e-9  # relative


def same_value(answer: str, truth: str, *, within: float = EXACT, sign: int = 1) -> bool:
    """Whether `answer` is `sign` times `truth`, both LaTeX: numbers up to `within`, functions by their values.

    Two functions are the same where they agree to nine digits at fixed complex points, of which at least four have to
    be in the domain of both. Unlike a symbolic difference that has to simplify to nothing this always ends. What
    cannot be read is not the same as anything.
    """
    try:
        ours, theirs = read_formula(answer), read_formula(truth)
    except ValueError:
        return False
    if not ours.names and not theirs.names:
        return _same_number(ours, theirs, within, sign)
    return _same_function(ours, theirs, sign)


def _same_number(ours: Formula, theirs: Formula, within: float, sign: int) -> bool:
    a, b = _value(ours.value, {}), _value(theirs.value, {})
    return a is not None and b is not None and abs(a - sign * b) <= max(within, EXACT * abs(b))


def _same_function(ours: Formula, theirs: Formula, sign: int) -> bool:
    agreed = 0
    for point in _points(ours.names | theirs.names):
        a, b = _value(ours.value, point), _value(theirs.value, point)
        if a is None or b is None:
            continue
        if abs(a - sign * b) > EXACT * (max(abs(a), abs(b)) + 1e-6):
            return False
        agreed += 1
    return agreed >= ENOUGH


def _points(names: frozenset[str]) -> Iterator[Point]:
    draw = random.Random(0)
    for _ in range(POINTS):
        yield {name: complex(draw.uniform(-1.3, 1.3), draw.uniform(-1.3, 1.3)) for name in sorted(names)}


def _value(value: Value, at: Point) -> complex | None:
    """The value there, None where there is none."""
    try:
        found = complex(value(at))
    except (ArithmeticError, ValueError, RecursionError):
        return None
    return found if cmath.isfinite(found) else None
