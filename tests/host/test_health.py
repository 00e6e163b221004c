"""Facts about the health of machines that are made of files, and of this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.host.health import health_facts
from ktbench.host.memory import read_filling, read_quota_stops
from ktbench.host.topology import read_topology
from ktbench.spec.health import MACHINE_CHECKS, TRIAL_CHECKS, unknown, warnings
from tests.host.conftest import CPU, Grow

MEMINFO = {
    "proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 524288 kB\nMemAvailable: 6291456 kB\nCached: 5242880 kB\n"
    "Dirty: 1024 kB\nWriteback: 1024 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB"
}


def test_facts_of_a_machine_made_of_files(two_sockets: Path, grow: Grow) -> None:
    grow(
        MEMINFO
        | {
            "proc/loadavg": "0.5 0.4 0.3 4/200 77",
            "proc/stat": "cpu 9\ncpu0 50 0 25 915 0 0 0 10 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0",
            "proc/sys/vm/swappiness": "60",
            f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "3",
        }
    )
    facts = health_facts(read_topology(two_sockets, {0, 1}), two_sockets)
    assert (facts["cores"], facts["others_running"], facts["thermal_stops"]) == (2, 3, 3)
    assert facts["foreign_siblings"] == [4, 5]
    assert facts["stolen_share"] == pytest.approx(0.005)
    assert {warned.check.name for warned in warnings(MACHINE_CHECKS, facts)} == {
        "thermal",
        "others running",
        "shared cores",
        "page cache",
        "swap",
        "swappiness",
    }


def test_what_cannot_be_judged_says_which_file_lacks(two_sockets: Path, grow: Grow) -> None:
    grow(MEMINFO | {"sys/kernel/mm/transparent_hugepage/enabled": "nonsense", f"{CPU}/cpu0/cpufreq/other": ""})
    missing = health_facts(read_topology(two_sockets, {0}), two_sockets)["missing"]
    assert missing["governor"] == f"no /{CPU}/cpu*/cpufreq/scaling_governor"
    assert missing["turbo"] == f"no /{CPU}/intel_pstate or /{CPU}/cpufreq"
    assert missing["huge pages"] == "/sys/kernel/mm/transparent_hugepage/enabled has no such value"
    assert missing["swapping"] == "no /proc/vmstat"
    assert "core placement" not in missing


def test_every_check_of_this_machine_is_judged_or_has_a_reason() -> None:
    facts = health_facts(read_topology())
    lacking = {check.name for check in unknown(MACHINE_CHECKS, facts)} - {"core placement"}
    assert lacking <= facts["missing"].keys() <= {check.name for check in (*MACHINE_CHECKS, *TRIAL_CHECKS)}
    assert all(facts["missing"].values())


def test_what_fills_memory_is_in_bytes_and_left_out_where_unknown(grow: Grow) -> None:
    assert read_filling(grow({"proc/meminfo": "MemFree: 2 kB\nDirty: 1 kB\nSwapTotal: 5 kB"})) == {
        "free_bytes": 2048,
        "swap_total_bytes": 5120,
    }
    assert read_filling(grow(MEMINFO))["dirty_bytes"] == 2 * 2**20
    assert read_filling(grow(MEMINFO))["swap_used_bytes"] == 2**30


def test_quota_stops_of_all_groups_above_us(grow: Grow, tmp_path: Path) -> None:
    assert read_quota_stops(tmp_path) is None
    root = grow(
        {
            "proc/self/cgroup": "0::/user/job",
            "sys/fs/cgroup/user/cpu.stat": "usage_usec 9\nnr_periods 8\nnr_throttled 2",
            "sys/fs/cgroup/user/job/cpu.stat": "nr_throttled 5",
        }
    )
    assert read_quota_stops(root) == 7
