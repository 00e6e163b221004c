"""Measures the limits of this machine, and lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from statistics import median
from time import monotonic

from ktbench.host.code import load_extension
from ktbench.host.crossovers import crossover_lines, read_crossovers, use_crossovers
from ktbench.host.cuda import read_cuda_devices
from ktbench.host.describe import Constant, MachineDescription
from ktbench.host.environment import environment
from ktbench.host.memory import available_memory_bytes
from ktbench.host.pauses import count_pauses
from ktbench.host.probe import Readings, buffers_needed, describe, open_instruments, read_rounds
from ktbench.host.topology import read_topology
from ktbench.results.intervals import median_interval
from ktbench.run.progress import say
from ktbench.spec.core_layout import CORE_LAYOUTS, CoreLayout
from ktbench.spec.errors import RequestError
from ktbench.spec.system_metrics import READ_BUFFER_BYTES

_ROUNDS = 12
# A hypervisor keeps the placement of cores for seconds.
_SECONDS = 10.0
_GIB = 2**30
# Stored unit: displayed unit, and how many stored units make a displayed one.
_SHOWN = {"bytes/s": ("GB/s", 1e9), "FLOP/s": ("TFLOPS", 1e12), "OP/s": ("TOPS", 1e12), "ns": ("ns", 1.0)}
# The effect of a placement, beyond the bandwidth.
_MEANING: dict[CoreLayout, str] = {
    "same core": "two threads of one core: arithmetic halves",
    "near": "one last-level cache",
    "far": "two last-level caches",
    "moved": "changed between two readings: not used",
}


def measure_machine() -> MachineDescription:
    """Measure this machine for a few seconds. Raises RequestError if kernels or memory are missing."""
    extension, topology = load_extension(), read_topology()
    if extension.module is None:
        raise RequestError(f"probe: {extension.reason}")
    need, free = buffers_needed(topology) * READ_BUFFER_BYTES, available_memory_bytes()
    if need > free:
        raise RequestError(f"probe: needs {need / _GIB:.1f} GiB of memory, {free / _GIB:.1f} GiB are free")
    for precision in extension.module.formats():
        say(f"probe: timing the loops of the {precision} kernels")
        use_crossovers(extension.module, [precision], topology.core_cpus, anew=True)
    count_pauses()
    say(f"probe: filling {need / _GIB:.0f} GiB of buffers")
    machine = environment()
    instruments = open_instruments(extension.module, topology, read_cuda_devices())
    rounds = list(_announce(read_rounds(instruments, _ROUNDS, _SECONDS)))
    return describe(instruments, rounds, machine, datetime.now(UTC).date())


def _announce(rounds: Iterable[Readings]) -> Iterator[Readings]:
    """The rounds; the first of every second is printed."""
    began, printed = monotonic(), -1
    for number, readings in enumerate(rounds, start=1):
        if (second := int(monotonic() - began)) > printed:
            printed, read = second, readings["read.all"]
            placed = f", cores {read.placement}" if read.placement else ""
            say(f"probe: round {number}, {second} s: read bandwidth {_figure(read.value, 'bytes/s')}{placed}")
        yield readings


def loops_table() -> list[str]:
    """Which loops the kernels use here, as lines of aligned text."""
    kernels, cpus = load_extension().module, read_topology().core_cpus
    lines = [] if kernels is None else list(crossover_lines(read_crossovers(kernels, cpus)))
    width = max((len(precision) for precision, _ in lines), default=0)
    return ["loops of the kernels, by tokens per expert", *(f"  {name:<{width}}  {text}" for name, text in lines)]


def table(machine: MachineDescription) -> list[str]:
    """The description as lines of aligned text: median, 95 % interval, unit; a dash with its reason for a gap.

    Below it, the read bandwidth at each observed placement.
    """
    constants = machine.constants.values()
    width = max(len(constant.title) for constant in constants)
    repeats = max(len(constant.samples) for constant in constants)
    placed = f", of which those with the cores {machine.placement} count" if machine.placement else ""
    return [
        f"{machine.name} (env {machine.env_id}), measured {machine.created}",
        f"medians with distribution-free 95 % intervals, {repeats} interleaved repeats{placed}",
        *(f"  {constant.title:<{width}}  {_row(constant, machine.placement)}" for constant in constants),
        *_placement_lines(machine),
    ]


def _row(constant: Constant, placement: CoreLayout | None) -> str:
    if constant.value is None:
        return f"{'-':>8}  {constant.why}"
    unit, scale = _SHOWN[constant.unit]
    interval = median_interval(constant.samples_at(placement))
    low, mid, high = (f"{value / scale:.3g}" for value in (interval.low, interval.mid, interval.high))
    return f"{mid:>8} {unit:<6} {low} to {high}"


def _placement_lines(machine: MachineDescription) -> Iterator[str]:
    """Core placements during the measurement of the read bandwidth."""
    read = machine.constants["read.all"]
    seen = [place for place in CORE_LAYOUTS if place in read.placements]
    if not seen:
        yield "placement of the cores: - (one usable core)"
    elif len(seen) == 1:
        (place,) = seen
        yield f"placement of the cores: {place} throughout ({_MEANING[place]}); {read.title}: {_range(read, place)}"
    else:
        yield f"placement of the cores changed; {read.title}, median and range at each:"
        yield from (f"  {place:<9}  {_range(read, place)} ({_MEANING[place]})" for place in seen)


def _range(read: Constant, place: CoreLayout) -> str:
    unit, scale = _SHOWN[read.unit]
    samples = [sample / scale for sample in read.samples_at(place)]
    counted = f"{len(samples)} sample{'s' if len(samples) > 1 else ''}"
    return f"{median(samples):.3g} {unit}, {min(samples):.3g} to {max(samples):.3g} in {counted}"


def _figure(value: float, kept: str) -> str:
    unit, scale = _SHOWN[kept]
    return f"{value / scale:.3g} {unit}"
