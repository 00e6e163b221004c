"""GPU counters from NVIDIA's management library: joules, clocks and link traffic; or why they are unavailable.

The driver counts and samples by itself: nothing runs here during timed steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from types import ModuleType
from typing import Any

from ktbench.host.cuda import CudaDevices
from ktbench.resources import install_command

_MHZ, _NS = 1e6, 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """Counts of a GPU since some moment; None if its driver does not keep them.

    `sampled_at` is the time of the last sample of the clock, in the driver's microseconds; `clock_hz` the SM clock now.
    `held_back_s` are seconds in which clocks were lowered for power or heat. Bytes are those over the PCI Express link.
    """

    sampled_at: int | None
    clock_hz: float | None
    held_back_s: float | None
    to_device_bytes: int | None
    to_host_bytes: int | None


class NvmlGpu:
    """One GPU, `gpu-0`. Values unknown to its driver are None or raise OSError; see the methods."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self.name, self._nvml, self._handle = f"gpu-{index}", nvml, handle

    def joules(self) -> float:
        """Raises OSError."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3  # it counts millijoules
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from None

    def read(self) -> GpuReading:
        """All counts at this moment."""
        nvml = self._nvml
        sent, received, power, heat = self._fields(
            nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
            nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
            nvml.NVML_FI_DEV_PERF_POLICY_POWER,
            nvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
        )
        clock_mhz = self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        samples = self._samples(0)
        return GpuReading(
            sampled_at=samples[-1][0] if samples else None,
            clock_hz=None if clock_mhz is None else _MHZ * clock_mhz,
            held_back_s=None if power is None or heat is None else _NS * (power + heat),
            to_device_bytes=received,
            to_host_bytes=sent,
        )

    def mean_clock_hz(self, before: GpuReading, after: GpuReading) -> float | None:
        """Mean SM clock between two readings: of the driver's samples, else of the two readings."""
        samples = [] if before.sampled_at is None else self._samples(before.sampled_at)
        clocks = [_MHZ * mhz for _, mhz in samples]
        clocks = clocks or [reading.clock_hz for reading in (before, after) if reading.clock_hz is not None]
        return mean(clocks) if clocks else None

    def _ask(self, function: str, *arguments: Any) -> Any:
        """None if the driver cannot say."""
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def _samples(self, since: int) -> list[tuple[int, int]]:
        """Time in microseconds and SM clock in MHz of the driver's samples after `since`."""
        samples = self._ask("nvmlDeviceGetSamples", self._nvml.NVML_PROCESSOR_CLK_SAMPLES, since)
        return [] if samples is None else [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples[1]]

    def _fields(self, *numbers: int) -> Iterator[int | None]:
        """64-bit counts; narrower ones could wrap around between readings."""
        values = self._ask("nvmlDeviceGetFieldValues", [*numbers])
        for value in values or [None] * len(numbers):
            known = value is not None and value.nvmlReturn == self._nvml.NVML_SUCCESS
            wide = known and value.valueType == self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            yield int(value.value.ullVal) if wide else None


def open_gpus(
    cuda: CudaDevices, load: Callable[[str], ModuleType] = importlib.import_module
) -> tuple[tuple[NvmlGpu, ...], str]:
    """The GPUs of `cuda`, or none and the reason; `load` imports a module by name."""
    if cuda.reason:
        return (), cuda.reason
    try:
        nvml: Any = load("pynvml")
    except ImportError:
        return (), f"nvidia-ml-py is not installed ({install_command('energy')})"
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByPciBusId(gpu.bus_id.encode()) for gpu in cuda.gpus]
    except nvml.NVMLError as error:
        return (), f"NVML: {error}"
    return tuple(NvmlGpu(nvml, index, handle) for index, handle in enumerate(handles)), ""


def read_gpus(gpus: Sequence[NvmlGpu]) -> dict[str, GpuReading]:
    """A reading of each GPU by its name."""
    return {gpu.name: gpu.read() for gpu in gpus}


def slowest_clock_hz(
    gpus: Sequence[NvmlGpu], before: Mapping[str, GpuReading], after: Mapping[str, GpuReading]
) -> float | None:
    """Mean SM clock between two readings, of the GPU with the lowest; None if no driver reports it."""
    clocks = (gpu.mean_clock_hz(before[gpu.name], after[gpu.name]) for gpu in gpus)
    return min((clock for clock in clocks if clock is not None), default=None)


def held_back_s(before: Mapping[str, GpuReading], after: Mapping[str, GpuReading]) -> float | None:
    """Seconds between two readings in which a GPU's clocks were lowered, for the most affected one; None: unknown."""
    pairs = [(before[name].held_back_s, after[name].held_back_s) for name in before]
    return max((now - then for then, now in pairs if then is not None and now is not None), default=None)


def link_bytes(before: Mapping[str, GpuReading], after: Mapping[str, GpuReading]) -> dict[str, int]:
    """Bytes over the link by direction, such as `to gpu-0`, if the driver counts them."""
    nbytes: dict[str, int] = {}
    for name, then in before.items():
        now = after[name]
        for direction, first, last in (
            ("to", then.to_device_bytes, now.to_device_bytes),
            ("from", then.to_host_bytes, now.to_host_bytes),
        ):
            if first is not None and last is not None and last >= first:
                nbytes[f"{direction} {name}"] = last - first
    return nbytes
