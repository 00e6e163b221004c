"""A published number as the simulator is held against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median
from typing import Literal

import numpy as np

from ktbench.sim.calibration import Calibration
from ktbench.sim.executor import busy_share
from ktbench.sim.simulation import step_graph, step_seconds, with_deferral
from ktbench.spec.machine import MachineSpec
from ktbench.spec.placement import placement_of
from ktbench.spec.plain import from_plain, to_plain
from ktbench.spec.record import Environment, Record, RoofSample
from ktbench.spec.run_spec import Dtype, RunSpec

_PEAKS: dict[tuple[str, Dtype], str] = {
    ("avx512", "bf16"): "vector_tflops",
    ("avx512", "int8"): "vector_int8_tops",
    ("avx2", "bf16"): "vector_tflops",
    ("avx2", "int8"): "vector_int8_tops",
    ("amx", "bf16"): "amx_tflops",
    ("amx", "int8"): "amx_int8_tops",
}
_INT8_OVER_BF16 = 2.0  # of instructions as wide, where only one was measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """A measured cell: `spec` on the machine as it was then, and the median step in seconds."""

    spec: RunSpec
    step_s: float


def observe(spec: RunSpec, records: Sequence[Record], machine: MachineSpec) -> Observed | None:
    """The cell in its usual turns, on `machine` with the limits that were sampled next to them.

    Of the turns those count in which the cores were where they were most often. A roof can be read too low (memory that
    nobody has read for a while, a neighbour) but hardly too high: the upper quartile of those next to the turns is the
    limit. None where there is no timed turn with roofs, and where the cell itself read faster than its roofs.
    """
    timed = [record for record in records if record.samples_s and record.roofs and record.work]
    if not timed:
        return None
    places = Counter(placement_of(record.roofs) for record in timed)
    usual = [record for record in timed if placement_of(record.roofs) == places.most_common(1)[0][0]]
    roofs = [roof for record in usual for roof in record.roofs]
    step_s = median(median(record.samples_s) for record in usual)
    read = float(np.quantile([roof.read_bytes_per_s for roof in roofs], 0.75))
    if usual[-1].work is not None and usual[-1].work.weight_bytes / step_s > read:
        return None
    peaks = [roof.peak_flops for roof in roofs if roof.peak_flops]
    roof = replace(roofs[0], read_bytes_per_s=read, peak_flops=median(peaks) if peaks else None)
    return Observed(spec=replace(spec, machine=machine_at(machine, roof)), step_s=step_s)


def machine_at(machine: MachineSpec, roof: RoofSample) -> MachineSpec:
    """The machine with the limits of that moment: its read bandwidth, and the peak that was sampled."""
    read = roof.read_bytes_per_s / machine.domains * 1e-9
    changed = {"read_gb_per_s": read, "remote_gb_per_s": read * machine.remote_gb_per_s / machine.read_gb_per_s}
    name = _PEAKS.get((roof.peak_isa, _dtype(roof)))
    if name is not None and roof.peak_flops is not None:
        changed[name] = roof.peak_flops / machine.domains * 1e-12
    return from_plain(to_plain(machine) | changed, MachineSpec)


def recorded_machine(environment: Environment, records: Iterable[Record]) -> MachineSpec:
    """The machine of a run by the facts and the roofs in its log. Raises ValueError where no peak was sampled."""
    roofs = [roof for record in records for roof in record.roofs]
    facts, domains = environment.facts, len(environment.facts["numa_nodes"])
    read = median(roof.read_bytes_per_s for roof in roofs) / domains * 1e-9
    limits = {"read_gb_per_s": read, "remote_gb_per_s": read} | _peaks(roofs, domains)
    counts = {"domains": domains, "cores": facts["cores"] // domains, "memory_gib": facts["memory_total_gib"] / domains}
    content = {
        "name": environment.env_id,
        "title": facts["cpu_model"] or "unnamed cpu",
        "sources": dict.fromkeys(limits, "roofs next to the turns, medians")
        | dict.fromkeys(counts, "facts of the run"),
        "vector": "avx2" if all(roof.peak_isa == "avx2" for roof in roofs) else "avx512",
        "calibration": "ktbench",
    }
    return from_plain(content | counts | limits, MachineSpec)


def _peaks(roofs: Sequence[RoofSample], domains: int) -> dict[str, float]:
    """Medians of the peaks sampled; a dtype that was not is taken from the other."""
    sampled: dict[str, list[float]] = {}
    for roof in roofs:
        if roof.peak_flops is not None:
            sampled.setdefault(_PEAKS[roof.peak_isa, _dtype(roof)], []).append(roof.peak_flops / domains * 1e-12)
    peaks = {name: median(values) for name, values in sampled.items()}
    for bf16, int8 in (("vector_tflops", "vector_int8_tops"), ("amx_tflops", "amx_int8_tops")):
        if bf16 in peaks or int8 in peaks:
            peaks.setdefault(int8, _INT8_OVER_BF16 * peaks.get(bf16, 0.0))
            peaks.setdefault(bf16, peaks[int8] / _INT8_OVER_BF16)
    if "vector_tflops" not in peaks:
        raise ValueError("the run has no roof of AVX-512 or AVX2: its machine cannot be told")
    return peaks


def _dtype(roof: RoofSample) -> Dtype:
    return "int8" if roof.peak_dtype == "int8" else "bf16"


# Seconds of a step; the share of it in which the host works; the share that deferral saves of it.
Kind = Literal["step_s", "host_busy", "time_saved"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """`value` is what was published of a cell, as `kind` says; `id` and `figure` are those of the published number."""

    id: str
    figure: str
    spec: RunSpec
    kind: Kind
    value: float

    @property
    def model(self) -> str:
        """The model's name."""
        return self.spec.model.name

    @property
    def is_base(self) -> bool:
        """Whether Fiddler's scheme ran."""
        return not self.spec.engine.fused


def simulated_value(observation: Observation, cost: Calibration) -> float:
    """What the simulator says in place of `Observation.value`."""
    spec = observation.spec
    if observation.kind == "host_busy":
        return busy_share(step_graph(spec, cost).tasks, "host")
    step_s = step_seconds(spec, cost)
    return step_s if observation.kind == "step_s" else 1 - step_s / step_seconds(with_deferral(spec, 0), cost)


def residual(observation: Observation, cost: Calibration) -> float:
    """Natural logarithm of simulated over published: of what is left of a step, where it is a share saved."""
    mine, theirs = simulated_value(observation, cost), observation.value
    return log((1 - mine) / (1 - theirs)) if observation.kind == "time_saved" else log(mine / theirs)
