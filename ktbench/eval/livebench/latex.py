"""Short LaTeX formulae: their value, and whether two are the same function of their names.

An own reader, because latex2sympy2 (math_verify's) reads log to base 10 and i as a name, and refuses `frac12`.
"""

from __future__ import annotations

import cmath
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

LONGEST = 2000  # characters; no answer in exact form comes near

_SILENT = r"\\(?:(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|q?quad)(?![a-zA-Z])|[ ,;:!])"
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname\*?)\s*\{([^{}]*)\}")
_WORDS = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\cdot": "*", r"\times": "*", r"\div": "/"}
_BRACKETS = {r"\{": "(", r"\}": ")", "[": "(", "]": ")", r"\lvert": "|", r"\rvert": "|", r"\vert": "|"}
_SIGNS = str.maketrans({"−": "-", "×": "*", "·": "*", "λ": r"\lambda ", "π": r"\pi ", "~": " ", "$": " "})
_NAMES = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|sec|csc|cot|exp|log|ln"
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|[-+*/^(){}|_]")


def tokens(formula: str) -> list[str]:
    """The tokens of a formula. Raises ValueError for one that is too long or holds what is no mathematics."""
    if len(formula) > LONGEST:
        raise ValueError(f"formula of more than {LONGEST} characters")
    found: list[str] = []
    at, unified = 0, unify(formula)
    while at < len(unified):
        if not (token := _TOKEN.match(unified, at)):
            raise ValueError(f"formula with {unified[at]!r}")
        found.append(token[0])
        at = token.end()
        at += len(unified[at:]) - len(unified[at:].lstrip())
    return found


def unify(formula: str) -> str:
    r"""One way to write what LaTeX writes in several: no spacing, `\frac` only, `*` for products, one kind of bracket.

    Of an equation the right side stays, a constant of integration at the end goes.
    """
    text = formula.translate(_SIGNS).replace("{,}", "")
    text = re.sub(r"\\sqrt\s*\[([^][]*)\]", r"\\root{\1}", text)
    text = _WRAPPER.sub(lambda found: _word(found[1]), re.sub(_SILENT, " ", text))
    for old, new in (_WORDS | _BRACKETS).items():
        text = re.sub(re.escape(old) + (r"(?![a-zA-Z])" if old[-1].isalpha() else ""), new.replace("\\", r"\\"), text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.split(r"\\approx|≈", text)[0].rsplit("=", 1)[-1]
    return re.sub(r"\+\s*[Cc]\s*$", "", text.strip().removesuffix(".")).strip()


def _word(name: str) -> str:
    """What stood in an upright word: a function's name becomes a command, all else stays."""
    return rf"\{name.strip()} " if re.fullmatch(_NAMES, name.strip()) else f" {name} "


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """The names that occur in a formula, and its value where they have values."""

    names: frozenset[str]
    value: Value


def read_formula(text: str) -> Formula:
    r"""The formula of a LaTeX text: `\log` is the natural one, roots and powers are principal values.

    Raises ValueError for what is no such formula, nested too deep, or longer than 2,000 characters.
    """
    reader = _Reader(tokens(text))
    try:
        value = reader.sum()
    except RecursionError:
        raise ValueError("formula nested too deep") from None
    if reader.next:
        raise ValueError(f"formula with {reader.next} where it should end")
    return Formula(names=frozenset(reader.names), value=value)


class _Reader:
    """Recursive descent: sum → product → power → atom."""

    def __init__(self, found: list[str]) -> None:
        self._left = found[::-1]
        self._bars = 0  # absolute values that are open: their bar closes a product
        self.names: set[str] = set()

    @property
    def next(self) -> str:
        """The next token; '' at the end."""
        return self._left[-1] if self._left else ""

    def _take(self, wanted: str = "") -> str:
        if not self._left or (wanted and self.next != wanted):
            raise ValueError(f"formula with {self.next or 'its end'} where {wanted or 'more'} should be")
        return self._left.pop()

    def sum(self) -> Value:
        value = self._signed()
        while self.next in ("+", "-"):
            value = plus(value, self._signed())
        return value

    def _signed(self) -> Value:
        negative = False
        while self.next in ("+", "-"):
            negative ^= self._take() == "-"
        value = self._product()
        return times(constant(-1), value) if negative else value

    def _product(self) -> Value:
        value = self._power()
        while not self._product_ends():
            inverse = self.next == "/"
            explicit = self._take() if self.next in ("*", "/") else ""
            factor = self._signed_power() if explicit else self._power()
            value = times(value, raised(factor, constant(-1)) if inverse else factor)
        return value

    def _product_ends(self) -> bool:
        return self.next in ("", "+", "-", ")", "}") or (self.next == "|" and self._bars > 0)

    def _signed_power(self) -> Value:
        if self.next == "-":
            self._take()
            return times(constant(-1), self._power())
        return self._power()

    def _power(self) -> Value:
        value = self._atom()
        while self.next == "^":
            self._take()
            value = raised(value, self._argument())
        return value

    def _atom(self) -> Value:
        token = self.next
        if token in ("(", "{"):
            return self._group()
        if token in FUNCTIONS:
            return self._function(self._take())
        if token in (r"\frac", r"\sqrt", r"\root", "|"):
            return {r"\frac": self._fraction, r"\sqrt": self._sqrt, r"\root": self._root, "|": self._absolute}[token]()
        return self._leaf()

    def _group(self) -> Value:
        close = {"(": ")", "{": "}"}[self._take()]
        bars, self._bars = self._bars, 0
        value = self.sum()
        self._bars = bars
        self._take(close)
        return value

    def _absolute(self) -> Value:
        self._take("|")
        self._bars += 1
        value = self.sum()
        self._bars -= 1
        self._take("|")
        return lambda at: abs(value(at))

    def _argument(self) -> Value:
        r"""What `^`, `\frac` and `\sqrt` take: a group, or one token, of a number its first digit."""
        if self.next[:1].isdigit() and len(self.next) > 1:
            digits = self._take()
            self._left.append(digits[1:])
            return constant(int(digits[0]))
        return self._atom()

    def _fraction(self) -> Value:
        self._take()
        above = self._argument()
        return times(above, raised(self._argument(), constant(-1)))

    def _sqrt(self) -> Value:
        self._take()
        return raised(self._argument(), constant(0.5))

    def _root(self) -> Value:
        self._take()
        degree = self._group()
        return raised(self._argument(), raised(degree, constant(-1)))

    def _function(self, name: str) -> Value:
        r"""A function with what stands between name and argument: a base `_b`, a power `^n` (`^{-1}`: the inverse)."""
        base: Value | None = None
        power: Value | None = None
        while self.next in ("_", "^"):
            if self._take() == "_":
                base = self._argument()
            elif self._left[-4:] == ["}", "1", "-", "{"] and name in INVERSES:
                del self._left[-4:]
                name = INVERSES[name]
            else:
                power = self._argument()
        value = applied(FUNCTIONS[name], self._applied_to())
        if base is not None:
            value = times(value, raised(applied(cmath.log, base), constant(-1)))
        return value if power is None else raised(value, power)

    def _applied_to(self) -> Value:
        """A function's argument: a group, else all factors up to the next function, sign or operator."""
        if self.next in ("(", "{"):
            return self._group()
        value = self._signed_power()
        while not self._product_ends() and self.next not in FUNCTIONS and self.next not in ("*", "/"):
            value = times(value, self._power())
        return value

    def _leaf(self) -> Value:
        token = self._take()
        if token in CONSTANTS:
            return constant(CONSTANTS[token])
        if token[0].isdigit() or token[0] == ".":
            return constant(float(token))
        if token in GREEK or token.isalpha():
            return self._name(token)
        raise ValueError(f"formula with {token}")

    def _name(self, name: str) -> Value:
        if self.next == "_":
            self._take()
            name += "_" + (self._take() if self.next != "{" else self._subscript())
        self.names.add(name)
        return lambda at: at[name]

    def _subscript(self) -> str:
        self._take("{")
        name = ""
        while self.next != "}":
            name += self._take()
        self._take("}")
        return name


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
