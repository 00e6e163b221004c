"""Binding memory to a node, on the kernel at hand."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ktbench.host.probe import memory_on_node


def policies() -> set[str]:
    """Policies that the kernel names for this process's mappings (proc_pid_numa_maps(5))."""
    path = Path("/proc/self/numa_maps")
    if not path.exists():
        pytest.skip("this kernel shows no NUMA policies")
    return {line.split()[1] for line in path.read_text().splitlines()}


def test_memory_is_bound_inside_and_free_outside() -> None:
    try:
        with memory_on_node(0):
            inside = policies()
    except PermissionError:
        pytest.skip("this container does not let us bind memory")
    assert "bind:0" in inside
    assert "bind:0" not in policies()


def test_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(OSError, match="set_mempolicy: ") as caught, memory_on_node(900):
        pass
    assert caught.value.errno in (errno.EINVAL, errno.EPERM, errno.ENOSYS)
