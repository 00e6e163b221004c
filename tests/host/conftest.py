"""Machines made of files: what the kernel would show under /proc and /sys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Grow = Callable[[Mapping[str, str]], Path]
CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


@pytest.fixture
def grow(tmp_path: Path) -> Grow:
    """Writes files, given by path and content, under one root and returns it."""

    def write(files: Mapping[str, str]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")
        return tmp_path

    return write


@pytest.fixture
def two_sockets(grow: Grow) -> Path:
    """Two sockets of two cores with two threads each; cpus 0-3 are first threads, 4-7 their siblings, 7 is offline."""
    files = {f"{CPU}/online": "0-6", f"{NODE}/online": "0-1"}
    for socket, cpus in enumerate(("0-1,4-5", "2-3,6")):
        files[f"{NODE}/node{socket}/cpulist"] = cpus
        files[f"{NODE}/node{socket}/meminfo"] = f"Node {socket} MemTotal:   {1024 * (socket + 1)} kB"
    for cpu in range(7):
        core, socket = cpu % 4, cpu % 4 // 2
        shared = "0-1,4-5" if socket == 0 else "2-3,6"
        files |= {
            f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{core},{core + 4}" if core != 3 else "3",
            f"{CPU}/cpu{cpu}/topology/physical_package_id": str(socket),
            f"{CPU}/cpu{cpu}/cache/index0/level": "1",
            f"{CPU}/cpu{cpu}/cache/index0/type": "Data",
            f"{CPU}/cpu{cpu}/cache/index0/size": "48K",
            f"{CPU}/cpu{cpu}/cache/index0/shared_cpu_list": f"{core},{core + 4}",
            f"{CPU}/cpu{cpu}/cache/index3/level": "3",
            f"{CPU}/cpu{cpu}/cache/index3/type": "Unified",
            f"{CPU}/cpu{cpu}/cache/index3/size": "32M",
            f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": shared,
        }
    return grow(files)
