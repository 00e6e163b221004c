"""The fastest settings of a model on a machine, precision by precision, and what another machine would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import floor, log
from typing import Literal

from ktbench.resources import shipped
from ktbench.sim.advising.catalogue import Box, Cpu, catalogue
from ktbench.sim.calibration import read_calibration
from ktbench.sim.errors import comparison_error
from ktbench.sim.simulation import resolved_deferral, step_s, with_all_features, with_deferral
from ktbench.sim.workloads import machine_of
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.memory import GPU_RESERVE_BYTES
from ktbench.spec.step.work import cache_bytes, device_bytes, routed_bytes
from ktbench.spec.weights import BY_ACCURACY, DEVICE_UNPACKS, Precision, weight_bits
from ktbench.spec.wire import from_plain

_FEW_BITS = 4  # formats below are advised where no other fits
_ON_DEVICE: tuple[Precision, ...] = ("bf16", "int8", "int4_g32")
# Settings that are no more than this apart are equally fast: the simpler one is advised.
_TIE = 0.01

# Why a cell cannot run on its machine; empty where it can.
Fits = Callable[[RunSpec], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A checkpoint as it is released: `precision` of the routed experts, `device` of what else has one."""

    checkpoint: str
    precision: Precision
    device: Precision
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """The fastest settings in one precision that compute what the model computes, with simulated speeds in tokens/s.

    `deferred` experts of a token keep the host busy in `deferring` tokens/s, which changes what the model computes;
    0 where deferral gains nothing. `release` is the checkpoint whose weights stay as they are, None for packed ones.
    """

    precision: Precision
    decode: RunSpec
    prefill: RunSpec
    decode_speed: float
    prefill_speed: float
    deferred: int
    deferring: float
    release: Release | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfit:
    """A precision in which the model does not fit, and why; `release` as that of an `Option`."""

    precision: Precision
    why: str
    release: Release | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A decode and a prefill cell of a model on a machine; their features are chosen here."""

    decode: RunSpec
    prefill: RunSpec
    fits: Fits

    def on(self, machine: MachineSpec) -> Question:
        """The question about another machine."""
        return replace(self, decode=_on(self.decode, machine), prefill=_on(self.prefill, machine))


def _on(spec: RunSpec, machine: MachineSpec) -> RunSpec:
    engine = replace(spec.engine, device="cpu" if machine.gpu is None else "cuda")
    return replace(spec, machine=machine, engine=engine)


@cache
def releases() -> Mapping[str, tuple[Release, ...]]:
    """Released checkpoints in a quantised format, by model (`conf/released.yaml`)."""
    return from_plain(shipped("released"), dict[str, tuple[Release, ...]])


def options(question: Question) -> tuple[Option | Unfit, ...]:
    """The best settings in each precision, or why there are none; released weights after bf16, from which most come."""
    released = [as_released(question, one) for one in releases().get(question.decode.model.name, ())]
    first, *others = (option(question, precision) for precision in BY_ACCURACY)
    return (first, *released, *others)


def option(question: Question, precision: Precision) -> Option | Unfit:
    """The best settings in a precision, or why it does not fit."""
    on_device = [one for one in _ON_DEVICE if weight_bits(one) <= max(weight_bits(precision), _FEW_BITS)]
    return _in_formats(question, precision, on_device)


def as_released(question: Question, release: Release) -> Option | Unfit:
    """The best settings with the weights of a checkpoint as they are, on the device as well; or why they do not fit."""
    return replace(_in_formats(question, release.precision, [release.device]), release=release)


def again(question: Question, found: Option | Unfit) -> Option | Unfit:
    """The same weights for another question."""
    return as_released(question, found.release) if found.release else option(question, found.precision)


def _in_formats(question: Question, precision: Precision, on_device: Sequence[Precision]) -> Option | Unfit:
    """With the first format of what the device computes that fits."""
    whys = []
    for one in on_device:
        cell = with_all_features(replace(question.decode, precision=precision, device_precision=one))
        if not (why := question.fits(cell)):
            return _best(question, cell)
        whys.append(why)
    return Unfit(precision=precision, why=whys[-1])


def _best(question: Question, cell: RunSpec) -> Option:
    """Placements and ways of prefill that fit, tried from the simplest one on."""
    decode, decode_speed = _fastest(_placements(cell), question.fits)
    prefill, prefill_speed = _fastest(_prefills(question.prefill, decode), question.fits)
    deferred = _deferred(decode)
    deferring = _speed(with_deferral(decode, deferred)) if deferred else decode_speed
    return Option(
        precision=decode.precision,
        decode=decode,
        prefill=prefill,
        decode_speed=decode_speed,
        prefill_speed=prefill_speed,
        deferred=deferred if deferring > decode_speed * (1 + _TIE) else 0,
        deferring=deferring,
    )


def _fastest(cells: Iterator[RunSpec], fits: Fits) -> tuple[RunSpec, float]:
    """The first of the cells, or a later one that fits and is faster by more than a tie."""
    best = next(cells)
    speed = _speed(best)
    for cell in cells:
        if not fits(cell) and (faster := _speed(cell)) > speed * (1 + _TIE):
            best, speed = cell, faster
    return best, speed


def _placements(cell: RunSpec) -> Iterator[RunSpec]:
    """All experts on the host, then as many as the GPUs have room for, spread evenly and by whole layers."""
    yield cell
    if (ratio := _room(cell)) > 0:
        for placed in (
            PlacementSpec(policy="uniform", ratio=ratio),
            PlacementSpec(policy="front_loading", ratio=ratio),
        ):
            yield replace(cell, engine=replace(cell.engine, placement=placed))


def _room(cell: RunSpec) -> float:
    """The share of routed experts that the GPUs have room for, in whole per cent, rounded down."""
    machine = machine_of(cell)
    if machine.gpu is None:
        return 0.0
    cards = (machine.gpus or 0) * ((machine.gpu_memory_gib or 0) * 2**30 - GPU_RESERVE_BYTES)
    free = cards - device_bytes(cell) - cache_bytes(cell)
    return min(max(floor(100 * free / routed_bytes(cell)), 0), 100) / 100


def _prefills(cell: RunSpec, decode: RunSpec) -> Iterator[RunSpec]:
    """The prompt with the settings of decode: experts where they live, then streamed to the GPU."""
    here = replace(decode, workload=cell.workload)
    yield here
    if machine_of(cell).gpu is not None and decode.precision in DEVICE_UNPACKS and not decode.engine.placement.ratio:
        yield replace(here, engine=replace(here.engine, device_prefill_tokens="auto"))


def _deferred(cell: RunSpec) -> int:
    """The number of deferred experts that saturates the host; 0 on cores alone, where nothing runs beside them."""
    machine = machine_of(cell)
    if machine.gpu is None:
        return 0
    return resolved_deferral(with_deferral(cell, "auto"), read_calibration(machine.calibration))


def _speed(spec: RunSpec) -> float:
    return spec.workload.tokens_per_step / step_s(spec)


def advised(found: Sequence[Option | Unfit], enough: Callable[[float], bool] | None = None) -> Option | None:
    """Of the precisions that fit the most accurate one that is fast enough.

    Without `enough` that is one which is as fast as the fastest, as far as the simulator can tell. Precisions below
    four bits count where no other fits. None where none fits; the fastest where none is enough.
    """
    fitting = [one for one in found if isinstance(one, Option)]
    several = [one for one in fitting if weight_bits(one.precision) >= _FEW_BITS] or fitting
    if not several:
        return None
    fastest = max(several, key=lambda one: one.decode_speed)
    if enough is not None:
        return next((one for one in several if enough(one.decode_speed)), fastest)
    return next(one for one in several if is_close(one.decode_speed, fastest.decode_speed))


def is_close(one: float, other: float) -> bool:
    """Whether two speeds of one model on like machines are too close to call."""
    return abs(log(one / other)) <= log(1 + comparison_error())


Upgrade = Literal["memory", "modules", "gpu", "cores", "socket"]


def upgrades(box: Box) -> dict[Upgrade, Box]:
    """What can be added to a box, one kind of part at a time.

    memory: a module in every channel, else one in each that holds as much and is as fast as the processor allows.
    modules: a second one in each channel. gpu: one more of the same, or an RTX 4090. cores: the processor of the same
    memory and instructions with the least more cores. socket: a second one with as many modules.
    """
    found = {
        "memory": _faster_memory(box),
        "modules": _more_modules(box),
        "gpu": _more_gpus(box),
        "cores": _more_cores(box),
        "socket": _more_sockets(box),
    }
    return {name: more for name, more in found.items() if more is not None}  # type: ignore[misc]


def _faster_memory(box: Box) -> Box | None:
    cpu, ram = box.part, box.ram
    one_each = replace(ram, count=box.sockets * cpu.channels, runs_at=None)
    if box.channels_used < cpu.channels:
        return replace(box, ram=one_each)
    platform, shared = cpu.platform_row, box.per_channel
    if shared > 1 and (platform is None or shared * ram.gib > platform.largest):
        return None
    faster = replace(box, ram=replace(one_each, gib=shared * ram.gib, mts=max(ram.mts, cpu.memory[ram.kind])))
    return faster if faster.rated_mts > box.rated_mts else None


def _more_modules(box: Box) -> Box | None:
    cpu = box.part
    channels = box.sockets * cpu.channels
    if box.ram.count != channels or cpu.most_per_channel < 2:
        return None
    return replace(box, ram=replace(box.ram, count=2 * channels, runs_at=None))


def _more_gpus(box: Box) -> Box:
    return replace(box, gpu="RTX 4090") if box.gpu is None else replace(box, gpus=box.gpus + 1)


def _more_cores(box: Box) -> Box | None:
    cpus = catalogue().cpus
    mine = cpus[box.cpu]

    def alike(cpu: Cpu) -> bool:
        """Whether it goes into the same kind of socket, as far as the catalogue tells."""
        facts = ("isa", "memory", "channels", "pcie", "sockets", "source")
        return all(getattr(cpu, one) == getattr(mine, one) for one in facts if one != "source" or mine.chiplets)

    more = [name for name, cpu in cpus.items() if cpu.cores > mine.cores and alike(cpu)]
    name = min(more, key=lambda one: cpus[one].cores, default=None)
    return None if name is None else replace(box, cpu=name)


def _more_sockets(box: Box) -> Box | None:
    if box.sockets > 1 or box.part.sockets < 2:
        return None
    return replace(box, sockets=2, ram=replace(box.ram, count=2 * box.ram.count))
