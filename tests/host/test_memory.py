"""Memory and processor limits: the machine's and those of control groups, both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ktbench.host.memory import Memory, read_cpu_quota, read_memory
from tests.host.conftest import Grow

MIB = 2**20
MACHINE = {"proc/meminfo": "MemTotal:  1048576 kB\nMemFree:  1 kB\nMemAvailable:  524288 kB"}
V2 = {"proc/self/cgroup": "0::/user/job", "sys/fs/cgroup/cgroup.controllers": "memory"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/job\n0::/"}
JOB = "sys/fs/cgroup/user/job"
UNLIMITED = "9223372036854771712"


def test_without_groups_the_machine_counts(grow: Grow) -> None:
    assert read_memory(grow(MACHINE)) == Memory(total_bytes=1024 * MIB, available_bytes=512 * MIB, limit="machine")


def test_a_group_limits_total_and_free_and_its_file_cache_can_go(grow: Grow) -> None:
    group = {
        f"{JOB}/memory.max": str(256 * MIB),
        f"{JOB}/memory.current": str(100 * MIB),
        f"{JOB}/memory.stat": f"anon 5\ninactive_file {20 * MIB}",
    }
    assert read_memory(grow(MACHINE | V2 | group)) == Memory(
        total_bytes=256 * MIB, available_bytes=176 * MIB, limit="cgroup"
    )


def test_the_tightest_group_above_us_counts(grow: Grow) -> None:
    group = {
        f"{JOB}/memory.max": "max",
        "sys/fs/cgroup/user/memory.max": str(128 * MIB),
        "sys/fs/cgroup/user/memory.current": str(200 * MIB),
    }
    assert read_memory(grow(MACHINE | V2 | group)) == Memory(total_bytes=128 * MIB, available_bytes=0, limit="cgroup")


def test_a_container_sees_only_the_top_of_its_groups(grow: Grow) -> None:
    group = {"sys/fs/cgroup/memory.max": str(64 * MIB), "sys/fs/cgroup/memory.current": str(MIB)}
    assert read_memory(grow(MACHINE | V2 | group)).available_bytes == 63 * MIB


def test_groups_of_version_1(grow: Grow) -> None:
    group = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(512 * MIB),
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(500 * MIB),
        "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {10 * MIB}",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    }
    root = grow(MACHINE | V1 | group)
    assert read_memory(root) == Memory(total_bytes=512 * MIB, available_bytes=22 * MIB, limit="cgroup")
    assert read_cpu_quota(root) == 1.5


@pytest.mark.parametrize(("content", "quota"), [("max 100000", None), ("250000 100000", 2.5)])
def test_processor_quota_of_version_2(grow: Grow, content: str, quota: float | None) -> None:
    assert read_cpu_quota(grow(V2 | {f"{JOB}/cpu.max": content})) == quota


def test_version_1_without_a_quota(grow: Grow) -> None:
    root = grow(V1 | {"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1"})
    assert read_cpu_quota(root) is None


def test_a_kernel_that_does_not_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"proc/meminfo: no MemTotal and MemAvailable"):
        read_memory(tmp_path)


def test_this_machine_has_no_more_than_the_kernel_says() -> None:
    memory = read_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
