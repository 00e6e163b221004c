"""`plan what_if=PRICES.yaml what_if.target=N`: the cheapest machine of a price list that does N tokens/s, simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ktbench import sim
from ktbench.resources import shipped_path
from ktbench.results.quantities.text import number
from ktbench.run.feasibility import Machine, feasibility, require_simulated_rules
from ktbench.run.request import read_request
from ktbench.spec.errors import RequestError, refusing
from ktbench.spec.peers import OURS
from ktbench.spec.run_spec import RunSpec

_LIST, _TARGET = "what_if", "what_if.target"
_MONEY_DIGITS_BELOW = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIfRequest:
    """The question which machine of a list reaches `target` tokens/s on the cell that `overrides` describe."""

    prices: Path
    target: float
    overrides: tuple[str, ...]


def read_what_if(overrides: Sequence[str]) -> WhatIfRequest | None:
    """The request in a command line; None without any `what_if` key.

    Raises RequestError for a missing list, an invalid target, and a machine besides those of the list.
    """
    given = {word.partition("=")[0]: word.partition("=")[2] for word in overrides if word.startswith(_LIST)}
    if not given:
        return None
    if unknown := [key for key in given if key not in (_LIST, _TARGET)]:
        raise RequestError(f"{unknown[0]}: unknown key; allowed are {_LIST}=PRICES.yaml and {_TARGET}=TOKENS_PER_S")
    if not given.get(_LIST):
        raise RequestError(f"{_TARGET}: needs a price list, {_LIST}=PRICES.yaml")
    rest = tuple(word for word in overrides if not word.startswith(_LIST))
    if machine := next((word for word in rest if word.lstrip("+").startswith("machine")), None):
        raise RequestError(f"{machine}: {_LIST} takes its machines from the price list, leave it out")
    if _TARGET not in given:
        raise RequestError(f"{_LIST}: needs {_TARGET}=N, a number of tokens/s above 0")
    return WhatIfRequest(prices=shipped_path(given[_LIST], "conf"), target=_target(given[_TARGET]), overrides=rest)


def answer(request: WhatIfRequest) -> int:
    """Print the speed and price of each machine, then the cheapest that reaches the target. Raises RequestError."""
    with refusing():
        prices = sim.read_prices(request.prices)
        specs = list(sim.entry_cells(prices, lambda name: _spec((*request.overrides, f"machine={name}"))))
        for _, spec in specs:
            require_simulated_rules(spec)
    print("\n".join(_lines(specs, prices, request.target)))
    return 0


def _target(word: str) -> float:
    try:
        target = float(word)
    except ValueError:
        target = 0.0
    if not (target > 0 and isfinite(target)):
        raise RequestError(f"{_TARGET}={word}: must be a number of tokens/s above 0")
    return target


def _spec(overrides: Sequence[str]) -> RunSpec:
    request = read_request(overrides)
    spec = request.parts[0].spec
    if request.is_sweep:
        raise RequestError(f"{_LIST}: takes one cell; leave out lists and ablations")
    if spec.system != OURS:
        raise RequestError(f"system={spec.system}: {_LIST} simulates ktbench")
    if spec.workload.phase == "layer":
        raise RequestError(f"workload.phase=layer: {_LIST} is about whole models, allowed are prefill and decode")
    return spec


def _lines(specs: Sequence[tuple[sim.PriceEntry, RunSpec]], prices: sim.PriceList, target: float) -> Iterator[str]:
    offers = [_offer(spec, entry) for entry, spec in specs]
    yield f"{_work(specs[0][1])}; all speeds are simulated\n"
    yield from _table(sorted(offers, key=lambda one: one.price), prices.currency, target)
    yield f"\n{_sentence(offers, prices.currency, target)}"


def _work(spec: RunSpec) -> str:
    """The summary of the cell without its machine."""
    return spec.summary.removesuffix("" if spec.machine is None else f", simulated on {spec.machine.title}")


def _offer(spec: RunSpec, entry: sim.PriceEntry) -> sim.Offer:
    reason = None if spec.machine is None else feasibility(spec, Machine.described(spec.machine))
    return sim.offer(spec, entry.title, entry.price, reason.why if reason else "")


def _table(offers: Sequence[sim.Offer], currency: str, target: float) -> Iterator[str]:
    speed = ("tokens/s (simulated)", f"{currency} per token/s")
    heading = ("machine", currency, *speed, "features", "bottleneck", f"reaches {target:g}")
    rows = [heading, *(_cells(one, target) for one in offers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    for row in rows:
        padded = [f"{text:{'>' if 1 <= n <= 3 else '<'}{widths[n]}}" for n, text in enumerate(row)]
        yield "  ".join(padded).rstrip()


def _cells(one: sim.Offer, target: float) -> tuple[str, ...]:
    if one.tokens_per_s is None or one.price_per_speed is None:
        return (one.title, _money(one.price), "-", "-", one.features, "-", f"cannot run it: {one.why}")
    reaches = "yes" if one.tokens_per_s >= target else "no"
    speed, each = number(one.tokens_per_s), _money(one.price_per_speed)
    return (one.title, _money(one.price), speed, each, one.features, str(one.bottleneck), reaches)


def _money(value: float) -> str:
    return f"{value:,.0f}" if value >= _MONEY_DIGITS_BELOW else f"{value:.2f}"


def _sentence(offers: Sequence[sim.Offer], currency: str, target: float) -> str:
    wanted = f"{target:g} tokens/s"
    if best := sim.cheapest(offers, target):
        does = f"{number(best.tokens_per_s or 0.0)} tokens/s simulated"
        return f"The cheapest that reaches {wanted} is {best.title} for {_money(best.price)} {currency}: {does}."
    if near := sim.closest(offers):
        return f"None reaches {wanted}; {near.title} comes closest: {number(near.tokens_per_s or 0.0)} simulated."
    return f"None reaches {wanted}: none can run it."
