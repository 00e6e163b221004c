"""What a report says of simulated rows."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.text import span, unit_of
from ktbench.results.row import Row, machines_of, measured
from ktbench.results.speedups import MARGIN
from ktbench.results.usage import peak_spreads, read_spread
from ktbench.spec.machine import MachineSpec


def simulated_on(machines: Sequence[MachineSpec], *, among: int = 0) -> str:
    """`Simulated on TITLE by the machine model (calibration NAME)`; titles with names where there are others `among`
    which one has to be found.
    """
    titles = dict.fromkeys((machine.name, machine.title) for machine in machines)
    named = [f"{title} ({name})" if len(titles) + among > 1 else title for name, title in titles]
    calibrations = dict.fromkeys(machine.calibration for machine in machines)
    return f"Simulated on {'; '.join(named)} by the machine model (calibration {' and '.join(calibrations)})"


def simulated_sentence(rows: Sequence[Row]) -> str:
    """What was simulated on what, and that nothing was measured; empty where nothing was simulated."""
    machines = machines_of(rows)
    if not machines:
        return ""
    where = simulated_on(machines, among=len(measured(rows)))
    return f"{where}: one step, the same every time, so there are no intervals, rounds or controls."


def simulated_methods(rows: Sequence[Row], base: str) -> tuple[str, ...]:
    """How the numbers of simulated rows came about, and the limits they are held against; nothing without such rows."""
    machines = machines_of(rows)
    if not machines:
        return ()
    return (
        f"Simulated values are those of one step; speed-ups over {base} and gains are their ratios, faster and slower: "
        f"beyond ±{MARGIN:.0%}, same: within. Nothing was computed, so there is no error; evidence is what the model "
        "says that counters would show.",
        *(_limits(rows, machine) for machine in _by_name(machines)),
    )


def _by_name(machines: Sequence[MachineSpec]) -> list[MachineSpec]:
    return list({machine.name: machine for machine in machines}.values())


def _limits(rows: Sequence[Row], machine: MachineSpec) -> str:
    """The roofs of a machine; least to most where a sweep varies its constants."""
    mine = [row for row in rows if row.spec.machine is not None and row.spec.machine.name == machine.name]
    records = [record for row in mine for record in row.records]
    read, peaks = read_spread(records), peak_spreads(records)
    if read is None:
        return f"{machine.name}: no cell could be simulated."
    limits = [f"read {span(read.low / 1e9, read.high / 1e9)} GB/s"]
    for (isa, dtype), peak in peaks.items():
        limits.append(f"{isa} {dtype} peak {span(peak.low / 1e12, peak.high / 1e12)} {unit_of(dtype)}")
    return f"Roofs of {machine.name}, as described: {', '.join(limits)}."
