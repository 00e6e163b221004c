"""Injection rules: which modules of a network an operator takes the place of."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from ktbench.spec.errors import repeated
from ktbench.spec.weights import Precision

Argument: TypeAlias = bool | int | float | str | None

_WORD = r"[A-Za-z0-9_.-]+"
_TOO_LARGE = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class InjectRule:
    """Modules whose dotted name matches `module`, whose class name matches `class_name`, or both, get `operator`.

    Both are regular expressions that the whole name has to match; None matches any. `operator` names a row of the
    registry (`ktbench.engine.inject.registry`), never something to import; `args` are its arguments. A rule that
    matches no module is an error unless it is `optional`.
    """

    name: str
    operator: str
    module: str | None = None
    class_name: str | None = None
    args: dict[str, Argument] = field(default_factory=dict)
    optional: bool = False

    def __post_init__(self) -> None:
        _check_word("inject rule", self.name)
        _check_word(f"inject rule {self.name}: operator", self.operator)
        if self.module is None and self.class_name is None:
            raise ValueError(f"inject rule {self.name}: set module, class_name or both, as regular expressions")
        for key in ("module", "class_name"):
            self._check_pattern(key, getattr(self, key))
        for key, value in self.args.items():
            self._check_argument(key, value)

    def _check_pattern(self, key: str, pattern: str | None) -> None:
        what = f"inject rule {self.name}: {key}={pattern!r}"
        if not (pattern or "").isprintable():
            raise ValueError(f"{what}: must be one line of printable characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError, Warning) as error:
            raise ValueError(f"{what} is no regular expression: {error}") from None

    def _check_argument(self, key: str, value: Argument) -> None:
        _check_word(f"inject rule {self.name}: args", key)
        what = f"inject rule {self.name}: args.{key}={value!r}"
        if isinstance(value, str) and not value.isprintable():
            raise ValueError(f"{what}: must be one line of printable characters")
        if isinstance(value, (int, float)) and not abs(value) < _TOO_LARGE:
            raise ValueError(f"{what}: must be a number below 2**63")

    def matches(self, module: str, class_name: str) -> bool:
        """Whether the rule is for a module of this dotted name and class."""
        return all(
            pattern is None or re.fullmatch(pattern, text)
            for pattern, text in ((self.module, module), (self.class_name, class_name))
        )

    @property
    def precision(self) -> Precision | None:
        """The format that the operator's weights are packed in, where the rule says one; the registry checks it."""
        return cast("Precision | None", self.args.get("precision"))

    @property
    def wants(self) -> str:
        """What the rule looks for, as written: `module=.*\\.experts class_name=.*Experts`."""
        pairs = (("module", self.module), ("class_name", self.class_name))
        return " ".join(f"{key}={pattern}" for key, pattern in pairs if pattern is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class InjectSpec:
    """The rules of a run, by the file that they come from."""

    name: str = "none"
    rules: tuple[InjectRule, ...] = ()

    def __post_init__(self) -> None:
        _check_word("inject", self.name)
        if twice := repeated([rule.name for rule in self.rules]):
            raise ValueError(f"inject={self.name}: two rules are called {twice}")

    def precisions_of(self, operator: str) -> tuple[Precision, ...]:
        """The formats that rules of an operator name, each once."""
        named = (rule.precision for rule in self.rules if rule.operator == operator)
        return tuple(dict.fromkeys(precision for precision in named if precision is not None))


def _check_word(what: str, word: str) -> None:
    """Names stand in one-line messages, tables and commands."""
    if not re.fullmatch(_WORD, word):
        raise ValueError(f"{what} {word!r}: allowed are letters, digits, '_', '-' and '.'")
