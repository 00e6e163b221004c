"""Reads every gauge in alternating rounds and turns the readings into a machine description."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from statistics import median
from time import monotonic
from types import ModuleType

from ktbench.host.cuda import CudaDevices
from ktbench.host.describe import Constant, MachineDescription
from ktbench.host.pauses import pauses
from ktbench.host.roofs import PEAK_DTYPES, PEAK_ISAS, Roofs, pinned_team
from ktbench.host.topology import Topology
from ktbench.spec.core_layout import CoreLayout, core_layout_during
from ktbench.spec.record import Environment
from ktbench.spec.system_metrics import READ_BUFFER_BYTES

# x86-64, as the kernels are; the C library has no wrapper (set_mempolicy(2) is libnuma's).
_SYS_SET_MEMPOLICY = 238
_MPOL_DEFAULT, _MPOL_BIND = 0, 2
_MASK_WORDS = 16
_WORD_BITS = 64


@contextmanager
def memory_on_node(node: int) -> Iterator[None]:
    """Inside, pages first touched by this thread, or threads it starts, come from one node (set_mempolicy(2)).

    Raises OSError if the kernel refuses, as for a node without memory or outside the cpuset.
    """
    words = (ctypes.c_ulong * _MASK_WORDS)()
    words[node // _WORD_BITS] = 1 << node % _WORD_BITS
    _set_mempolicy(_MPOL_BIND, words, _MASK_WORDS * _WORD_BITS)
    try:
        yield
    finally:
        _set_mempolicy(_MPOL_DEFAULT, None, 0)


def _set_mempolicy(mode: int, mask: ctypes.Array[ctypes.c_ulong] | None, bits: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_SYS_SET_MEMPOLICY), ctypes.c_int(mode), mask, ctypes.c_ulong(bits)):
        error = ctypes.get_errno()
        raise OSError(error, f"set_mempolicy: {os.strerror(error)}")


_DEVICE_GAUGES = {
    "gpu.launch": ("GPU: kernel launch latency", "ns"),
    "link.copy": ("copy to the GPU", "bytes/s"),
    "link.copy_with_read": ("copy to the GPU while the CPU reads", "bytes/s"),
}
# One rate per dtype, as the field writes them.
_PEAK_UNITS = {"bf16": "FLOP/s", "int8": "OP/s"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauge:
    """One quantity of the machine; `read` measures it once, in `unit`."""

    key: str
    title: str
    unit: str
    read: Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruments:
    """The gauges of a machine, and the missing ones by key.

    `hop` is the gauge that shows the core placement; None with one core.
    """

    gauges: tuple[Gauge, ...]
    missing: dict[str, Constant]
    hop: Gauge | None = None


def buffers_needed(topology: Topology) -> int:
    """How many read buffers are open at once: all cores, one core, each domain's own and other domains' memory."""
    domains = len(topology.domains)
    return 2 if domains < 2 else 2 + 2 * domains - 1


def open_instruments(
    kernels: ModuleType, topology: Topology, cuda: CudaDevices, buffer_bytes: int = READ_BUFFER_BYTES
) -> Instruments:
    """All gauges of this machine. Takes `buffer_bytes` for each of `buffers_needed`."""
    every = _pinned_roofs(kernels, topology.core_cpus, buffer_bytes)
    single = _pinned_roofs(kernels, topology.core_cpus[:1], buffer_bytes)
    sets = (("all", f"all {len(topology.cores)} cores", every), ("one", "1 core", single))
    reads = [_read_gauge(f"read.{name}", who, roofs) for name, who, roofs in sets]
    peaks = [
        _peak_gauge(isa, dtype, name, who, roofs)
        for isa in PEAK_ISAS
        if kernels.grants().get(isa) == ""
        for dtype in PEAK_DTYPES
        for name, who, roofs in sets
    ]
    own, missing = _own_gauges(kernels, topology, buffer_bytes), _missing(kernels.grants(), topology, cuda)
    try:
        cross = list(_cross_gauges(kernels, topology, buffer_bytes))
    except OSError as error:
        cross, missing["read.across"] = [], _gap("read bandwidth across NUMA nodes", "bytes/s", str(error))
    hop = _hop_gauge(every) if len(topology.cores) > 1 else None
    return Instruments(gauges=(*reads, *own, *cross, *peaks, *filter(None, [hop])), missing=missing, hop=hop)


def _pinned_roofs(kernels: ModuleType, cpus: Sequence[int], buffer_bytes: int) -> Roofs:
    return Roofs(pinned_team(kernels, cpus), kernels, buffer_bytes)


def _own_gauges(kernels: ModuleType, topology: Topology, buffer_bytes: int) -> list[Gauge]:
    """Each domain reading its own memory: a page lies near the thread that touches it first."""
    domains = topology.domains if len(topology.domains) >= 2 else ()
    rooms = {node.id: _pinned_roofs(kernels, topology.node_core_cpus(node.id), buffer_bytes) for node in domains}
    return [_read_gauge(f"read.node{id_}", f"node {id_}", roofs) for id_, roofs in rooms.items()]


def _cross_gauges(kernels: ModuleType, topology: Topology, buffer_bytes: int) -> Iterator[Gauge]:
    """The first domain reading the memory of each other one. Raises OSError if the kernel refuses the placement."""
    reader, *owners = topology.domains
    for owner in owners:
        with memory_on_node(owner.id):
            roofs = _pinned_roofs(kernels, topology.node_core_cpus(reader.id), buffer_bytes)
        yield _read_gauge(f"read.node{reader.id}_from_node{owner.id}", f"node {reader.id} from node {owner.id}", roofs)


def _hop_gauge(roofs: Roofs) -> Gauge:
    return Gauge(key="ping_pong", title="cache line between 2 cores, one way", unit="ns", read=roofs.ping_pong_ns)


def _read_gauge(key: str, who: str, roofs: Roofs) -> Gauge:
    return Gauge(key=key, title=f"read bandwidth, {who}", unit="bytes/s", read=roofs.read_bytes_per_s)


def _peak_gauge(isa: str, dtype: str, name: str, who: str, roofs: Roofs) -> Gauge:
    return Gauge(
        key=f"peak.{isa}.{dtype}.{name}",
        title=f"{_peak_title(isa, dtype)}, {who}",
        unit=_PEAK_UNITS[dtype],
        read=partial(roofs.peak_flops, isa, dtype),
    )


def _peak_title(isa: str, dtype: str) -> str:
    """The title of a peak; AVX2 has no bf16 arithmetic and multiplies float32."""
    return f"{isa} {dtype}{' (as float32)' if (isa, dtype) == ('avx2', 'bf16') else ''} peak"


def _missing(grants: Mapping[str, str], topology: Topology, cuda: CudaDevices) -> dict[str, Constant]:
    missing = {
        f"peak.{isa}": _gap(f"{isa} {' and '.join(PEAK_DTYPES)} peak", "FLOP/s", grants[isa])
        for isa in PEAK_ISAS
        if grants[isa]
    }
    if len(topology.domains) < 2:
        missing["read.across"] = _gap("read bandwidth across NUMA nodes", "bytes/s", "there is one NUMA node")
    if len(topology.cores) < 2:
        missing["ping_pong"] = _gap("cache line between 2 cores, one way", "ns", "there is one usable core")
    why = cuda.reason or "not measured: this version probes the CPU side only"
    return missing | {key: _gap(title, unit, why) for key, (title, unit) in _DEVICE_GAUGES.items()}


def _gap(title: str, unit: str, why: str) -> Constant:
    return Constant(title=title, unit=unit, why=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A value in the unit of its gauge, and the core placement right before and after; None with one core."""

    value: float
    placement: CoreLayout | None


Readings = dict[str, Reading]


def read_rounds(
    instruments: Instruments, rounds: int, seconds: float, clock: Callable[[], float] = monotonic
) -> Iterator[Readings]:
    """Readings by gauge key, one round at a time, for at least this many rounds and seconds.

    Odd rounds are reversed, so that drift affects all gauges alike. A round is repeated if the process was stopped.
    """
    began, number = clock(), 0
    while number < rounds or clock() - began < seconds:
        order = instruments.gauges if number % 2 == 0 else instruments.gauges[::-1]
        paused, readings = pauses(), _read_round(order, instruments.hop)
        if pauses() == paused:
            yield readings
            number += 1


def describe(
    instruments: Instruments, rounds: Sequence[Readings], machine: Environment, day: date
) -> MachineDescription:
    """The description of a machine from rounds of readings: values are those at the most frequent core placement."""
    usual = _usual_placement(rounds)
    return MachineDescription(
        name=machine.facts["cpu_model"] or "unnamed cpu",
        env_id=machine.env_id,
        created=day.isoformat(),
        placement=usual,
        constants={gauge.key: _constant(gauge, rounds, usual, day) for gauge in instruments.gauges}
        | instruments.missing,
        facts=machine.facts,
    )


def _read_round(order: Sequence[Gauge], hop: Gauge | None) -> Readings:
    """The time from core to core is also read between gauges, right before and after each reading."""
    readings = {}
    before = None if hop is None else hop.read()
    for gauge in order:
        value = gauge.read()
        after = None if hop is None else hop.read()
        readings[gauge.key] = Reading(value=value, placement=core_layout_during([before, after]))
        before = after
    return readings


def _usual_placement(rounds: Sequence[Readings]) -> CoreLayout | None:
    """The most frequent placement; "moved" only if there is no other, None if there is none."""
    seen = Counter(reading.placement for readings in rounds for reading in readings.values() if reading.placement)
    steady = Counter({place: times for place, times in seen.items() if place != "moved"}) or seen
    return next((place for place, _ in steady.most_common(1)), None)


def _constant(gauge: Gauge, rounds: Sequence[Readings], usual: CoreLayout | None, day: date) -> Constant:
    readings = [readings[gauge.key] for readings in rounds]
    placements = tuple(reading.placement for reading in readings)
    typical = [reading.value for reading in readings if reading.placement == usual]
    where = f" while the cores were {usual}" if usual else ""
    source = f"measured by probe on {day.isoformat()}, median of {len(typical)} interleaved repeats{where}"
    return Constant(
        title=gauge.title,
        unit=gauge.unit,
        value=median(typical) if typical else None,
        source=source,
        samples=tuple(reading.value for reading in readings),
        placements=placements if any(placements) else (),
        why="" if typical else f"never measured{where}, the most frequent placement",
    )
