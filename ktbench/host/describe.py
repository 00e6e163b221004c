"""A described machine: constants with unit, source and samples, saved as readable YAML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from ktbench.files import write_whole
from ktbench.host.environment import environment
from ktbench.host.roofs import PEAK_DTYPES
from ktbench.resources import read_text
from ktbench.spec.core_layout import CoreLayout
from ktbench.spec.wire import from_plain, to_plain
from ktbench.spec.yaml_text import MOST_BYTES, plain_yaml

CALIBRATION = "ktbench"
_VECTORS = ("avx512", "avx2")
_NAMES = {
    "vector": {"bf16": "vector_tflops", "int8": "vector_int8_tops"},
    "amx": {"bf16": "amx_tflops", "int8": "amx_int8_tops"},
}
# A value and its source.
_Sourced = tuple[float, str]


def read_local_machine(folder: Path = Path("runs")) -> dict[str, Any]:
    """Plain content of the `MachineSpec` of this machine, from the description that `probe` wrote into `folder`.

    Raises ValueError in one line where it is missing or lacks constants that a simulation needs.
    """
    env_id = environment().env_id
    path = folder / f"machine-{env_id}.yaml"
    if not path.is_file():
        raise ValueError(f"machine=local: {path} is not there, run `python -m ktbench probe` first")
    return machine_content(load_description(path), path)


def machine_content(machine: MachineDescription, path: Path) -> dict[str, Any]:
    """Plain content of the `MachineSpec` of a description; it has no GPU, as GPUs are not probed.

    Values are medians at the most frequent core placement. Raises ValueError in one line for a machine
    without measured read bandwidth or without AVX-512 and AVX2.
    """
    where = f"{path.name}, {machine.created}"
    vector = next((isa for isa in _VECTORS if _peak(machine, isa, "bf16") is not None), None)
    if vector is None:
        raise ValueError(f"machine=local: {path} has no peak of {' or '.join(_VECTORS)}")
    constants = dict(_counts(machine)) | dict(_reads(machine, path)) | dict(_peaks(machine, vector))
    return {
        "name": "local",
        "title": machine.name,
        "sources": {name: f"{source} ({where})" for name, (_, source) in constants.items()},
        "vector": vector,
        "calibration": CALIBRATION,
        **{name: value for name, (value, _) in constants.items()},
    }


def _counts(machine: MachineDescription) -> Iterator[tuple[str, _Sourced]]:
    """Counts from the kernel, divided evenly over the domains."""
    facts, domains = machine.facts, _domains(machine)
    yield "domains", (domains, "NUMA nodes that the kernel shows")
    yield "cores", (facts["cores"] // domains, "cores that the process may use, evenly over the domains")
    memory = "memory of the machine or of its control group, evenly over the domains"
    yield "memory_gib", (facts["memory_total_gib"] / domains, memory)


def _reads(machine: MachineDescription, path: Path) -> Iterator[tuple[str, _Sourced]]:
    """Bandwidths in GB/s of a domain; with several domains the mean of reads from their own memory."""
    own = [one for key, one in machine.constants.items() if key.startswith("read.node") and "_from_" not in key]
    across = [one for key, one in machine.constants.items() if "_from_" in key]
    if _domains(machine) == 1:
        own = [machine.constants["read.all"]]
    read = _mean(own, 1e9)
    if read is None:
        raise ValueError(f"machine=local: {path} has no read bandwidth, run `python -m ktbench probe` again")
    yield "read_gb_per_s", read
    remote = _mean(across, 1e9)
    why = "one domain" if _domains(machine) == 1 else machine.constants["read.across"].why
    yield "remote_gb_per_s", remote or (read[0], f"as its own memory: {why}")


def _peaks(machine: MachineDescription, vector: str) -> Iterator[tuple[str, _Sourced]]:
    """Peaks of a domain in 10^12 operations a second, of vector units and, if measured, AMX."""
    for unit, isa in (("vector", vector), ("amx", "amx")):
        for dtype in PEAK_DTYPES:
            peak = _peak(machine, isa, dtype)
            if peak is not None:
                yield _NAMES[unit][dtype], (peak[0] / _domains(machine), peak[1])


def _peak(machine: MachineDescription, isa: str, dtype: str) -> _Sourced | None:
    constant = machine.constants.get(f"peak.{isa}.{dtype}.all")
    return None if constant is None else _mean([constant], 1e12)


def _mean(constants: list[Constant], scale: float) -> _Sourced | None:
    """Mean of the known values, in a unit `scale` times as large, with the first one's source; None without values."""
    measured = [(constant.value, constant.source) for constant in constants if constant.value is not None]
    return (mean(value for value, _ in measured) / scale, measured[0][1]) if measured else None


def _domains(machine: MachineDescription) -> int:
    """The number of nodes with cpus."""
    return max(1, sum(bool(cpus) for cpus in machine.facts["numa_nodes"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One number of a machine, with all its `samples` in order of measuring.

    `source` is a measurement with its date, a data sheet, or a paper. A `value` of None needs a `why`. `placements` has
    the core placement of each sample, None where a core was busy with something else; it is empty on a machine with one
    core. Raises ValueError for a number without a source, a gap without a reason, and placements that do not match the
    samples.
    """

    title: str
    unit: str
    value: float | None = None
    source: str = ""
    samples: tuple[float, ...] = ()
    placements: tuple[CoreLayout | None, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.why:
            raise ValueError(f"{self.title}: a value of None needs a why")
        if self.value is not None and not self.source:
            raise ValueError(f"{self.title}: value {self.value} {self.unit} needs a source")
        if self.placements and len(self.placements) != len(self.samples):
            raise ValueError(f"{self.title}: {len(self.placements)} placements for {len(self.samples)} samples")

    def samples_at(self, placement: CoreLayout | None) -> tuple[float, ...]:
        """The samples with this core placement; all for None, on a machine with one core."""
        pairs = zip(self.samples, self.placements or [None] * len(self.samples), strict=True)
        return tuple(sample for sample, placed in pairs if placed == placement)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDescription:
    """A machine by its constants.

    `placement` is the most frequent placement of its first two cores (None with one core): values of measured constants
    are medians of the samples at this placement.
    """

    name: str
    env_id: str
    created: str
    constants: dict[str, Constant]
    facts: dict[str, Any]
    placement: CoreLayout | None = None


def save_description(machine: MachineDescription, path: Path) -> None:
    """Write the description, making the folders above it. Raises NotWritten."""
    # Without a flow style the innermost lists, which are the samples, are wrapped at the width.
    text = yaml.safe_dump(to_plain(machine), default_flow_style=None, sort_keys=False, allow_unicode=True, width=120)
    write_whole(path, text, synced=True)


def load_description(path: Path) -> MachineDescription:
    """Read a description. Raises ValueError naming the file and the error."""
    content = plain_yaml(read_text(path, str(path), MOST_BYTES), str(path), "a machine description")
    try:
        return from_plain(content, MachineDescription)
    except ValueError as error:
        raise ValueError(f"{path}: not a machine description: {error}") from None
