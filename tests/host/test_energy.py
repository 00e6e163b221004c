"""Meters of processors and GPUs: which count, when they begin again, and why there are none."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.host.cuda import CudaDevices, Gpu
from ktbench.host.energy import Meter, energy_between, joules_between, open_meters
from ktbench.resources import install_command
from ktbench.spec.system_metrics import Energy
from tests.host.conftest import Grow

RAPL = "sys/class/powercap"
TWO = CudaDevices(gpus=tuple(Gpu(name="GPU", memory_bytes=1, bus_id=f"0000:{n}B:00.0") for n in (3, 4)))
GPU_J = {b"0000:3B:00.0": 5.0, b"0000:4B:00.0": 7.0}


def zones(**names: str) -> dict[str, str]:
    found = {}
    for number, (zone, name) in enumerate(names.items()):
        folder = f"{RAPL}/intel-rapl:{zone[1:].replace('_', ':')}"
        found |= {f"{folder}/name": name, f"{folder}/energy_uj": str(1_000_000 * (number + 1))}
        found |= {f"{folder}/max_energy_range_uj": "262143328850"}
    return found


class NvmlError(Exception):
    pass


def nvml(failing: bool = False) -> ModuleType:
    """Stands for pynvml: counts millijoules, or refuses."""

    def total(handle: bytes) -> int:
        if failing:
            raise NvmlError("Not Supported")
        return int(1e3 * GPU_J[handle])

    found: Any = SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus_id: bus_id,
        nvmlDeviceGetTotalEnergyConsumption=total,
    )
    return found


def test_packages_and_their_memory_count_and_their_parts_do_not(grow: Grow) -> None:
    root = grow(zones(_0="package-0", _0_0="core", _0_1="dram", _1="package-1", _1_0="dram", _2="psys"))
    grow({f"{RAPL}/intel-rapl-mmio:0/name": "package-0", f"{RAPL}/intel-rapl-mmio:0/energy_uj": "5"})
    meters = open_meters(root=root)
    assert meters.read() == {"package-0": 1.0, "dram-0": 3.0, "package-1": 4.0, "dram-1": 5.0, "psys": 6.0}
    assert (meters.missing, meters.reason) == ({}, "")
    assert {meter.range_j for meter in meters.meters} == {262143.32885}


def test_without_rapl_there_is_a_reason(tmp_path: Path) -> None:
    meters = open_meters(root=tmp_path)
    assert (meters.meters, meters.read()) == ((), {})
    assert meters.reason == "processors: no RAPL in /sys/class/powercap, as in most virtual machines"


def test_rapl_that_may_not_be_read_says_how_to_allow_it(grow: Grow) -> None:
    """A folder in place of the file: refused to root as well."""
    root = grow({f"{RAPL}/intel-rapl:0/name": "package-0"})
    (root / RAPL / "intel-rapl:0/energy_uj").mkdir()
    assert "RAPL may not be read (sudo chmod a+r" in open_meters(root=root).reason


def test_gpus_are_those_that_cuda_shows(tmp_path: Path) -> None:
    meters = open_meters(TWO, tmp_path, lambda name: nvml())
    assert meters.read() == {"gpu-0": 5.0, "gpu-1": 7.0}
    assert list(meters.missing) == ["processors"]


def test_why_gpus_have_no_meter(tmp_path: Path) -> None:
    def absent(name: str) -> ModuleType:
        raise ImportError(name)

    none = CudaDevices(gpus=(), reason="no CUDA device: libcuda is not installed")
    assert open_meters(none, tmp_path, absent).missing["GPUs"] == none.reason
    assert install_command("energy") in open_meters(TWO, tmp_path, absent).missing["GPUs"]
    assert open_meters(TWO, tmp_path, lambda name: nvml(failing=True)).missing["GPUs"] == "NVML: Not Supported"
    assert "GPUs" not in open_meters(None, tmp_path, absent).missing


@settings(max_examples=50, deadline=None)
@given(start=st.integers(0, 10**12), counted=st.integers(0, 10**12), size=st.integers(1, 10**12))
def test_a_counter_that_began_again_once_loses_nothing(start: int, counted: int, size: int) -> None:
    before, counted = start % size, counted % size
    assert joules_between(before, (before + counted) % size, size) == counted


def meter(range_j: float | None, name: str = "package-0") -> Meter:
    return Meter(name=name, read=lambda: 0.0, range_j=range_j)


@pytest.mark.parametrize(("range_j", "seconds", "known"), [(1e5, 49.0, True), (1e5, 51.0, False), (None, 1e6, True)])
def test_a_meter_that_may_have_begun_again_often_tells_nothing(
    range_j: float | None, seconds: float, known: bool
) -> None:
    found = energy_between([meter(range_j)], {"package-0": 1.0}, {"package-0": 3.0}, seconds)
    assert isinstance(found, Energy) is known
    assert isinstance(found, str) or found.joules == {"package-0": 2.0}


@pytest.mark.parametrize(("range_j", "name"), [(65_532.0, "package-0"), (65_712.0, "dram-0")])
def test_meters_beside_one_that_may_have_begun_again_often_are_no_energy(range_j: float, name: str) -> None:
    """The joules of a GPU alone are not what a turn took: 40 s at 2 kW are more than these counters hold."""
    meters = [meter(range_j, name), meter(None, "gpu-0")]
    found = energy_between(meters, {name: 1.0, "gpu-0": 0.0}, {name: 4.0, "gpu-0": 2000.0}, 40.0)
    assert isinstance(found, str)
    assert found.startswith(f"{name} may have wrapped around more than once") and "gpu-0" not in found


def test_a_doubtful_meter_that_is_not_added_up_costs_no_energy() -> None:
    """A platform is mostly counted in few bits; the packages are known all the same."""
    platform, package = meter(65_532.0, "psys"), meter(262_143.0, "package-0")
    before, after = {"psys": 1.0, "package-0": 1.0}, {"psys": 9.0, "package-0": 5.0}
    assert energy_between([package, platform], before, after, 40.0) == Energy(joules={"package-0": 4.0}, seconds=40.0)
    alone = energy_between([platform], before, after, 40.0)
    assert isinstance(alone, str)
    assert alone.startswith("psys may have wrapped around more than once")


def test_a_counter_without_a_range_that_falls_back_tells_nothing() -> None:
    assert joules_between(100.0, 5.0, None) is None
    meters = [meter(1e6), meter(None, "gpu-0")]
    found = energy_between(meters, {"package-0": 1.0, "gpu-0": 100.0}, {"package-0": 3.0, "gpu-0": 5.0}, 1.0)
    assert isinstance(found, str)
    assert found.startswith("gpu-0 decreased")


def test_no_meters_no_energy() -> None:
    assert energy_between([], {}, {}, 1.0) == ""


@pytest.mark.skipif(not os.access("/sys/class/powercap/intel-rapl:0/energy_uj", os.R_OK), reason="RAPL is not readable")
def test_this_machines_meters_count_on() -> None:
    meters = open_meters()
    found = energy_between(meters.meters, meters.read(), meters.read(), 0.1)
    assert isinstance(found, Energy)
    assert min(found.joules.values()) >= 0
