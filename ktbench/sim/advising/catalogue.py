"""Machines made of parts of the catalogue (`conf/catalogue.yaml`): processors, memory modules and GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from math import ceil

from ktbench.resources import shipped
from ktbench.spec.errors import instead
from ktbench.spec.machine import MachineSpec, Vector
from ktbench.spec.wire import from_plain

_TRANSFER_BYTES = 8
_MOST_PER_CHANNEL = 2  # modules, where no platform is known
_MAKERS = re.compile(r"\b(amd|intel|nvidia|geforce|cpu|gpu)\b|\((?:r|tm)\)|[®™]", re.IGNORECASE)
_BEYOND = 4  # times what any processor allows: no module is that fast, overclocked ones neither
_RAM = re.compile(r"(\d+) ?x ?(\d+) ?(?:GB|GiB|G)? +([A-Za-z]+\d?)-(\d+)(?: +at +(\d+))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """A processor: `ghz` is its base clock, `memory` the MT/s that it allows by kind, `sockets` the most of a board.

    `isa` names a row of `instructions`, `platform` one of `platforms` where there is one. `chiplets` reach memory over
    a link each, of the kind `fabric`, where that can limit what is read. Faster modules than allowed run as rated where
    it `overclocks`.
    """

    cores: int
    ghz: float
    isa: str
    memory: dict[str, int]
    channels: int
    sockets: int
    pcie: int
    source: str
    platform: str | None = None
    chiplets: int = 0
    fabric: str | None = None
    overclocks: bool = False

    @property
    def platform_row(self) -> Platform | None:
        """What boards of it take; None where the catalogue does not know."""
        return None if self.platform is None else catalogue().platforms[self.platform]

    @property
    def most_per_channel(self) -> int:
        """Modules that a channel takes."""
        return _MOST_PER_CHANNEL if self.platform_row is None else self.platform_row.modules


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A card: memory in GiB and its bandwidth in GB/s, dense bf16 peak in TFLOPS with float32 sums, boost clock.

    `nvlink` is the GB/s each way of cards that have it on board.
    """

    memory_gib: float
    gb_per_s: float
    tflops: float
    ghz: float
    pcie: int
    source: str
    nvlink: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Instructions:
    """Operations of a core in a cycle, by type; on AMX where it has it."""

    vector: Vector
    bf16: int
    int8: int
    source: str
    amx_bf16: int = 0
    amx_int8: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryKind:
    """What can be read of a channel's rate, and what a socket reads of another's memory as a share of its own.

    `io_die`: what processors with chiplets can read of it, where that was measured apart.
    """

    efficiency: float
    remote: float
    source: str
    io_die: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """How many `modules` a channel takes; `mts` by kind of memory: what two in a channel run at, at most, then three.

    `largest` is the GiB of the largest module.
    """

    modules: int
    mts: dict[str, tuple[int, ...]]
    source: str
    largest: int = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A link's bandwidth."""

    gb_per_s: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """All parts by name; the source of a part is a link."""

    sources: dict[str, str]
    instructions: dict[str, Instructions]
    memory: dict[str, MemoryKind]
    fabrics: dict[str, Rate]
    links: dict[str, Rate]
    platforms: dict[str, Platform]
    cpus: dict[str, Cpu]
    gpus: dict[str, Gpu]


@dataclass(frozen=True, kw_only=True, slots=True)
class Modules:
    """Memory modules of a machine: so many of so many GiB, rated at `mts`; `runs_at`: what they are known to run at."""

    count: int
    gib: int
    kind: str
    mts: int
    runs_at: int | None = None

    def __str__(self) -> str:
        known = "" if self.runs_at is None else f" at {self.runs_at}"
        return f"{self.count}x{self.gib} {self.kind}-{self.mts}{known}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A machine by its parts, as the catalogue names them; the modules are those of all sockets."""

    cpu: str
    ram: Modules
    sockets: int = 1
    gpu: str | None = None
    gpus: int = 1

    @property
    def title(self) -> str:
        """`2x EPYC 9355, 24x32 DDR5-6400, RTX 4090`."""
        gpu = "no GPU" if self.gpu is None else _times(self.gpus, self.gpu)
        return f"{_times(self.sockets, self.cpu)}, {self.ram}, {gpu}"

    @property
    def part(self) -> Cpu:
        """The processor."""
        return catalogue().cpus[self.cpu]

    @property
    def channels_used(self) -> int:
        """Memory channels of a socket that have a module."""
        return min(self.part.channels, self.ram.count // self.sockets)

    @property
    def per_channel(self) -> int:
        """Modules of a channel, of the channels that have most."""
        return ceil(self.ram.count / self.sockets / self.part.channels)

    @property
    def rated_mts(self) -> int:
        """MT/s at which the modules run: what is known, else as alone, or what so many in a channel allow."""
        shared = self.shared_rate
        return self.ram.runs_at or (self.alone_mts if shared is None else min(self.alone_mts, shared[0]))

    @property
    def alone_mts(self) -> int:
        """MT/s of the modules with one in each channel: as rated, but not faster than the processor allows."""
        return self.ram.mts if self.part.overclocks else min(self.ram.mts, self.part.memory[self.ram.kind])

    @property
    def shared_rate(self) -> tuple[int, str] | None:
        """MT/s of modules that share a channel as these do, at most, and its source; None where none was found."""
        platform = self.part.platform_row
        rates = platform.mts.get(self.ram.kind, ()) if platform else ()
        more = self.per_channel - 2
        return (rates[more], platform.source) if platform and 0 <= more < len(rates) else None

    def machine(self, calibration: str | None = None) -> MachineSpec:
        """The described machine, a NUMA domain for each socket.

        The calibration is KTransformers' where there is a GPU and ktbench's where there is none, unless one is named.
        """
        isa, cycles = catalogue().instructions[self.part.isa], self.part.cores * self.part.ghz * 1e-3
        read = _read_gb_per_s(self)
        machine = MachineSpec(
            name=self.title,
            title=self.title,
            calibration=calibration or ("ktbench" if self.gpu is None else "ktransformers"),
            domains=self.sockets,
            cores=self.part.cores,
            memory_gib=self.ram.count * self.ram.gib / self.sockets,
            read_gb_per_s=read,
            remote_gb_per_s=read * (catalogue().memory[self.ram.kind].remote if self.sockets > 1 else 1.0),
            vector=isa.vector,
            vector_tflops=cycles * isa.bf16,
            vector_int8_tops=cycles * isa.int8,
            amx_tflops=cycles * isa.amx_bf16 or None,
            amx_int8_tops=cycles * isa.amx_int8 or None,
            sources=dict(_sources(self)),
        )
        return machine if self.gpu is None else _with_gpus(machine, self)


def _times(count: int, name: str) -> str:
    return name if count == 1 else f"{count}x {name}"


@cache
def catalogue() -> Catalogue:
    """The catalogue that ships."""
    content = shipped("catalogue")
    links = {str(name): link for name, link in content["links"].items()}
    return from_plain(content | {"links": links}, Catalogue)


def read_box(cpu: str, sockets: int, ram: str, gpu: str | None) -> Box:
    """A machine of parts as a user writes them: `EPYC 9355`, 2, `24x32 DDR5-6400`, `2x RTX 4090`.

    Raises ValueError in one line for a part that is not in the catalogue, with the nearest names, and for modules that
    do not go with the processor.
    """
    parts = catalogue()
    gpus, card = (1, None) if gpu is None else _counted(gpu)
    box = Box(
        cpu=_part("cpu", cpu, parts.cpus),
        ram=read_modules(ram),
        sockets=sockets,
        gpu=None if card is None else _part("gpu", card, parts.gpus),
        gpus=gpus,
    )
    _check(box)
    return box


def read_modules(text: str) -> Modules:
    """Modules from `24x32 DDR5-6400` or `4x48 DDR5-6000 at 4800`. Raises ValueError in one line for anything else."""
    found = _RAM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"ram={text}: write modules as COUNTxGIB KIND-MTS, such as 24x32 DDR5-6400")
    count, gib, kind, mts, runs_at = found.groups()
    kinds = catalogue().memory
    if kind.upper() not in kinds:
        raise ValueError(f"ram={text}: {kind} is not in the catalogue{instead(kind.upper(), kinds)}")
    if not (int(count) and int(gib) and int(mts) and int(runs_at or 1)):
        raise ValueError(f"ram={text}: numbers must be above 0")
    most = _BEYOND * max(cpu.memory.get(kind.upper(), 0) for cpu in catalogue().cpus.values())
    if int(mts) > most or int(runs_at or 0) > most:
        raise ValueError(f"ram={text}: no {kind.upper()} is that fast; allowed are at most {most} MT/s")
    return Modules(
        count=int(count), gib=int(gib), kind=kind.upper(), mts=int(mts), runs_at=int(runs_at) if runs_at else None
    )


def _counted(text: str) -> tuple[int, str]:
    found = re.fullmatch(r"(?:(\d+) ?x +)?(.+)", text.strip())
    count = int(found[1] or 1) if found else 0
    if found is None or not count:
        raise ValueError(f"gpu={text}: write a card as NAME or COUNTx NAME, such as 2x RTX 4090")
    return count, found[2]


def _part(key: str, name: str, parts: Iterable[str]) -> str:
    """The name of a part in the catalogue: makers' names and case do not matter."""
    known = {_plain(one): one for one in parts}
    if (plain := _plain(name)) in known:
        return known[plain]
    near = get_close_matches(plain, known, n=3, cutoff=0.0)
    raise ValueError(f"{key}={name}: is not in the catalogue; nearest are {', '.join(known[one] for one in near)}")


def _plain(name: str) -> str:
    return " ".join(_MAKERS.sub(" ", name).casefold().split())


def _check(box: Box) -> None:
    cpu, ram = box.part, box.ram
    if not 1 <= box.sockets <= cpu.sockets:
        raise ValueError(f"sockets={box.sockets}: allowed are 1 to {cpu.sockets} with {box.cpu}")
    if ram.kind not in cpu.memory:
        raise ValueError(f"ram={ram}: {box.cpu} takes {' or '.join(cpu.memory)}")
    most = box.sockets * cpu.channels * cpu.most_per_channel
    if ram.count % box.sockets or ram.count > most:
        raise ValueError(f"ram={ram}: {box.title.split(',')[0]} takes up to {most} modules, as many in each socket")


def _read_gb_per_s(box: Box) -> float:
    """What a socket reads of its own memory: what channels or links of chiplets give, whichever is less."""
    parts = catalogue()
    cpu = box.part
    read = box.channels_used * box.rated_mts * _TRANSFER_BYTES * 1e-3 * _efficiency(box)
    return read if cpu.fabric is None else min(read, cpu.chiplets * parts.fabrics[cpu.fabric].gb_per_s)


def _efficiency(box: Box) -> float:
    kind, has_io_die = catalogue().memory[box.ram.kind], box.part.fabric is not None
    return kind.io_die if has_io_die and kind.io_die is not None else kind.efficiency


def _with_gpus(machine: MachineSpec, box: Box) -> MachineSpec:
    parts, name = catalogue(), str(box.gpu)
    gpu, cpu = parts.gpus[name], box.part
    link = min(gpu.pcie, cpu.pcie)
    card = f"{name}: {_link_of(gpu.source)}"
    sources = dict.fromkeys(("gpu_memory_gib", "gpu_gb_per_s", "gpu_tflops", "gpu_ghz"), card)
    sources |= {"gpus": "as stated", "link_gb_per_s": f"PCIe {link}.0 x16, {parts.links[str(link)].source}"}
    sources |= {} if gpu.nvlink is None else {"nvlink_gb_per_s": card}
    return replace(
        machine,
        gpu=name,
        gpus=box.gpus,
        gpu_memory_gib=gpu.memory_gib,
        gpu_gb_per_s=gpu.gb_per_s,
        gpu_tflops=gpu.tflops,
        gpu_ghz=gpu.ghz,
        link_gb_per_s=parts.links[str(link)].gb_per_s,
        nvlink_gb_per_s=gpu.nvlink,
        sources=machine.sources | sources,
    )


def _sources(box: Box) -> Mapping[str, str]:
    parts = catalogue()
    cpu, kind = box.part, parts.memory[box.ram.kind]
    sheet, isa = f"{box.cpu}: {_link_of(cpu.source)}", parts.instructions[cpu.isa]
    rate = f"{box.rated_mts} MT/s{_why_rated(box)}"
    read = f"{box.channels_used} channels at {rate} x {_efficiency(box):g} ({kind.source})"
    if cpu.fabric is not None:
        fabric = parts.fabrics[cpu.fabric]
        read += f", at most {cpu.chiplets} chiplets x {fabric.gb_per_s:g} GB/s ({fabric.source})"
    units = f"{sheet}; {cpu.cores} cores x {cpu.ghz:g} GHz x"
    vector = {"vector_tflops": f"{units} {isa.bf16}", "vector_int8_tops": f"{units} {isa.int8}"}
    amx = {"amx_tflops": f"{units} {isa.amx_bf16}", "amx_int8_tops": f"{units} {isa.amx_int8}"}
    return {
        "domains": "a NUMA domain for each socket",
        "cores": sheet,
        "memory_gib": f"{box.ram}, as stated",
        "read_gb_per_s": read,
        "remote_gb_per_s": f"{kind.remote:g} of that ({kind.source})" if box.sockets > 1 else "no other domain",
        **{name: f"{source} operations a cycle ({isa.source})" for name, source in vector.items()},
        **{name: f"{source} operations a cycle ({isa.source})" for name, source in amx.items() if isa.amx_bf16},
    }


def _why_rated(box: Box) -> str:
    """What else than data sheet and modules says how fast they run."""
    if box.ram.runs_at is not None:
        return ", as stated"
    shared, alone = box.shared_rate, box.alone_mts
    if shared is not None and shared[0] <= alone:
        return f" with {box.per_channel} modules in each ({shared[1]})"
    return f", all that {box.cpu} allows of {box.ram.mts}" if alone < box.ram.mts else ""


def _link_of(source: str) -> str:
    """The link of a source: most parts name one of `sources`."""
    return catalogue().sources.get(source, source)
