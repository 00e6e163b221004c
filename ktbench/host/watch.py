"""Watches the machine during a trial: interference, energy and memory of the timed steps."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ktbench.host.energy import Meters, energy_between
from ktbench.host.noise import disturbance, read_clock_hz, read_counters
from ktbench.host.nvml import held_back_s, link_bytes, read_gpus, slowest_clock_hz
from ktbench.host.sysfs import read_text
from ktbench.spec.system_metrics import Energy, InterferenceCounters, PeakMemory, SystemMetrics

_STATUS, _NUMA_MAPS, _CLEAR = (Path("proc/self") / name for name in ("status", "numa_maps", "clear_refs"))
# proc_pid_clear_refs(5): sets the peak of the resident set to what is resident now.
_RESET = "5"
_FIELD = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB$", re.MULTILINE)
_ON_NODE = re.compile(r" N(\d+)=(\d+)")
_PAGE_KIB = re.compile(r" kernelpagesize_kB=(\d+)")
# Reading numa_maps is slow for many pages: it is repeated only after the resident bytes changed by this share.
_WALK_AGAIN = 0.01


class MemoryPeaks:
    """Memory peaks of this process since the last `reset`; NUMA nodes are sampled at each `read`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._of_trial = root, False
        self._walked_at_bytes = 0
        self._nodes: dict[str, int] = {}
        self.missing = "" if os.access(root / _NUMA_MAPS, os.R_OK) else f"no /{_NUMA_MAPS}, as in kernels without NUMA"

    def reset(self) -> None:
        """Start new peaks."""
        try:
            (self._root / _CLEAR).write_text(_RESET)
            self._of_trial = True
        except OSError:
            self._of_trial = False
        if cuda := _cuda():
            for index in range(cuda.device_count()):
                cuda.reset_peak_memory_stats(index)

    def read(self) -> PeakMemory | None:
        """The peaks; None if the kernel does not report them."""
        held = {name: 1024 * int(kib) for name, kib in _FIELD.findall(read_text(self._root / _STATUS) or "")}
        if len(held) < 2:
            return None
        self._walk(held["VmRSS"])
        return PeakMemory(
            process_bytes=held["VmHWM"],
            of_turn=self._of_trial,
            node_bytes=dict(self._nodes),
            device_bytes=_device_bytes(),
        )

    def _walk(self, resident_bytes: int) -> None:
        if self.missing or abs(resident_bytes - self._walked_at_bytes) <= _WALK_AGAIN * self._walked_at_bytes:
            return
        self._walked_at_bytes = resident_bytes
        nodes = node_bytes(read_text(self._root / _NUMA_MAPS) or "")
        self._nodes = {
            name: max(nodes.get(name, 0), self._nodes.get(name, 0)) for name in sorted({*nodes, *self._nodes})
        }


def node_bytes(numa_maps: str) -> dict[str, int]:
    """Bytes by NUMA node (`node 0`), summed over the lines of /proc/PID/numa_maps."""
    nbytes: dict[str, int] = {}
    for line in numa_maps.splitlines():
        if size := _PAGE_KIB.search(line):
            page_bytes = int(size.group(1)) * 1024
            for node, pages in _ON_NODE.findall(line):
                nbytes[f"node {node}"] = nbytes.get(f"node {node}", 0) + int(pages) * page_bytes
    return nbytes


def _device_bytes() -> dict[str, int]:
    cuda = _cuda()
    if cuda is None:
        return {}
    peaks = {f"cuda:{index}": int(cuda.max_memory_allocated(index)) for index in range(cuda.device_count())}
    return {name: nbytes for name, nbytes in peaks.items() if nbytes}


def _cuda() -> Any:
    """PyTorch's `cuda` if it is loaded and in use: it is never loaded for this."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


class MachineWatch:
    """Watches `cpus` and this process. Nothing is read between entering and leaving `steps`."""

    def __init__(self, cpus: Sequence[int], meters: Meters, root: Path = Path("/")) -> None:
        self._cpus, self._meters, self._root = tuple(cpus), meters, root
        self._peaks = MemoryPeaks(root)
        self._disturbance: InterferenceCounters | None = None
        self._energy: Energy | None = None
        self._no_energy = ""
        self._link_bytes: dict[str, int] = {}

    def begin_trial(self) -> None:
        """Start the metrics of a new trial."""
        self._disturbance = None
        self._peaks.reset()

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Encloses the timed steps."""
        gpus = self._meters.gpus
        gpus_before, before = read_gpus(gpus), read_counters(self._cpus, self._root)
        joules, began_s = self._joules(), perf_counter()
        yield
        seconds, joules_then = perf_counter() - began_s, self._joules()
        clock_hz = read_clock_hz(self._cpus, self._root)
        after, gpus_after = read_counters(self._cpus, self._root), read_gpus(gpus)
        self._disturbance = replace(
            disturbance(before, after, self._cpus, clock_hz),
            gpu_clock_hz=slowest_clock_hz(gpus, gpus_before, gpus_after),
            gpu_held_back_s=held_back_s(gpus_before, gpus_after),
        )
        self._link_bytes = link_bytes(gpus_before, gpus_after)
        self._take_energy(joules, joules_then, seconds)

    def metrics(self) -> SystemMetrics | None:
        """Metrics since `begin_trial`; None before any steps."""
        if self._disturbance is None:
            return None
        memory = self._peaks.read()
        missing = {
            "energy": self._no_energy,
            "memory": "" if memory else "no VmHWM in /proc/self/status",
            "nodes": self._peaks.missing,
        }
        return SystemMetrics(
            disturbance=self._disturbance,
            energy=self._energy,
            memory=memory,
            link_bytes=self._link_bytes,
            missing={name: why for name, why in missing.items() if why},
        )

    def _joules(self) -> dict[str, float] | str:
        try:
            return self._meters.read()
        except OSError as error:
            return str(error)

    def _take_energy(self, before: dict[str, float] | str, after: dict[str, float] | str, seconds: float) -> None:
        if isinstance(before, str) or isinstance(after, str):
            energy: Energy | str = next(why for why in (before, after) if isinstance(why, str))
        else:
            energy = energy_between(self._meters.meters, before, after, seconds)
        self._energy, lost = (None, energy) if isinstance(energy, str) else (energy, "")
        self._no_energy = "; ".join(filter(None, [self._meters.reason, lost]))
