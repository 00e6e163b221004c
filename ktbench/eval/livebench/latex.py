"""Short LaTeX formulae that can be evaluated: arithmetic, roots, powers, elementary functions, names."""

from __future__ import annotations

import cmath
from dataclasses import dataclass

from ktbench.eval.livebench.latex_tokens import tokens
from ktbench.eval.livebench.latex_values import (
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    INVERSES,
    Value,
    applied,
    constant,
    plus,
    raised,
    times,
)


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
        said = ""
        while self.next != "}":
            said += self._take()
        self._take("}")
        return said
