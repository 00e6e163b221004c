"""Cores, NUMA nodes and caches that this process may use, as the kernel describes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ktbench.host.sysfs import parse_cpu_list, parse_size, read_int, read_text

_CPUS = Path("sys/devices/system/cpu")
_NODES = Path("sys/devices/system/node")


@dataclass(frozen=True, kw_only=True, slots=True)
class Core:
    """A physical core: its usable logical cpus (SMT siblings) in ascending order, and its package and NUMA node."""

    cpus: tuple[int, ...]
    package: int
    node: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A NUMA node: its usable cpus (none on a memory-only node) and its bytes of memory, None if unknown."""

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """One cache instance and the usable cpus that share it. `kind` is the kernel's: Data, Instruction, Unified."""

    level: int
    kind: str
    size_bytes: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The part of the machine that this process may use. Cores, nodes and caches ascend by their first cpu or id."""

    cpus: tuple[int, ...]
    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    caches: tuple[Cache, ...]

    @property
    def smt(self) -> bool:
        """Whether two usable cpus share a core."""
        return any(len(core.cpus) > 1 for core in self.cores)

    @property
    def core_cpus(self) -> tuple[int, ...]:
        """One cpu of every core: where worker threads belong."""
        return tuple(core.cpus[0] for core in self.cores)

    @property
    def domains(self) -> tuple[Node, ...]:
        """The nodes with usable cpus."""
        return tuple(node for node in self.nodes if node.cpus)

    def node_core_cpus(self, node: int) -> tuple[int, ...]:
        """One cpu of every core of a node."""
        return tuple(core.cpus[0] for core in self.cores if core.node == node)

    @property
    def last_level_cache_bytes(self) -> int | None:
        """Bytes of all reachable last-level caches together; None if the kernel lists no caches.

        After any cores have read more than this, bytes come from memory again.
        """
        last = max((cache.level for cache in self.caches), default=None)
        return None if last is None else sum(cache.size_bytes for cache in self.caches if cache.level == last)


def read_topology(root: Path = Path("/"), usable: Iterable[int] | None = None) -> Topology:
    """The topology under a root folder that holds `sys`; `usable` defaults to this process's affinity mask.

    Without nodes in sysfs, all cpus form one; without siblings, each cpu is a core. Raises ValueError if no usable cpu
    is online.
    """
    wanted = os.sched_getaffinity(0) if usable is None else set(usable)
    online = read_text(root / _CPUS / "online")
    cpus = tuple(sorted(wanted if online is None else wanted & set(parse_cpu_list(online))))
    if not cpus:
        raise ValueError(f"no usable cpu: allowed {sorted(wanted)}, online {online}")
    nodes = _nodes(root, cpus)
    return Topology(cpus=cpus, cores=_cores(root, cpus, nodes), nodes=nodes, caches=_caches(root, cpus))


def _nodes(root: Path, cpus: tuple[int, ...]) -> tuple[Node, ...]:
    ids = parse_cpu_list(read_text(root / _NODES / "online") or "")
    if not ids:
        return (Node(id=0, cpus=cpus, memory_bytes=None),)
    return tuple(_node(root / _NODES / f"node{id_}", id_, cpus) for id_ in ids)


def _node(folder: Path, id_: int, cpus: tuple[int, ...]) -> Node:
    listed = set(parse_cpu_list(read_text(folder / "cpulist") or ""))
    return Node(id=id_, cpus=tuple(cpu for cpu in cpus if cpu in listed), memory_bytes=_node_memory(folder))


def _node_memory(folder: Path) -> int | None:
    for line in (read_text(folder / "meminfo") or "").splitlines():
        words = line.split()  # Node 0 MemTotal:        7956684 kB
        if words[2:3] == ["MemTotal:"]:
            return int(words[3]) * 1024
    return None


def _cores(root: Path, cpus: tuple[int, ...], nodes: tuple[Node, ...]) -> tuple[Core, ...]:
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    cores: dict[tuple[int, ...], Core] = {}
    for cpu in cpus:
        folder = root / _CPUS / f"cpu{cpu}" / "topology"
        siblings = _sharing(folder / "thread_siblings_list", cpu, cpus)
        package = read_int(folder / "physical_package_id")
        cores.setdefault(siblings, Core(cpus=siblings, package=package or 0, node=node_of.get(cpu, 0)))
    return tuple(cores.values())


def _caches(root: Path, cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    caches: dict[tuple[int, str, tuple[int, ...]], Cache] = {}
    for cpu in cpus:
        for folder in (root / _CPUS / f"cpu{cpu}" / "cache").glob("index*"):
            size = read_text(folder / "size")
            if size:
                cache = _cache(folder, size, _sharing(folder / "shared_cpu_list", cpu, cpus))
                caches.setdefault((cache.level, cache.kind, cache.cpus), cache)
    return tuple(sorted(caches.values(), key=lambda cache: (cache.level, cache.kind, cache.cpus)))


def _cache(folder: Path, size: str, cpus: tuple[int, ...]) -> Cache:
    level = read_int(folder / "level") or 0
    return Cache(level=level, kind=read_text(folder / "type") or "Unified", size_bytes=parse_size(size), cpus=cpus)


def _sharing(path: Path, cpu: int, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """Usable cpus in the file; the cpu alone if the file is missing."""
    listed = set(parse_cpu_list(read_text(path) or "")) | {cpu}
    return tuple(each for each in cpus if each in listed)
