"""Who watches a turn sees what happened between its steps, and says what it could not see."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.host.energy import Meter, Meters, open_meters
from ktbench.host.watch import MachineWatch, MemoryPeaks, node_bytes
from ktbench.spec.system_metrics import SystemMetrics
from ktbench.spec.wire import from_plain, to_plain
from tests.host.conftest import Grow

STATUS = "Name: x\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB"
MAPS = (
    "55ca default file=/x mapped=2 N0=2 kernelpagesize_kB=4\n"
    "7f00 bind:1 anon=3 N0=1 N1=3 kernelpagesize_kB=2048\n7f01 default"
)
MIB = 2**20


def test_what_is_seen_of_a_turn_here_survives_the_log() -> None:
    watch = MachineWatch((0,), open_meters())
    watch.begin_trial()
    with watch.steps():
        kept = bytearray(2**24)
    conduct = watch.metrics()
    assert conduct is not None
    assert len(kept) == 2**24
    assert conduct.disturbance.seconds > 0
    assert conduct.memory is not None and conduct.memory.process_bytes > 2**24
    assert (conduct.energy is None) <= bool(conduct.missing.get("energy"))
    assert from_plain(to_plain(conduct), SystemMetrics) == conduct


def test_no_steps_nothing_seen() -> None:
    watch = MachineWatch((0,), open_meters())
    watch.begin_trial()
    assert watch.metrics() is None


def metered(*readings: float | OSError, range_j: float | None = None) -> Meters:
    left = iter(readings)

    def read() -> float:
        one = next(left)
        if isinstance(one, OSError):
            raise one
        return one

    return Meters(meters=(Meter(name="package-0", read=read, range_j=range_j),), missing={"GPUs": "none here"})


def beside_a_gpu(meters: Meters) -> Meters:
    """With a meter that counts on, whatever becomes of the others."""
    return Meters(meters=(*meters.meters, Meter(name="gpu-0", read=count().__next__)), missing={})


def watched(meters: Meters, root: Path) -> SystemMetrics:
    watch = MachineWatch((0,), meters, root)
    watch.begin_trial()
    with watch.steps():
        pass
    conduct = watch.metrics()
    assert conduct is not None
    return conduct


def test_energy_is_what_the_meters_moved(tmp_path: Path) -> None:
    conduct = watched(metered(10.0, 12.5), tmp_path)
    assert conduct.energy is not None and conduct.energy.joules == {"package-0": 2.5}
    assert conduct.missing["energy"] == "GPUs: none here"


@pytest.mark.parametrize(
    ("meters", "why"),
    [
        (metered(1.0, OSError("NVML says lost")), "NVML says lost"),
        (metered(1.0, 2.0, range_j=1e-9), "package-0 may have wrapped around more than once"),
        (beside_a_gpu(metered(1.0, 2.0, range_j=1e-9)), "package-0 may have wrapped around more than once"),
        (beside_a_gpu(metered(2.0, 1.0)), "package-0 decreased"),
    ],
)
def test_energy_that_is_lost_has_a_reason(meters: Meters, why: str, tmp_path: Path) -> None:
    conduct = watched(meters, tmp_path)
    assert conduct.energy is None
    assert why in conduct.missing["energy"]


def test_a_kernel_without_status_and_numa_maps_is_two_reasons(tmp_path: Path) -> None:
    conduct = watched(Meters(meters=(), missing={}), tmp_path)
    assert conduct.memory is None
    assert "VmHWM" in conduct.missing["memory"]
    assert "numa_maps" in conduct.missing["nodes"]


def test_bytes_by_node_and_the_reset_of_the_peak(grow: Grow) -> None:
    root = grow({"proc/self/status": STATUS, "proc/self/numa_maps": MAPS, "proc/self/clear_refs": ""})
    peaks = MemoryPeaks(root)
    peaks.reset()
    assert (root / "proc/self/clear_refs").read_text() == "5"
    peak = peaks.read()
    assert peak is not None
    assert (peak.process_bytes, peak.of_turn) == (2 * MIB, True)
    assert peak.node_bytes == {"node 0": 2 * MIB + 8192, "node 1": 6 * MIB}


def test_the_most_of_each_node_is_kept_and_pages_are_walked_where_much_has_changed(grow: Grow) -> None:
    root = grow({"proc/self/status": STATUS, "proc/self/numa_maps": MAPS})
    peaks = MemoryPeaks(root)
    peaks.read()
    grow({"proc/self/numa_maps": MAPS.replace("N1=3", "N1=9")})
    same = peaks.read()
    assert same is not None and same.node_bytes["node 1"] == 6 * MIB
    grow({"proc/self/status": STATUS.replace("1024", "4096"), "proc/self/numa_maps": MAPS.replace("N0=1 ", "")})
    more = peaks.read()
    assert more is not None and more.node_bytes == {"node 0": 2 * MIB + 8192, "node 1": 6 * MIB}


def test_where_the_peak_cannot_be_reset_it_is_that_of_the_process(grow: Grow) -> None:
    root = grow({"proc/self/status": STATUS})
    (root / "proc/self/clear_refs").mkdir()
    peaks = MemoryPeaks(root)
    peaks.reset()
    peak = peaks.read()
    assert peak is not None and not peak.of_turn


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6), st.sampled_from([4, 2048]))))
def test_pages_of_all_mappings_are_summed(mappings: list[tuple[int, int, int]]) -> None:
    text = "\n".join(f"7f default anon={n} N{node}={n} kernelpagesize_kB={size}" for node, n, size in mappings)
    assert sum(node_bytes(text).values()) == sum(1024 * n * size for _, n, size in mappings)
