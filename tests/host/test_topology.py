"""Topologies of machines made of files, and of this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ktbench.host.sysfs import parse_cpu_list, parse_size
from ktbench.host.topology import read_topology

EIGHT = range(8)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", ()), ("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("5,1-2\n", (1, 2, 5)), ("0-1,1-2", (0, 1, 2))],
)
def test_cpu_lists(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == numbers


@pytest.mark.parametrize(("text", "size"), [("48K", 49152), ("32M", 2**25), ("2G", 2**31), ("512", 512)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_two_sockets_with_smt_and_an_offline_cpu(two_sockets: Path) -> None:
    topology = read_topology(two_sockets, EIGHT)
    assert topology.cpus == (0, 1, 2, 3, 4, 5, 6)
    assert [core.cpus for core in topology.cores] == [(0, 4), (1, 5), (2, 6), (3,)]
    assert [core.package for core in topology.cores] == [0, 0, 1, 1]
    assert topology.smt
    assert topology.core_cpus == (0, 1, 2, 3)
    assert [node.cpus for node in topology.nodes] == [(0, 1, 4, 5), (2, 3, 6)]
    assert [node.memory_bytes for node in topology.nodes] == [2**20, 2**21]
    assert topology.node_core_cpus(1) == (2, 3)
    assert [topology.node_core_cpus(node.id) for node in topology.domains] == [(0, 1), (2, 3)]
    assert topology.last_level_cache_bytes == 2 * 2**25
    assert len([cache for cache in topology.caches if cache.level == 1]) == 4


def test_an_affinity_mask_hides_siblings_and_nodes(two_sockets: Path) -> None:
    topology = read_topology(two_sockets, {4, 5})
    assert topology.core_cpus == (4, 5)
    assert not topology.smt
    assert len(topology.nodes) == 2
    assert [node.id for node in topology.domains] == [0]
    assert [topology.node_core_cpus(node.id) for node in topology.domains] == [(4, 5)]
    assert topology.last_level_cache_bytes == 2**25


def test_a_kernel_that_shows_nothing_gives_one_node_of_plain_cores(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, {0, 2})
    assert topology.core_cpus == (0, 2)
    assert [node.cpus for node in topology.nodes] == [(0, 2)]
    assert topology.nodes[0].memory_bytes is None
    assert topology.last_level_cache_bytes is None


def test_no_usable_cpu_is_refused(two_sockets: Path) -> None:
    with pytest.raises(ValueError, match=r"no usable cpu: allowed \[7\], online 0-6"):
        read_topology(two_sockets, {7})


def test_this_machine_is_read_within_its_affinity_mask() -> None:
    topology = read_topology()
    assert set(topology.cpus) == os.sched_getaffinity(0)
    assert sorted(cpu for core in topology.cores for cpu in core.cpus) == list(topology.cpus)
    assert sorted(cpu for node in topology.nodes for cpu in node.cpus) == list(topology.cpus)
