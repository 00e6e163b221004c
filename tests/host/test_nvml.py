"""What GPUs count between two readings, and what is said where a driver does not count it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ktbench.host.cuda import CudaDevices, Gpu
from ktbench.host.energy import open_meters
from ktbench.host.nvml import held_back_s, link_bytes, open_gpus, read_gpus, slowest_clock_hz
from ktbench.host.watch import MachineWatch
from ktbench.spec.system_metrics import SystemMetrics
from ktbench.spec.wire import from_plain, to_plain

_SENT, _RECEIVED, _POWER, _HEAT = 197, 198, 74, 75
_WIDE, _NARROW = 3, 1
_UNKNOWN = 3
ONE = CudaDevices(gpus=(Gpu(name="GPU", memory_bytes=1, bus_id="0000:3B:00.0"),))


class NvmlError(Exception):
    """The driver does not support it."""


@dataclass
class Driver:
    """A GPU as its driver sees it: samples are (microseconds, MHz), `fields` counts of a width in bits."""

    clock_mhz: int | None = 1980
    samples: list[tuple[int, int]] = field(default_factory=lambda: [(10, 1000)])
    fields: dict[int, int] = field(default_factory=lambda: {_SENT: 5, _RECEIVED: 7, _POWER: 10**9, _HEAT: 0})
    width: int = _WIDE

    def clock(self, handle: object, kind: int) -> int:
        if self.clock_mhz is None:
            raise NvmlError
        return self.clock_mhz

    def sampled(self, handle: object, kind: int, since: int) -> tuple[int, list[Any]]:
        later = [(at, mhz) for at, mhz in self.samples if at > since]
        if not later:
            raise NvmlError
        return 1, [SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=mhz)) for at, mhz in later]

    def values(self, handle: object, numbers: list[int]) -> list[Any]:
        return [
            SimpleNamespace(
                nvmlReturn=0 if number in self.fields else _UNKNOWN,
                valueType=self.width,
                value=SimpleNamespace(ullVal=self.fields.get(number, 0)),
            )
            for number in numbers
        ]

    def module(self) -> ModuleType:
        """Stands for pynvml."""
        found: Any = SimpleNamespace(
            NVMLError=NvmlError,
            NVML_SUCCESS=0,
            NVML_CLOCK_SM=1,
            NVML_PROCESSOR_CLK_SAMPLES=5,
            NVML_VALUE_TYPE_UNSIGNED_LONG_LONG=_WIDE,
            NVML_FI_DEV_PCIE_COUNT_TX_BYTES=_SENT,
            NVML_FI_DEV_PCIE_COUNT_RX_BYTES=_RECEIVED,
            NVML_FI_DEV_PERF_POLICY_POWER=_POWER,
            NVML_FI_DEV_PERF_POLICY_THERMAL=_HEAT,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByPciBusId=lambda bus_id: bus_id,
            nvmlDeviceGetTotalEnergyConsumption=lambda handle: 1000,
            nvmlDeviceGetClockInfo=self.clock,
            nvmlDeviceGetSamples=self.sampled,
            nvmlDeviceGetFieldValues=self.values,
        )
        return found


def steps(driver: Driver) -> None:
    """Samples at 1.9 and 1.5 GHz, 0.25 s of lowered clocks, 100 bytes to the device, 30 back."""
    driver.samples += [(20, 1900), (30, 1500)]
    driver.clock_mhz = driver.clock_mhz and 1400
    for number, more in ((_SENT, 30), (_RECEIVED, 100), (_POWER, 2 * 10**8), (_HEAT, 5 * 10**7)):
        if number in driver.fields:
            driver.fields[number] += more


def seen(driver: Driver) -> tuple[float | None, float | None, dict[str, int]]:
    gpus, why = open_gpus(ONE, lambda name: driver.module())
    assert why == ""
    before = read_gpus(gpus)
    steps(driver)
    after = read_gpus(gpus)
    return slowest_clock_hz(gpus, before, after), held_back_s(before, after), link_bytes(before, after)


def test_samples_of_the_driver_are_averaged_and_counts_subtracted() -> None:
    clock_hz, held_back, traffic = seen(Driver())
    assert clock_hz == 1.7e9
    assert held_back == pytest.approx(0.25)
    assert traffic == {"to gpu-0": 100, "from gpu-0": 30}


def test_without_samples_the_clock_is_that_of_both_ends() -> None:
    class NoSamples(Driver):
        def sampled(self, handle: object, kind: int, since: int) -> tuple[int, list[Any]]:
            raise NvmlError

    assert seen(NoSamples())[0] == pytest.approx((1.98e9 + 1.4e9) / 2)


def test_what_a_driver_does_not_count_is_unknown() -> None:
    assert seen(Driver(fields={}))[1:] == (None, {})
    assert seen(Driver(fields={_SENT: 1}))[1:] == (None, {"from gpu-0": 30})
    assert seen(Driver(clock_mhz=None, samples=[]))[0] is None


def test_counts_that_wrap_around_unseen_are_not_used() -> None:
    assert seen(Driver(width=_NARROW))[1:] == (None, {})


def test_the_slowest_gpu_counts() -> None:
    two = replace(ONE, gpus=(*ONE.gpus, Gpu(name="GPU", memory_bytes=1, bus_id="0000:4B:00.0")))

    class Slower(Driver):
        def clock(self, handle: object, kind: int) -> int:
            return 1200 if handle == b"0000:4B:00.0" else 1980

        def sampled(self, handle: object, kind: int, since: int) -> tuple[int, list[Any]]:
            raise NvmlError

    gpus, _ = open_gpus(two, lambda name: Slower().module())
    reading = read_gpus(gpus)
    assert [gpu.name for gpu in gpus] == ["gpu-0", "gpu-1"]
    assert slowest_clock_hz(gpus, reading, reading) == 1.2e9


def test_a_trial_keeps_what_its_gpu_did() -> None:
    driver = Driver()
    watch = MachineWatch((0,), open_meters(ONE, load=lambda name: driver.module()))
    watch.begin_trial()
    with watch.steps():
        steps(driver)
    metrics = watch.metrics()
    assert metrics is not None
    assert metrics.disturbance.gpu_clock_hz == 1.7e9
    assert metrics.disturbance.gpu_held_back_s == pytest.approx(0.25)
    assert metrics.link_bytes == {"to gpu-0": 100, "from gpu-0": 30}
    assert from_plain(to_plain(metrics), SystemMetrics) == metrics
