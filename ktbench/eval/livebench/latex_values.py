"""What formulae are made of: complex values that depend on names, functions, constants."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping

Point = Mapping[str, complex]
Value = Callable[[Point], complex]

FUNCTIONS: Mapping[str, Callable[[complex], complex]] = {
    r"\sin": cmath.sin,
    r"\cos": cmath.cos,
    r"\tan": cmath.tan,
    r"\sec": lambda z: 1 / cmath.cos(z),
    r"\csc": lambda z: 1 / cmath.sin(z),
    r"\cot": lambda z: 1 / cmath.tan(z),
    r"\sinh": cmath.sinh,
    r"\cosh": cmath.cosh,
    r"\tanh": cmath.tanh,
    r"\arcsin": cmath.asin,
    r"\arccos": cmath.acos,
    r"\arctan": cmath.atan,
    r"\exp": cmath.exp,
    r"\ln": cmath.log,
    r"\log": cmath.log,
}
INVERSES = {r"\sin": r"\arcsin", r"\cos": r"\arccos", r"\tan": r"\arctan"}
CONSTANTS: Mapping[str, complex] = {"e": math.e, "i": 1j, r"\pi": math.pi, r"\infty": math.inf}
GREEK = (
    r"\alpha",
    r"\beta",
    r"\gamma",
    r"\delta",
    r"\theta",
    r"\lambda",
    r"\mu",
    r"\phi",
    r"\omega",
    r"\sigma",
    r"\tau",
)


def constant(value: complex) -> Value:
    """The value that is the same everywhere."""
    return lambda at: value


def plus(a: Value, b: Value) -> Value:
    """Their sum."""
    return lambda at: a(at) + b(at)


def times(a: Value, b: Value) -> Value:
    """Their product."""
    return lambda at: a(at) * b(at)


def raised(a: Value, b: Value) -> Value:
    """The principal value of a to the power of b."""
    return lambda at: complex(a(at)) ** b(at)


def applied(function: Callable[[complex], complex], inner: Value) -> Value:
    """The function of a value."""
    return lambda at: function(inner(at))
