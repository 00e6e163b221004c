"""Energy meters: RAPL of processors and their memory, NVML of GPUs; or why there are none.

Meters count joules of whole chips, including idle power and other programs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from ktbench.host.cuda import CudaDevices
from ktbench.host.nvml import NvmlGpu, open_gpus
from ktbench.host.sysfs import read_int, read_text
from ktbench.spec.system_metrics import WHOLE_PLATFORM, Energy, added_up

# AMD's processors are read through the same driver; intel-rapl-mmio:* would count packages a second time.
_ZONES = "sys/class/powercap"
_PATTERN = "intel-rapl:*"
# Cores and graphics are part of their package.
_MEMORY = "dram"
# An upper bound for one chip: a meter that could have wrapped around more than once at this power is not used.
_MOST_W = 2_000.0
_TOO_LONG = "may have wrapped around more than once in this long trial"
_DECREASED = "decreased, and has no known range"


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """One counter. `read` gives the joules since some moment; past `range_j` they wrap around to 0 (None: never)."""

    name: str
    read: Callable[[], float]
    range_j: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Meters:
    """All readable meters; `missing` has the reasons for `processors` and `GPUs` without readable meters.

    `gpus` provide more readings than joules.
    """

    meters: tuple[Meter, ...]
    missing: dict[str, str]
    gpus: tuple[NvmlGpu, ...] = ()

    @property
    def reason(self) -> str:
        """Why something is not measured, in one line; empty if everything is."""
        return "; ".join(f"{what}: {why}" for what, why in self.missing.items())

    def read(self) -> dict[str, float]:
        """Joules by meter at this moment. Raises OSError if a meter can no longer be read."""
        return {meter.name: meter.read() for meter in self.meters}


def open_meters(
    cuda: CudaDevices | None = None,
    root: Path = Path("/"),
    load: Callable[[str], ModuleType] = importlib.import_module,
) -> Meters:
    """Meters of all processors and, if `cuda` is given, of its GPUs; `load` imports a module by its name."""
    readable, why = _processors(root)
    missing = {"processors": why} if why else {}
    gpus: tuple[NvmlGpu, ...] = ()
    if cuda is not None:
        gpus, why = open_gpus(cuda, load)
        meters, refused = _gpu_meters(gpus)
        readable, missing = readable + meters, missing | ({"GPUs": why or refused} if why or refused else {})
    return Meters(meters=readable, missing=missing, gpus=gpus)


def energy_between(
    meters: Sequence[Meter], before: Mapping[str, float], after: Mapping[str, float], seconds: float
) -> Energy | str:
    """Joules by meter between two readings `seconds` apart, or why they are unknown; "" without meters.

    A meter may wrap around once. If one may have wrapped more often (assuming 2 kW), or decreased without a known
    range, the energy is unknown, because the other meters cover fewer chips. If that meter is not part of the sum, it
    is left out.
    """
    joules = {meter.name: _count_joules(meter, before[meter.name], after[meter.name], seconds) for meter in meters}
    known = {name: counted for name, counted in joules.items() if not isinstance(counted, str)}
    doubtful = [name for name in added_up(joules) if name not in known]
    if known and not doubtful:
        return Energy(joules=known, seconds=seconds)
    return "; ".join(f"{name} {joules[name]}" for name in doubtful)


def joules_between(before: float, after: float, range_j: float | None) -> float | None:
    """The increase of a counter that wraps around past `range_j`, at most once in between.

    None if it decreased and has no range.
    """
    if after >= before:
        return after - before
    return None if range_j is None else after - before + range_j


def _count_joules(meter: Meter, before: float, after: float, seconds: float) -> float | str:
    """Joules, or why they are unknown."""
    if meter.range_j is not None and seconds * _MOST_W >= meter.range_j:
        return _TOO_LONG
    joules = joules_between(before, after, meter.range_j)
    return _DECREASED if joules is None else joules


def _processors(root: Path) -> tuple[tuple[Meter, ...], str]:
    zones = sorted((root / _ZONES).glob(_PATTERN))
    if not zones:
        return (), f"no RAPL in /{_ZONES}, as in most virtual machines"
    meters = tuple(_zone_meters(zones))
    if meters:
        return meters, ""
    return (), f"RAPL may not be read (sudo chmod a+r /{_ZONES}/{_PATTERN}/energy_uj)"


def _zone_meters(zones: Sequence[Path]) -> Iterator[Meter]:
    for zone in zones:
        name, range_uj = _zone_name(zone), read_int(zone / "max_energy_range_uj")
        if name and read_int(zone / "energy_uj") is not None:
            yield Meter(
                name=name,
                read=partial(_joules, zone / "energy_uj"),
                range_j=None if range_uj is None else range_uj / 1e6,
            )


def _zone_name(zone: Path) -> str:
    """`package-0`, `dram-0`, `psys`; empty for zones that others include.

    Zone intel-rapl:1 is a package or the platform, intel-rapl:1:0 a part of it.
    """
    name = read_text(zone / "name") or ""
    package = read_text(zone.with_name(zone.name.rpartition(":")[0]) / "name") or ""
    if zone.name.count(":") > 1:
        return f"{_MEMORY}-{package.removeprefix('package-')}" if name == _MEMORY and package != WHOLE_PLATFORM else ""
    return name if name.startswith("package") or name == WHOLE_PLATFORM else ""


def _joules(path: Path) -> float:
    return int(path.read_text()) / 1e6


def _gpu_meters(gpus: Sequence[NvmlGpu]) -> tuple[tuple[Meter, ...], str]:
    """The meters of all GPUs, or none and the reason: some alone would cover fewer chips."""
    try:
        for gpu in gpus:
            gpu.joules()
    except OSError as error:
        return (), str(error)
    return tuple(Meter(name=gpu.name, read=gpu.joules) for gpu in gpus), ""
