"""Short LaTeX formulae: their value, and whether two are the same function of their variables.

A separate parser, because latex2sympy2 (math_verify's) reads log to base 10 and i as a name, and rejects `frac12`.
"""

from __future__ import annotations

import cmath
import math
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

LONGEST = 2000  # characters; no answer in exact form comes near

_SILENT = r"\\(?:(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|q?quad)(?![a-zA-Z])|[ ,;:!])"
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname\*?)\s*\{([^{}]*)\}")
_WORDS = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\cdot": "*", r"\times": "*", r"\div": "/"}
_BRACKETS = {r"\{": "(", r"\}": ")", "[": "(", "]": ")", r"\lvert": "|", r"\rvert": "|", r"\vert": "|"}
_SIGNS = str.maketrans({"−": "-", "×": "*", "·": "*", "λ": r"\lambda ", "π": r"\pi ", "~": " ", "$": " "})
_NAMES = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|sec|csc|cot|exp|log|ln"
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|[-+*/^(){}|_]")


def tokens(formula: str) -> list[str]:
    """The tokens of a formula. Raises ValueError if it is too long or contains anything but mathematics."""
    if len(formula) > LONGEST:
        raise ValueError(f"formula of more than {LONGEST} characters")
    tokens: list[str] = []
    at, unified = 0, unify(formula)
    while at < len(unified):
        if not (token := _TOKEN.match(unified, at)):
            raise ValueError(f"formula with {unified[at]!r}")
        tokens.append(token[0])
        at = token.end()
        at += len(unified[at:]) - len(unified[at:].lstrip())
    return tokens


def unify(formula: str) -> str:
    r"""A normal form of LaTeX: no spacing, `\frac` only, `*` for products, one kind of bracket.

    Only the right side of an equation is kept; a constant of integration at the end is removed.
    """
    text = formula.translate(_SIGNS).replace("{,}", "")
    text = re.sub(r"\\sqrt\s*\[([^][]*)\]", r"\\root{\1}", text)
    text = _WRAPPER.sub(lambda match: _word(match[1]), re.sub(_SILENT, " ", text))
    for old, new in (_WORDS | _BRACKETS).items():
        text = re.sub(re.escape(old) + (r"(?![a-zA-Z])" if old[-1].isalpha() else ""), new.replace("\\", r"\\"), text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.split(r"\\approx|≈", text)[0].rsplit("=", 1)[-1]
    return re.sub(r"\+\s*[Cc]\s*$", "", text.strip().removesuffix(".")).strip()


def _word(name: str) -> str:
    """The text of an upright word: a function's name becomes a command, anything else is kept."""
    return rf"\{name.strip()} " if re.fullmatch(_NAMES, name.strip()) else f" {name} "


Function = Callable[[complex], complex]

FUNCTIONS: Mapping[str, Function] = {
    **{rf"\{name}": getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "log")},
    **{rf"\arc{name}": getattr(cmath, f"a{name}") for name in ("sin", "cos", "tan")},
    r"\sec": lambda z: 1 / cmath.cos(z),
    r"\csc": lambda z: 1 / cmath.sin(z),
    r"\cot": lambda z: 1 / cmath.tan(z),
    r"\ln": cmath.log,
}
INVERSES = {r"\sin": r"\arcsin", r"\cos": r"\arccos", r"\tan": r"\arctan"}
CONSTANTS: Mapping[str, complex] = {"e": math.e, "i": 1j, r"\pi": math.pi, r"\infty": math.inf}
_LETTERS = ("alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "phi", "omega", "sigma", "tau")
GREEK = frozenset(rf"\{letter}" for letter in _LETTERS)


def read_formula(text: str, at: Mapping[str, complex]) -> complex:
    r"""The value of a LaTeX formula whose variables have the values `at`; not finite if it has none.

    `\log` is the natural logarithm, roots and powers are principal values. Raises ValueError for invalid formulae,
    those nested too deeply, or longer than 2,000 characters, and KeyError for a name that is not in `at`.
    """
    reader = _Reader(tokens(text), at)
    try:
        value = reader.sum()
    except RecursionError:
        raise ValueError("formula nested too deep") from None
    if reader.next:
        raise ValueError(f"formula with {reader.next} where it should end")
    return value


def _apply(function: Function, value: complex) -> complex:
    """The function of a value; nan outside its domain, so that the rest of the formula is still read."""
    try:
        return complex(function(value + 0j))  # an imaginary part of -0.0 would be below the branch cuts of roots
    except (ArithmeticError, ValueError):
        return complex(math.nan)


def _principal_power(base: complex, power: complex) -> complex:
    """The principal value; nan to any power is nan."""
    return base if cmath.isnan(base) else _apply(lambda z: complex(z) ** power, base)


class _Reader:
    """Recursive descent: sum → product → power → atom."""

    def __init__(self, tokens: list[str], at: Mapping[str, complex]) -> None:
        self._left = tokens[::-1]
        self._at = at
        self._bars = 0  # open absolute values: their bar closes a product

    @property
    def next(self) -> str:
        """The next token; '' at the end."""
        return self._left[-1] if self._left else ""

    def _take(self, wanted: str = "") -> str:
        if not self._left or (wanted and self.next != wanted):
            raise ValueError(f"formula with {self.next or 'its end'} where {wanted or 'more'} should be")
        return self._left.pop()

    def sum(self) -> complex:
        value = self._signed()
        while self.next in ("+", "-"):
            value += self._signed()
        return value

    def _signed(self) -> complex:
        negative = False
        while self.next in ("+", "-"):
            negative ^= self._take() == "-"
        value = self._product()
        return -value if negative else value

    def _product(self) -> complex:
        value = self._power()
        while not self._product_ends():
            operator = self._take() if self.next in ("*", "/") else ""
            factor = self._signed_power() if operator else self._power()
            value *= _principal_power(factor, -1) if operator == "/" else factor
        return value

    def _product_ends(self) -> bool:
        return self.next in ("", "+", "-", ")", "}") or (self.next == "|" and self._bars > 0)

    def _signed_power(self) -> complex:
        if self.next == "-":
            self._take()
            return -self._power()
        return self._power()

    def _power(self) -> complex:
        value = self._atom()
        while self.next == "^":
            self._take()
            value = _principal_power(value, self._argument())
        return value

    def _atom(self) -> complex:
        token = self.next
        if token in ("(", "{"):
            return self._group()
        if token in FUNCTIONS:
            return self._function(self._take())
        if token in (r"\frac", r"\sqrt", r"\root", "|"):
            return {r"\frac": self._fraction, r"\sqrt": self._sqrt, r"\root": self._root, "|": self._absolute}[token]()
        return self._leaf()

    def _group(self) -> complex:
        close = {"(": ")", "{": "}"}[self._take()]
        bars, self._bars = self._bars, 0
        value = self.sum()
        self._bars = bars
        self._take(close)
        return value

    def _absolute(self) -> complex:
        self._take("|")
        self._bars += 1
        value = self.sum()
        self._bars -= 1
        self._take("|")
        return _apply(abs, value)

    def _argument(self) -> complex:
        r"""The argument of `^`, `\frac` and `\sqrt`: a group, or one token (of a number its first digit)."""
        if self.next[:1].isdigit() and len(self.next) > 1:
            digits = self._take()
            self._left.append(digits[1:])
            return float(digits[0])
        return self._atom()

    def _fraction(self) -> complex:
        self._take()
        above = self._argument()
        return above * _principal_power(self._argument(), -1)

    def _sqrt(self) -> complex:
        self._take()
        return _principal_power(self._argument(), 0.5)

    def _root(self) -> complex:
        self._take()
        degree = self._group()
        return _principal_power(self._argument(), _principal_power(degree, -1))

    def _function(self, name: str) -> complex:
        r"""A function with modifiers between name and argument: a base `_b`, a power `^n` (`^{-1}`: the inverse)."""
        base: complex | None = None
        power: complex | None = None
        while self.next in ("_", "^"):
            if self._take() == "_":
                base = self._argument()
            elif self._left[-4:] == ["}", "1", "-", "{"] and name in INVERSES:
                del self._left[-4:]
                name = INVERSES[name]
            else:
                power = self._argument()
        value = _apply(FUNCTIONS[name], self._applied_to())
        if base is not None:
            value *= _principal_power(_apply(cmath.log, base), -1)
        return value if power is None else _principal_power(value, power)

    def _applied_to(self) -> complex:
        """A function's argument: a group, else all factors up to the next function, sign or operator."""
        if self.next in ("(", "{"):
            return self._group()
        value = self._signed_power()
        while not self._product_ends() and self.next not in FUNCTIONS and self.next not in ("*", "/"):
            value *= self._power()
        return value

    def _leaf(self) -> complex:
        token = self._take()
        if token in CONSTANTS:
            return CONSTANTS[token]
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        if token in GREEK or token.isalpha():
            return self._name(token)
        raise ValueError(f"formula with {token}")

    def _name(self, name: str) -> complex:
        if self.next == "_":
            self._take()
            name += "_" + (self._take() if self.next != "{" else self._subscript())
        return self._at[name]

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
ROUNDED = 1e-12  # relative, for a number after some operations


def same_value(answer: str, truth: str, *, within: float = EXACT, sign: int = 1) -> bool:
    """Whether `answer` is `sign` times `truth`, both LaTeX: numbers nearer than `within`, functions by their values.

    Numerals are compared exactly, other numbers up to rounding in float64. Two functions are the same if they agree to
    nine digits at fixed complex points, at least four of which must be in the domain of both. Unlike simplifying a
    symbolic difference to zero, this always terminates. Unreadable formulae equal nothing.
    """
    points = [_Point(number) for number in range(POINTS)]
    try:
        values = [(read_formula(answer, at), sign * read_formula(truth, at)) for at in points]
        ours, theirs = _numeral(answer), _numeral(truth)
    except ValueError:
        return False
    if ours is not None and theirs is not None:
        return abs(ours - sign * theirs) < within
    known = [(a, b) for a, b in values if cmath.isfinite(a) and cmath.isfinite(b)]
    if points[0]:
        return len(known) >= ENOUGH and all(abs(a - b) <= EXACT * (max(abs(a), abs(b)) + 1e-6) for a, b in known)
    return bool(known) and abs(known[0][0] - known[0][1]) < max(within, ROUNDED * abs(known[0][1]))


def _numeral(formula: str) -> Fraction | None:
    """The exact value of a formula of digits alone, with a sign or a point; None for any other."""
    text = unify(formula).replace(" ", "")
    return Fraction(text) if re.fullmatch(r"-?(?:\d+\.?\d*|\.\d+)", text) else None


class _Point(dict[str, complex]):
    """Values of names, drawn when a name first occurs: the same at every point with this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __missing__(self, name: str) -> complex:
        draw = random.Random(f"{self._number} {name}")
        self[name] = complex(draw.uniform(-1.3, 1.3), draw.uniform(-1.3, 1.3))
        return self[name]
