"""What cannot run, as rows: where, when and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ktbench.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cell cannot run: `where` is the key, feature or system at fault, `why` says what is wrong with it."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A cell that cannot run: where `holds` is true of its spec. `why` may quote the spec.

    `where` has the keys at fault, which are shown with their values: empty in rows of features, which name themselves.
    """

    holds: Callable[[RunSpec], bool]
    why: str | Callable[[RunSpec], str]
    where: str = ""

    def text(self, spec: RunSpec) -> str:
        """What is wrong with the cell."""
        return self.why if isinstance(self.why, str) else self.why(spec)


def broken(limits: Iterable[Limit], spec: RunSpec, *, where: str = "") -> Iterator[Reason]:
    """The reasons that rows give for a spec; `where` is for all of them, if they name no keys of their own."""
    for limit in limits:
        if limit.holds(spec):
            keys = " ".join(f"{key}={_value(spec, key)}" for key in limit.where.split())
            yield Reason(where or keys, limit.text(spec))


def _value(spec: RunSpec, key: str) -> Any:
    """What a key of a spec has: the name of what has one."""
    value = reduce(getattr, key.split("."), spec)
    return getattr(value, "name", value)
