"""Plays the simulated cells of a plan, in this process: nothing is loaded, nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING

from ktbench.run.request import Planned
from ktbench.spec.evidence import collect
from ktbench.spec.outcome import Outcome
from ktbench.spec.record import Cell, Environment, Record, RoleTimes
from ktbench.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from ktbench.sim import Simulation

# Sensitivities take about a second each at the depth of the largest models.
_FEW = 12


def simulate_cells(planned: Planned, machine: Environment, kept: Mapping[tuple[str, int], Record]) -> Iterator[Record]:
    """A record for each simulated cell of a plan, in order; none where the resumed run has it already (`kept`).

    Where there are few of them they also say what more of each resource would give.
    """
    sensitive = len(planned.simulated) <= _FEW
    for cell in planned.simulated:
        known = kept.get((cell.key, 0))
        if known is not None and known.outcome.timed:
            continue
        record = simulated(cell, machine, planned.lacking.get(cell.key, ""), sensitive=sensitive)
        if known is None or (known.outcome, known.why) != (record.outcome, record.why):
            yield record


def simulated(cell: Cell, machine: Environment, lacking: str = "", *, sensitive: bool = False) -> Record:
    """One turn of a cell with the one step that there is. UNSUPPORTED where `lacking` or the simulator says why.

    A `sensitive` one is simulated a dozen times more, for what 10 % more of each resource would give.
    """
    from ktbench.sim import simulate  # only those who simulate wait for it to load

    blank = Record(
        cell=cell.key,
        label=cell.label,
        round=0,
        outcome=Outcome.UNSUPPORTED,
        why=lacking,
        provenance="simulated",
        code_id=machine.code_id,
        env_id=machine.env_id,
        sitting="",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if lacking:
        return blank
    began_s = perf_counter()
    try:
        return _filled(blank, cell.spec, simulate(cell.spec), began_s, sensitive=sensitive)
    except ValueError as error:
        return replace(blank, why=str(error))


def _filled(blank: Record, spec: RunSpec, found: Simulation, began_s: float, *, sensitive: bool) -> Record:
    from ktbench.sim.sensitivity import resource_lines

    told = resource_lines(spec) if sensitive else (f"bottleneck: {found.bottleneck}",)
    return replace(
        blank,
        outcome=Outcome.OK,
        took_s=perf_counter() - began_s,
        samples_s=(found.step_s,),
        evidence=collect(spec.engine.features, found.counters),
        work=found.work,
        roofs=(found.roof,),
        roles=_role_times(spec, found),
        notes=(*found.notes, *told),
    )


def _role_times(spec: RunSpec, found: Simulation) -> RoleTimes | None:
    """None where the roles share the cores. As on a real machine the device role waits where the host works alone."""
    if spec.workload.phase == "layer" or not spec.engine.apart:
        return None
    host_s = found.timeline.busy_s("host")
    alone_s = host_s - found.timeline.overlap_s("host", "device")
    return RoleTimes(host_busy_s=host_s, device_wait_s=alone_s, total_s=found.step_s)
