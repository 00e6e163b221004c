"""What spoils measurements: a check is a row, judged from recorded facts, the same for `doctor` and for reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing about a machine, or about what happened during a turn, that makes timings slower or noisier.

    `needs` names the facts that it is judged by, `reads` the files that they are read from, `good` what they should
    say. `wrong` says what is wrong, empty where nothing is. `harm` is what that does to a measurement, `cure` the
    command or the step that ends it.
    """

    name: str
    needs: tuple[str, ...]
    reads: tuple[str, ...]
    good: str
    wrong: Callable[[Facts], str]
    harm: str
    cure: str

    def is_known(self, facts: Facts) -> bool:
        """Whether there are all facts that it takes to judge."""
        return all(facts.get(name) is not None for name in self.needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """A check that found something wrong, and what."""

    check: Check
    said: str


def warnings(checks: Sequence[Check], facts: Facts) -> tuple[Warned, ...]:
    """The checks that find something wrong; those that lack facts find nothing."""
    found = [(check, check.wrong(facts)) for check in checks if check.is_known(facts)]
    return tuple(Warned(check=check, said=said) for check, said in found if said)


def unknown(checks: Sequence[Check], facts: Facts) -> tuple[Check, ...]:
    """The checks that lack facts."""
    return tuple(check for check in checks if not check.is_known(facts))
