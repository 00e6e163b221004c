"""Records of simulated cells, computed in this process: no model is loaded and nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter

from ktbench.sim.errors import speed_interval, speed_text
from ktbench.sim.sensitivity import resource_lines, sensitivity
from ktbench.sim.simulation import Simulation, simulate
from ktbench.sim.workloads import workload_of
from ktbench.spec.record import Cell, Environment, Outcome, Record, RoleTimes, collect
from ktbench.spec.run_spec import RunSpec

# Sensitivities take about a second each at the depth of the largest models.
_MOST_WITH_SENSITIVITY = 12


def simulate_cells(
    cells: Sequence[Cell], unsupported: Mapping[str, str], machine: Environment, kept: Mapping[tuple[str, int], Record]
) -> Iterator[Record]:
    """A record for each simulated cell, in order; none where the resumed run has it already (`kept`).

    `unsupported` holds by cell key why a machine cannot run a cell. Few cells get their sensitivities as notes.
    """
    sensitive = len(cells) <= _MOST_WITH_SENSITIVITY
    for cell in cells:
        known = kept.get((cell.key, 0))
        if known is not None and known.outcome.timed:
            continue
        record = simulated(cell, machine, unsupported.get(cell.key, ""), sensitive=sensitive)
        if known is None or (known.outcome, known.why) != (record.outcome, record.why):
            yield record


def simulated(cell: Cell, machine: Environment, unsupported: str = "", *, sensitive: bool = False) -> Record:
    """The record of one step of a cell; UNSUPPORTED with the reason, where one is given or the simulator raises one.

    `sensitive` adds notes on what 10 % more of each resource would give, for which about a dozen steps are simulated.
    """
    blank = Record(
        cell=cell.key,
        label=cell.label,
        round=0,
        outcome=Outcome.UNSUPPORTED,
        why=unsupported,
        provenance="simulated",
        code_id=machine.code_id,
        env_id=machine.env_id,
        worker_session="",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if unsupported:
        return blank
    began_s = perf_counter()
    try:
        return _filled(blank, cell.spec, simulate(cell.spec), began_s, sensitive=sensitive)
    except ValueError as error:
        return replace(blank, why=str(error))


def _filled(blank: Record, spec: RunSpec, found: Simulation, began_s: float, *, sensitive: bool) -> Record:
    notes: tuple[str, ...] = (f"bottleneck: {found.bottleneck}",)
    if sensitive:
        notes = (*_within(spec, found), *resource_lines(sensitivity(spec, now_s=found.step_s)))
    return replace(
        blank,
        outcome=Outcome.OK,
        took_s=perf_counter() - began_s,
        samples_s=(found.step_s,),
        evidence=collect({**spec.engine.features, **found.chosen}, found.counters),
        work=found.work,
        roofs=(found.roof,),
        roles=_role_times(spec, found),
        notes=(*found.notes, *notes),
        parts=found.parts,
    )


def _within(spec: RunSpec, found: Simulation) -> Iterator[str]:
    """Where a measured speed is to be expected. Of machines without a GPU, too few were measured by others to say."""
    errors = workload_of(spec).errors
    if errors and spec.machine is not None and spec.machine.gpu is not None:
        low, high = speed_interval(spec.workload.tokens_per_step / found.step_s, spec.workload.phase)
        others = "users' reports" if errors == "users" else "held-out published cells"
        yield f"90 % interval by the errors at {others}: {speed_text(low)} to {speed_text(high)} tokens/s"


def _role_times(spec: RunSpec, found: Simulation) -> RoleTimes | None:
    """None where the roles share the cores, and in training, where they take turns.

    The device role waits while the host works alone, as on a real machine.
    """
    workload = workload_of(spec)
    if workload.single_layer or workload.trains or not spec.engine.roles_concurrent:
        return None
    host_s = found.timeline.busy_s("host")
    alone_s = max(0.0, host_s - found.timeline.overlap_s("host", "device"))  # both are sums that round
    return RoleTimes(host_busy_s=host_s, device_wait_s=alone_s, total_s=found.step_s)
