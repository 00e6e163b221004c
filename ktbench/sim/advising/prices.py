"""Searches a user's price list of machines for the cheapest that reaches a speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from ktbench.resources import read_text
from ktbench.sim.sensitivity import Bottleneck, bottleneck, sensitivity
from ktbench.sim.simulation import step_s, with_all_features
from ktbench.spec.errors import instead
from ktbench.spec.machine import BY_NAME, MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import from_plain, to_plain
from ktbench.spec.yaml_text import MOST_BYTES, plain_yaml


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One machine at its price, and the features that a cell would run with on it.

    `tokens_per_s` is simulated, None where the cell cannot run there: `why` says why.
    """

    title: str
    price: float
    features: str
    tokens_per_s: float | None = None
    bottleneck: Bottleneck | None = None
    why: str = ""

    @property
    def price_per_speed(self) -> float | None:
        """Price of a token/s; None where there is no speed."""
        return None if self.tokens_per_s is None else self.price / self.tokens_per_s


def entry_cells(prices: PriceList, compose: Callable[[str], RunSpec]) -> Iterator[tuple[PriceEntry, RunSpec]]:
    """Each entry and the cell on its machine with all features; `compose` returns it on a machine by name or file.

    Raises ValueError naming the entry, where its machine or a change of it is wrong.
    """
    compose_once = cache(compose)
    for number, entry in enumerate(prices.machines):
        try:
            spec = compose_once(prices.machine(entry))
            if spec.machine is None:
                raise ValueError(
                    f"machine={entry.machine}: is not described; name a preset, a FILE.yaml, or local after `probe`"
                )
            changed = replace(spec, machine=entry.changed(spec.machine))
        except ValueError as error:
            if not str(error).startswith(("machine", "changes")):
                raise
            raise ValueError(f"{prices.where(number)}: {error}") from None
        yield entry, with_all_features(changed)


def offer(spec: RunSpec, title: str, price: float, why: str = "") -> Offer:
    """A cell simulated on its machine as it is; not at all where there is a reason `why` it cannot run there."""
    if not why:
        try:
            now_s = step_s(spec)
            speed, held = spec.workload.tokens_per_step / now_s, bottleneck(sensitivity(spec, now_s=now_s))
            return Offer(title=title, price=price, features=spec.label, tokens_per_s=speed, bottleneck=held)
        except ValueError as error:
            why = str(error)
    return Offer(title=title, price=price, features=spec.label, why=why)


def cheapest(offers: Sequence[Offer], target: float) -> Offer | None:
    """The one of lowest price that does `target` tokens/s, of several the fastest; None where none does."""
    reaching = [one for one in offers if (one.tokens_per_s or 0.0) >= target]
    return min(reaching, key=lambda one: (one.price, -(one.tokens_per_s or 0.0)), default=None)


def closest(offers: Sequence[Offer]) -> Offer | None:
    """The fastest one; None where none has a speed."""
    return max((one for one in offers if one.tokens_per_s), key=lambda one: one.tokens_per_s or 0.0, default=None)


_GPU = "gpu"  # the one constant that is a name, and needs no source


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceEntry:
    """A machine and its price in the currency of its list.

    `machine` names a preset, or a YAML file by its path from the list's folder. `changes` are constants of it that the
    offer has otherwise, `sources` where each of them comes from. `name` is what a table calls the offer.
    """

    machine: str
    price: float
    name: str = ""
    changes: dict[str, int | float | str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.price > 0 and isfinite(self.price)):
            raise ValueError(f"price={self.price}: must be a number above 0")
        allowed = (*BY_NAME, _GPU)
        for name in self.changes:
            if name not in allowed:
                raise ValueError(f"changes.{name}: no such constant{instead(name, allowed)}")
            if name != _GPU and not self.sources.get(name):
                raise ValueError(f"changes.{name}: has no source; say in sources.{name} where it comes from")
        if unused := [name for name in self.sources if name not in self.changes]:
            raise ValueError(f"sources.{unused[0]}: {unused[0]} is not among the changes")

    @property
    def title(self) -> str:
        """Its name; without one the machine and what it has otherwise."""
        changes = ", ".join(f"{name}={value}" for name, value in self.changes.items())
        return self.name or (f"{self.machine} with {changes}" if changes else self.machine)

    def changed(self, machine: MachineSpec) -> MachineSpec:
        """The machine with the entry's changes, under its title. Raises ValueError for a value that it refuses."""
        content = to_plain(machine) | self.changes
        content |= {"name": self.title, "sources": machine.sources | self.sources}
        try:
            return from_plain(content, MachineSpec)
        except ValueError as error:
            raise ValueError(f"changes: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceList:
    """Entries in the order of their file, and the currency that their prices are in."""

    path: Path
    currency: str
    machines: tuple[PriceEntry, ...]

    def where(self, number: int) -> str:
        """How messages name an entry, counted from 0."""
        return f"{self.path}: entry {number + 1}"

    def machine(self, entry: PriceEntry) -> str:
        """The preset that an entry names, or the path of its file from here."""
        return str(self.path.parent / entry.machine) if entry.machine.endswith(".yaml") else entry.machine


def read_prices(path: Path) -> PriceList:
    """The price list in a YAML file: `currency`, and `machines`, a list of entries.

    Raises ValueError in one line that names the file, the entry and the field which is missing or wrong.
    """
    where = str(path)
    read = plain_yaml(read_text(path, where, MOST_BYTES), where, "prices")
    content = _mapping(read, where, ("currency", "machines"), needed=("currency", "machines"))
    currency, machines = content["currency"], content["machines"]
    if not isinstance(currency, str) or not currency:
        raise ValueError(f"{path}: currency={currency}: must be a text, such as EUR")
    if not isinstance(machines, list) or not machines:
        raise ValueError(f"{path}: machines: must be a list of at least one entry")
    entries = tuple(_entry(entry, f"{path}: entry {number}") for number, entry in enumerate(machines, 1))
    return PriceList(path=path, currency=currency, machines=entries)


def _entry(content: Any, where: str) -> PriceEntry:
    names = tuple(one.name for one in fields(PriceEntry))
    checked = _mapping(content, where, names, needed=("machine", "price"))
    try:
        return from_plain(checked, PriceEntry)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _mapping(content: Any, where: str, allowed: tuple[str, ...], *, needed: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping of {', '.join(allowed)}")
    for key in content:
        if key not in allowed:
            raise ValueError(f"{where}: {key}: unknown key{instead(str(key), allowed)}")
    if missing := [key for key in needed if key not in content]:
        raise ValueError(f"{where}: {missing[0]}: is missing")
    return content
