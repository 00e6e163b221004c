"""What more of each resource of a machine would give a simulated cell, and which one holds it up most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType

from ktbench.sim.simulation import step_s
from ktbench.spec.machine import UNITS, MachineSpec
from ktbench.spec.run_spec import RunSpec

# The constants of a machine that there can be more of, in words; what holds data or counts devices is none.
RESOURCES: Mapping[str, str] = MappingProxyType(
    {
        "read_gb_per_s": "read bandwidth",
        "remote_gb_per_s": "bandwidth between domains",
        "cores": "cores with their units",
        "vector_tflops": "vector peak (bf16)",
        "vector_int8_tops": "vector peak (int8)",
        "amx_tflops": "AMX peak (bf16)",
        "amx_int8_tops": "AMX peak (int8)",
        "gpu_gb_per_s": "GPU bandwidth",
        "gpu_tflops": "GPU peak",
        "gpu_ghz": "GPU clock",
        "link_gb_per_s": "link bandwidth",
    }
)
FIXED = "fixed costs"
_LEAST_GAIN = 0.0005  # what one decimal of a per cent still shows
_LEAST_BOUND = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """What more of the constant `constant` of a machine gives.

    `share` of the step scales with it: with x times as much the step takes 1 - share + share / x of its time (Amdahl
    1967). `gain` is the relative gain in speed from `by` more: `by` itself where the whole step is bound by it.
    """

    constant: str
    share: float
    by: float

    @property
    def gain(self) -> float:
        """Speed with more of it over speed as it is, minus 1."""
        return 1 / (1 - self.share * _saved(self.by)) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """What holds a step up most, in words, and which share of the step it bounds."""

    title: str
    share: float

    def __str__(self) -> str:
        return f"{self.title} ({100 * self.share:.0f} %)"


def sensitivity(spec: RunSpec, by: float = 0.10, *, now_s: float | None = None) -> tuple[Sensitivity, ...]:
    """What `by` more of each resource that a cell's machine has would give, the largest gain first.

    `now_s` are the seconds of a step as it is, where these are known.

    One constant is changed at a time and the cell simulated again; with deferral=auto N is chosen anew. Cores are
    whole, at least one more, and bring their vector and AMX units: at the same peak more cores would be slower ones.
    Where more threads still only divide the work less evenly they give nothing, since cores can be left idle.
    Raises ValueError for `by` of 0 or less, and where the cell cannot be simulated.
    """
    if by <= 0:
        raise ValueError(f"by={by}: must be above 0")
    now_s = step_s(spec) if now_s is None else now_s
    found = [
        Sensitivity(constant=name, share=_share(name, step_s(more) / now_s, added), by=by)
        for name, more, added in _with_more(spec, by)
    ]
    return tuple(sorted(found, key=lambda one: -one.gain))


def bottleneck(found: Sequence[Sensitivity]) -> Bottleneck:
    """The resource that bounds the largest share of a step; fixed costs where all together bound less than half.

    Of cores only what they give beyond their units counts, which are resources of their own.
    """
    shares = {one.constant: one.share for one in found}
    shares["cores"] = max(0.0, shares["cores"] - sum(shares.get(name, 0.0) for name in UNITS))
    total = sum(shares.values())
    if total < _LEAST_BOUND:
        return Bottleneck(title=FIXED, share=1 - total)
    name = max(shares, key=lambda one: shares[one])
    return Bottleneck(title=RESOURCES[name], share=shares[name])


def resource_lines(found: Sequence[Sensitivity]) -> tuple[str, ...]:
    """What `sensitivity` found and the bottleneck in words, as notes of a record."""
    helpful = [one for one in found if one.gain >= _LEAST_GAIN]
    gains = "; ".join(f"{RESOURCES[one.constant]}: {100 * one.gain:+.1f} % tokens/s" for one in helpful)
    useless = ", ".join(RESOURCES[one.constant] for one in found if one not in helpful)
    lines = [f"10 % more {gains}"] if gains else []
    lines += [f"10 % more gives nothing: {useless}"] if useless else []
    held = bottleneck(found)
    return (*lines, f"bottleneck: {held.title}, {100 * held.share:.0f} % of the step")


def _share(name: str, time: float, added: float) -> float:
    share = (1 - time) / _saved(added)
    return max(0.0, share) if name == "cores" else share


def _with_more(spec: RunSpec, by: float) -> Iterator[tuple[str, RunSpec, float]]:
    """For each resource its name, the cell on a machine with more of it, and how much more that is (0.1: 10 %)."""
    machine = spec.machine
    if machine is None:
        return
    for name in RESOURCES:
        if getattr(machine, name) is None or (name == "remote_gb_per_s" and machine.domains == 1):
            continue
        more, added = _more_cores(machine, by) if name == "cores" else (_scaled(machine, (name,), 1 + by), by)
        yield name, replace(spec, machine=more), added


def _more_cores(machine: MachineSpec, by: float) -> tuple[MachineSpec, float]:
    cores = machine.cores + max(1, ceil(round(machine.cores * by, 6)))
    units = tuple(name for name in UNITS if getattr(machine, name) is not None)
    return replace(_scaled(machine, units, cores / machine.cores), cores=cores), cores / machine.cores - 1


def _scaled(machine: MachineSpec, names: Sequence[str], factor: float) -> MachineSpec:
    return replace(machine, **{name: getattr(machine, name) * factor for name in names})


def _saved(more: float) -> float:
    """The share of its time that work saves which is wholly bound by what there is `more` of (0.1: 10 %)."""
    return 1 - 1 / (1 + more)
