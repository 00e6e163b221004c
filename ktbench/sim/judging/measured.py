"""Measured cells as the simulator takes them: on their machine, with the limits sampled next to their trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ktbench.sim.limits import rules_not_simulated
from ktbench.sim.workloads import WORKLOADS
from ktbench.spec.core_layout import core_layout_of
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import OURS
from ktbench.spec.record import Cell, Environment, Record, RoofSample
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import FORMATS, Dtype
from ktbench.spec.wire import from_plain, to_plain

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
class MeasuredCell:
    """A measured cell: `spec` on the machine as it was then, and the median step in seconds."""

    spec: RunSpec
    step_s: float

    @property
    def summary(self) -> str:
        """One line that names its arm, model and work."""
        return f"{self.spec.label}, {replace(self.spec, machine=None).summary}"


def can_be_judged(spec: RunSpec) -> bool:
    """Whether the simulator can be held against a measured cell.

    Not where files in super-blocks mix formats, of which a spec names one, nor beside a CUDA device, since the
    calibration of this engine is of cores, nor where plain PEFT trains, examples are learned, latents are expanded in
    every step or injection rules say otherwise than those that are simulated.
    """
    expanded = (
        spec.engine.packed_dense
        and spec.model.config.get("kv_lora_rank")
        and not any(one.operator == "latent_attention" for one in spec.inject.rules)
    )
    supers = any(FORMATS[one].super_blocks for one in (spec.precision, spec.device_precision))
    workload = WORKLOADS.get(spec.workload.phase)
    modelled = (
        workload is not None and not any(workload.refuses(spec)) and not expanded and not rules_not_simulated(spec)
    )
    return spec.engine.device != "cuda" and modelled and (spec.model.path is None or not supers)


def measured_cell(spec: RunSpec, records: Sequence[Record], machine: MachineSpec) -> MeasuredCell | None:
    """The cell in its usual trials, on `machine` with the limits that were sampled next to them.

    Only trials on the most frequent core placement count. A roof can be read too low (memory that was not read for a
    while, a neighbour) but hardly too high: the upper quartile of those next to the trials is the limit. None where
    there is no timed trial with roofs, where the cell itself read faster than its roofs, and unless it
    `can_be_judged`.
    """
    timed = [record for record in records if record.samples_s and record.roofs and record.work]
    if not timed or not can_be_judged(spec):
        return None
    places = Counter(core_layout_of(record) for record in timed)
    usual = [record for record in timed if core_layout_of(record) == places.most_common(1)[0][0]]
    roofs = [roof for record in usual for roof in record.roofs]
    step_s = median(median(record.samples_s) for record in usual)
    read = float(np.quantile([roof.read_bytes_per_s for roof in roofs], 0.75))
    if usual[-1].work is not None and usual[-1].work.weight_bytes / step_s > read:
        return None
    peaks = [roof.peak_flops for roof in roofs if roof.peak_flops]
    roof = replace(roofs[0], read_bytes_per_s=read, peak_flops=median(peaks) if peaks else None)
    return MeasuredCell(spec=replace(spec, machine=machine_at(machine, roof)), step_s=step_s)


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
        "sources": dict.fromkeys(limits, "roofs next to the trials, medians")
        | dict.fromkeys(counts, "facts of the run"),
        "vector": "avx2" if all(roof.peak_isa == "avx2" for roof in roofs) else "avx512",
        "calibration": "ktbench",
    }
    return from_plain(content | counts | limits, MachineSpec)


def _peaks(roofs: Sequence[RoofSample], domains: int) -> dict[str, float]:
    """Medians of the peaks sampled; a dtype that was not is derived from the other."""
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
        raise ValueError("the run has no roof of AVX-512 or AVX2: its machine cannot be described")
    return peaks


def _dtype(roof: RoofSample) -> Dtype:
    return "int8" if roof.peak_dtype == "int8" else "bf16"


def measured_cells(
    environment: Environment, cells: Sequence[Cell], records: Mapping[str, Sequence[Record]], latest: Iterable[Record]
) -> list[MeasuredCell]:
    """Our own timed cells of a run, on its machine with the roofs next to their trials.

    `records` holds all records of a cell by its key, `latest` the last record of every cell and round.
    """
    machine = recorded_machine(environment, latest)
    ours = [cell for cell in cells if cell.role == "arm" and cell.spec.machine is None and cell.spec.system == OURS]
    found = [measured_cell(cell.spec, records[cell.key], machine) for cell in ours]
    return [one for one in found if one is not None]
