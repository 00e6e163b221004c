"""`probe`: the limits of this machine, measured and kept as a machine description."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ktbench.host.describe import Constant, MachineDescription

SUMMARY = "the roofs: read bandwidth, peak per ISA, core-to-core latency; saved as a machine description"
_ROUNDS = 12
_GIB = 2**30
# Unit as kept: unit as shown, and how many of the kept make one of the shown.
_SHOWN = {"bytes/s": ("GB/s", 1e9), "FLOP/s": ("TFLOP/s", 1e12), "ns": ("ns", 1.0)}


def run(overrides: Sequence[str]) -> int:
    """Measure, print the table, save the description. Raises RequestError before anything is measured."""
    from ktbench.host.describe import save_description

    out = _out(overrides)
    machine = _measure()
    path = out or Path("runs") / f"machine-{machine.env_id}.yaml"
    save_description(machine, path)
    print("\n".join(table(machine)))
    print(f"wrote {path}")
    return 0


def _out(overrides: Sequence[str]) -> Path | None:
    from ktbench.core.errors import RequestError

    for word in overrides:
        if not word.startswith("out=") or word == "out=":
            raise RequestError(f"probe {word}: unknown argument; allowed is out=FILE")
    out = Path(overrides[-1].removeprefix("out=")) if overrides else None
    if out is not None and out.is_dir():
        raise RequestError(f"probe out={out}: this is a folder; name a file, such as {out / 'machine.yaml'}")
    return out


def _measure() -> MachineDescription:
    from datetime import UTC, datetime

    from ktbench.core.errors import RequestError
    from ktbench.host.cuda import read_cuda_devices
    from ktbench.host.environment import environment
    from ktbench.host.extension import load_extension
    from ktbench.host.gauges import buffers_needed, open_instruments
    from ktbench.host.memory import available_memory_bytes
    from ktbench.host.probe import describe, read_rounds
    from ktbench.host.roofs import READ_BUFFER_BYTES
    from ktbench.host.topology import read_topology

    extension, topology = load_extension(), read_topology()
    if extension.module is None:
        raise RequestError(f"probe: {extension.reason}")
    need, free = buffers_needed(topology) * READ_BUFFER_BYTES, available_memory_bytes()
    if need > free:
        raise RequestError(f"probe: needs {need / _GIB:.1f} GiB of memory, {free / _GIB:.1f} GiB are free")
    _say(f"filling {need / _GIB:.0f} GiB of buffers")
    machine = environment()
    instruments = open_instruments(extension.module, topology, read_cuda_devices())
    rounds = []
    for readings in read_rounds(instruments.gauges, _ROUNDS):
        rounds.append(readings)
        _say(f"round {len(rounds)} of {_ROUNDS}: read bandwidth {_figure(readings['read.all'], 'bytes/s')}")
    return describe(instruments, rounds, machine, datetime.now(UTC).date())


def table(machine: MachineDescription) -> list[str]:
    """The description as lines of aligned text: median, 95 % interval, unit; a dash with its reason for a gap."""
    width = max(len(constant.title) for constant in machine.constants.values())
    placed = f"; first two cores {machine.placement}" if machine.placement else ""
    return [
        f"{machine.name} (env {machine.env_id}){placed}",
        f"medians of {_ROUNDS} interleaved repeats with distribution-free 95 % intervals, measured {machine.created}",
        *(f"  {constant.title:<{width}}  {_row(constant)}" for constant in machine.constants.values()),
    ]


def _row(constant: Constant) -> str:
    from ktbench.stats.intervals import median_interval

    if constant.value is None:
        return f"{'-':>8}  {constant.why}"
    unit, scale = _SHOWN[constant.unit]
    interval = median_interval(constant.samples)
    low, mid, high = (f"{value / scale:.3g}" for value in (interval.low, interval.mid, interval.high))
    return f"{mid:>8} {unit:<8} {low} to {high}"


def _figure(value: float, kept: str) -> str:
    unit, scale = _SHOWN[kept]
    return f"{value / scale:.3g} {unit}"


def _say(line: str) -> None:
    print(f"probe: {line}", file=sys.stderr, flush=True)
