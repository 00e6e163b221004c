"""A machine on paper: what the simulator knows of one, each constant with its unit and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal

from msgspec import Meta

from ktbench.spec.errors import instead, shown
from ktbench.spec.features import FEATURES

_MOST_CHARACTERS = 200  # of a name, which rows, files and figures repeat
Vector = Literal["avx512", "avx2"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineConstant:
    """One constant of a `MachineSpec`: `of` the host, or of the device (absent together on a machine without one)."""

    name: str
    unit: str
    title: str
    of: Literal["host", "device"] = "host"
    optional: bool = False


CONSTANTS: tuple[MachineConstant, ...] = (
    MachineConstant(name="domains", unit="", title="NUMA domains"),
    MachineConstant(name="cores", unit="", title="cores of a domain"),
    MachineConstant(name="memory_gib", unit="GiB", title="memory of a domain"),
    MachineConstant(name="read_gb_per_s", unit="GB/s", title="read bandwidth of a domain from its own memory"),
    MachineConstant(name="remote_gb_per_s", unit="GB/s", title="read bandwidth of a domain from another's memory"),
    MachineConstant(name="vector_tflops", unit="TFLOPS", title="bf16 peak of a domain's vector units"),
    MachineConstant(name="vector_int8_tops", unit="TOPS", title="int8 peak of a domain's vector units"),
    MachineConstant(name="amx_tflops", unit="TFLOPS", title="bf16 peak of a domain's AMX units", optional=True),
    MachineConstant(name="amx_int8_tops", unit="TOPS", title="int8 peak of a domain's AMX units", optional=True),
    MachineConstant(name="gpus", unit="", title="GPUs", of="device"),
    MachineConstant(name="gpu_memory_gib", unit="GiB", title="memory of a GPU", of="device"),
    MachineConstant(name="gpu_gb_per_s", unit="GB/s", title="memory bandwidth of a GPU", of="device"),
    MachineConstant(name="gpu_tflops", unit="TFLOPS", title="dense bf16 peak of a GPU", of="device"),
    MachineConstant(name="gpu_ghz", unit="GHz", title="boost clock of a GPU", of="device"),
    MachineConstant(name="link_gb_per_s", unit="GB/s", title="link to a GPU, each way", of="device"),
    MachineConstant(
        name="nvlink_gb_per_s", unit="GB/s", title="NVLink of a GPU to others, each way", of="device", optional=True
    ),
)
BY_NAME: Mapping[str, MachineConstant] = {constant.name: constant for constant in CONSTANTS}


_CHANGED = "changed by the request"


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSpec:
    """A machine by its constants (see `CONSTANTS`), with the source of each in `sources`.

    `vector` names the widest vector instructions, `gpu` the GPU. `calibration` names the software constants (efficiency
    of kernels, launches, copies) that a simulation goes by, those of a system that was fitted on such machines.
    Raises ValueError naming a constant that is missing, negative, zero or without a source.
    """

    name: Annotated[str, Meta(description="how the machine is called")]
    title: Annotated[str, Meta(description="what tables call it")]
    sources: Annotated[dict[str, str], Meta(description="where each constant comes from")]
    domains: int
    cores: int
    memory_gib: float
    read_gb_per_s: float
    remote_gb_per_s: float
    vector: Annotated[Vector, Meta(description="its widest vector instructions")]
    vector_tflops: float
    vector_int8_tops: float
    amx_tflops: float | None = None
    amx_int8_tops: float | None = None
    gpu: Annotated[str | None, Meta(description="what its GPU is called; null: it has none")] = None
    gpus: int | None = None
    gpu_memory_gib: float | None = None
    gpu_gb_per_s: float | None = None
    gpu_tflops: float | None = None
    gpu_ghz: float | None = None
    link_gb_per_s: float | None = None
    nvlink_gb_per_s: float | None = None
    calibration: Annotated[str, Meta(description="constants of the software that is simulated")] = "ktransformers"

    def __post_init__(self) -> None:
        for key in ("name", "title"):
            if len(text := getattr(self, key)) > _MOST_CHARACTERS:
                raise ValueError(f"machine.{key}={shown(text)}: must have at most {_MOST_CHARACTERS} characters")
        for constant in CONSTANTS:
            self._check(constant)
        if unknown := sorted(set(self.sources) - set(BY_NAME)):
            raise ValueError(f"machine.sources.{unknown[0]}: no such constant{instead(unknown[0], BY_NAME)}")
        if (self.amx_tflops is None) != (self.amx_int8_tops is None):
            raise ValueError("machine.amx_tflops and machine.amx_int8_tops: a machine with AMX has both, others none")

    def _check(self, constant: MachineConstant) -> None:
        name, value = constant.name, getattr(self, constant.name)
        if value is None:
            if constant.of == "device" and self.gpu is not None and not constant.optional:
                raise ValueError(f"machine.{name}: missing, machine.gpu={self.gpu} needs it ({constant.title})")
            return
        if not 0 < value < inf:
            raise ValueError(f"machine.{name}={value}: must be above 0 ({constant.title})")
        if constant.of == "device" and self.gpu is None:
            raise ValueError(f"machine.{name}={value}: name the GPU with machine.gpu")
        if not self.sources.get(name, "").strip():
            raise ValueError(
                f"machine.{name}={value}: has no source; say where it comes from in machine.sources.{name}"
            )

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the constants that a request changed (see `with_constant`)."""
        return tuple(name for name, source in self.sources.items() if source.startswith(_CHANGED))

    @property
    def feature_reasons(self) -> dict[str, str]:
        """What the machine lacks of each feature, by feature name; empty for nothing."""
        missing = {
            "avx2": "" if self.vector == "avx2" else f"{self.name} is described by its AVX-512 rates, simulate +v",
            "avx512": "" if self.vector == "avx512" else f"{self.name} has no AVX-512",
            "amx": "" if self.amx_tflops is not None else f"{self.name} has no AMX",
            "numa": "" if self.domains > 1 else f"{self.name} has one NUMA domain",
            "cuda": "" if self.gpu is not None else f"{self.name} has no GPU",
        }
        return {one.name: "; ".join(filter(None, (missing.get(need, "") for need in one.needs))) for one in FEATURES}


# What a core reads alone: core_read_gb_per_s of conf/calibration/ktbench.yaml.
_CORE_READ_GB_PER_S = 27.4
UNITS = ("vector_tflops", "vector_int8_tops", "amx_tflops", "amx_int8_tops")


def with_constant(machine: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A machine with another value of a constant, whose source then tells what it was; both plain content.

    Cores bring their vector and AMX units, and fewer of them read no more than they can (see `of_cores`), but for what
    the same request has set.
    """
    was = machine[name]
    if value == was:
        return dict(machine)
    has_cores = name == "cores" and isinstance(value, int) and value > 0  # anything else is left for the spec to refuse
    more = of_cores(machine, value) if has_cores else {}
    kept = {other for other, source in machine["sources"].items() if str(source).startswith(_CHANGED)}
    changed = {name: value} | {other: new for other, new in more.items() if new != machine[other] and other not in kept}
    amounts = {
        other: "none" if machine[other] is None else f"{machine[other]:g} {BY_NAME[other].unit}" for other in changed
    }
    sources = {other: f"{_CHANGED} ({machine['name']}: {amount.strip()})" for other, amount in amounts.items()}
    return {**machine, **changed, "sources": {**machine["sources"], **sources}}


def of_cores(machine: Mapping[str, Any], cores: float) -> dict[str, Any]:
    """What so many cores of a domain have of its peaks and bandwidths: their share of units, and what they can read.

    A core alone reads _CORE_READ_GB_PER_S, or its share of what all read where that is more.
    """
    share = cores / machine["cores"]
    own = cores * max(_CORE_READ_GB_PER_S, machine["read_gb_per_s"] / machine["cores"])
    reads = {name: min(machine[name], own) for name in ("read_gb_per_s", "remote_gb_per_s")}
    return reads | {name: share * machine[name] for name in UNITS if machine[name] is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Microarchitecture:
    """A design of processors, by the `family` and the `models` (first and last) that CPUID reports.

    `amx` says whether it has AMX, None where the numbers alone decide, and its last-level cache is larger than
    `cache_above_mib`: hypervisors give guests numbers of other processors than theirs.
    """

    name: str
    source: str
    family: int
    models: tuple[tuple[int, int], ...]
    amx: bool | None = None
    cache_above_mib: int = 0

    def fits(self, family: int, model: int, *, amx: bool | None, cache_bytes: int) -> bool:
        """Whether a processor is one; `amx` is None, and `cache_bytes` 0, where that is not known."""
        has_numbers = family == self.family and any(first <= model <= last for first, last in self.models)
        has_amx = self.amx is None or (self.amx == amx if amx is not None else not self.amx)
        return has_numbers and has_amx and (not self.cache_above_mib or cache_bytes > self.cache_above_mib * 2**20)
