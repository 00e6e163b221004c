"""Simulated runs that nobody simulated: synthetic runs with their cells moved to machines of paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from ktbench.results import Run
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Cell, Record
from ktbench.spec.wire import spec_id
from tests.sim.testbed import testbed

MACHINE = testbed()
OTHER = replace(testbed(read_gb_per_s=300.0), name="other", title="Another machine")


def simulated(run: Run, *machines: MachineSpec, beside: bool = False) -> Run:
    """The arms of a run on each of `machines` (none: MACHINE), one step each of what the first round took.

    The control goes. With `beside` the measured cells stay, before the others.
    """
    found = [pair for machine in machines or (MACHINE,) for pair in _moved(run, machine)]
    cells = tuple(cell for cell, _ in found)
    records = tuple(record for _, record in found)
    if beside:
        cells, records = run.header.cells + cells, run.records + records
    return replace(run, header=replace(run.header, cells=cells), records=records)


def _moved(run: Run, machine: MachineSpec) -> Iterator[tuple[Cell, Record]]:
    for cell in run.header.cells:
        if cell.role == "control":
            continue
        device = "cpu" if cell.spec.workload.phase == "layer" else "cuda"
        engine = replace(cell.spec.engine, device=device, roles="shared", device_threads=None)
        spec = replace(cell.spec, machine=machine, engine=engine)
        moved = replace(cell, spec=spec, spec_id=spec_id(spec))
        yield moved, _played(run.of_cell(cell.key), moved)


def _played(records: Sequence[Record], cell: Cell) -> Record:
    last, machine = records[-1], cell.spec.machine
    assert machine is not None
    if not last.outcome.timed:
        return replace(last, cell=cell.key, round=0, provenance="simulated", error=None)
    roof = replace(records[0].roofs[0], ping_pong_ns=None, read_bytes_per_s=2e9 * machine.read_gb_per_s)
    step_s = median(records[0].samples_s)
    evidence = tuple(
        replace(one, seen=None if one.seen is None else one.seen // len(records[0].samples_s))
        for one in records[0].evidence
    )
    return replace(
        records[0],
        cell=cell.key,
        provenance="simulated",
        worker_session="",
        samples_s=(step_s,),
        evidence=evidence,
        roofs=(roof,),
        error=None,
        notes=("bottleneck: read bandwidth",),
        agreement=None,
    )
