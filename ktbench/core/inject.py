"""Injection rules: which modules of a network an operator takes the place of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


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
    args: dict[str, Any] = field(default_factory=dict)
    optional: bool = False

    def __post_init__(self) -> None:
        if self.module is None and self.class_name is None:
            raise ValueError(f"inject rule {self.name}: set module, class_name or both, as regular expressions")
        for key in ("module", "class_name"):
            self._check_pattern(key, getattr(self, key))

    def _check_pattern(self, key: str, pattern: str | None) -> None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"inject rule {self.name}: {key}={pattern!r} is no regular expression: {error}") from None

    def matches(self, module: str, class_name: str) -> bool:
        """Whether the rule is for a module of this dotted name and class."""
        return all(
            pattern is None or re.fullmatch(pattern, text)
            for pattern, text in ((self.module, module), (self.class_name, class_name))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class InjectSpec:
    """The rules of a run, by the file that they come from."""

    name: str = "none"
    rules: tuple[InjectRule, ...] = ()

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"inject={self.name}: two rules are called {twice}")
