"""What is recorded of a machine: its facts, and how it behaved during the timed steps of a trial."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TypedDict

from ktbench.spec.errors import fields_at_least, number_at_least


class MachineFacts(TypedDict, total=False):
    """Facts of an `Environment` that checks and reports read, by their types; None where a machine does not say."""

    cpu_model: str | None
    cpus: list[int]
    cores: int
    numa_nodes: list[list[int]]
    smt: bool | None
    last_level_cache_bytes: int | None
    hypervisor: str | None
    kernel: str | None
    granted: list[str]
    refused: dict[str, str]
    isa: dict[str, str]
    gpus: list[str]
    memory_total_gib: int
    memory_available_bytes: int | None
    memory_limit: str | None
    installed_bytes: int | None
    free_bytes: int | None
    cached_bytes: int | None
    dirty_bytes: int | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None
    swappiness: int | None
    governor: str | None
    energy_preference: str | None
    turbo: bool | None
    clock_source: str | None
    thp: str | None
    numa_balancing: bool | None
    cpu_quota: float | None
    load: float | None
    others_running: int | None
    foreign_siblings: list[int] | None
    stolen_share: float | None
    thermal_stops: int | None
    core_to_core_ns: float | None
    missing: dict[str, str]
    python: str | None
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool | None


# Counts what the packages and more take together: it is shown, and never added to them.
WHOLE_PLATFORM = "psys"
# Every worker holds the buffer that its read roof is sampled from: larger than last-level caches, and read on from
# where the sample before stopped.
READ_BUFFER_BYTES = 2**30

# Counters of GPUs move every 20 to 100 ms: Yang, Adamek and Armour, Accurate and Convenient Energy Measurements for
# GPUs, SC 2024. On an H100 steps of 0.05 s were seen to take 0 J or twice their share.
GPU_METERED_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class InterferenceCounters:
    """What kept `cpus` logical cpus from the work in `seconds`; None where the kernel does not say.

    Of the worker and the programs it started: `preemptions` (involuntary context switches), `minor_faults` and
    `major_faults` (pages found in memory, read from disk). Of its cpus, in ticks of mostly 10 ms: `others_s`, CPU
    seconds of other programs, and `stolen_s`, CPU seconds that the hypervisor gave to others. Of its control groups:
    `quota_stops`, periods in which their CPU quota stopped a thread. Of the machine: `thermal_stops` (cores throttled
    for heat), `swapped_pages`, `migrated_pages` (moved to another NUMA node). `clock_hz` is the mean clock of the cpus
    right after the steps. Of the GPU that this is worst for: `gpu_clock_hz`, the mean clock of its multiprocessors, and
    `gpu_held_back_s`, seconds in which its driver lowered clocks for power or heat.
    """

    seconds: float
    cpus: int
    preemptions: int
    minor_faults: int
    major_faults: int
    others_s: float | None = None
    stolen_s: float | None = None
    quota_stops: int | None = None
    thermal_stops: int | None = None
    swapped_pages: int | None = None
    migrated_pages: int | None = None
    clock_hz: float | None = None
    gpu_clock_hz: float | None = None
    gpu_held_back_s: float | None = None

    def __post_init__(self) -> None:
        fields_at_least(self, 0, *(one.name for one in fields(self)))


def added_up(meters: Iterable[str]) -> tuple[str, ...]:
    """The meters that are added up: of packages, their memory and GPUs; of the whole platform where it is alone."""
    names = tuple(meters)
    return tuple(name for name in names if name != WHOLE_PLATFORM) or names


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Joules by meter (`package-0`, `dram-0`, `psys`, `gpu-0`) in `seconds`: of whole chips, whoever used them."""

    joules: dict[str, float]
    seconds: float

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "seconds")
        for meter, joules in self.joules.items():
            number_at_least(f"Energy.{meter}", joules, 0)

    @property
    def counted(self) -> tuple[str, ...]:
        """The meters that are added up."""
        return added_up(self.joules)

    @property
    def is_resolved(self) -> bool:
        """Whether it was read for so long that an update of a GPU's counter is no more than a tenth of it."""
        return self.seconds >= GPU_METERED_S or not any(name.startswith("gpu-") for name in self.joules)

    @property
    def total_j(self) -> float:
        """Joules of the meters that are added up."""
        return sum(self.joules[name] for name in self.counted)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """Bytes that the worker held at most: `process_bytes` of memory, `device_bytes` by CUDA device (`cuda:0`).

    `process_bytes` is the peak of the trial where `of_turn`, else of the worker so far. `node_bytes` by NUMA node
    (`node 0`) is the most that was seen at the end of a trial of this worker. READ_BUFFER_BYTES of the process, and of
    its nodes together, are the harness's own.
    """

    process_bytes: int
    of_turn: bool
    node_bytes: dict[str, int] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "process_bytes")
        for name, count in (self.node_bytes | self.device_bytes).items():
            number_at_least(f"PeakMemory.{name}", count, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemMetrics:
    """What was seen of the machine during one trial. `missing` says why `energy`, `memory` or `nodes` are not known.

    `link_bytes` is the traffic of GPUs' links by direction (`to gpu-0`), whoever caused it.
    """

    disturbance: InterferenceCounters
    energy: Energy | None = None
    memory: PeakMemory | None = None
    link_bytes: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
