"""What is counted: calls of the hot kernels of every instruction set, and timed steps of the engine, on one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from ktbench import _kernels
from ktbench.engine.protocol import HostRole, System
from ktbench.run.request import read_request
from ktbench.run.worker_process import open_system
from ktbench.spec.run_spec import RunSpec
from tests.kernels.layers import Bits, random_bits, random_layer
from tests.kernels.test_supers import random_packable

ENGINE = "engine"
# Sizes (hidden, intermediate) by rows: most of a call are its kernels, and AVX2 takes a second for the slowest.
SIZES = {1: (1024, 256), 4: (512, 256), 32: (256, 128)}
EXPERTS = ("bf16", "int8", "int4_g32", "q8_0", "q4_0", "q4_k", "fp8", "mxfp4")
LINEARS = ("bf16", "int8", "q4_0")
ATTENTION, ROWS = ("avx2", "avx512", "avx512_bf16"), ("avx2", "avx512")  # the instruction sets that have them
# Streams without and with prefetches, register blocks or tiles: one for each number of rows, whatever the CPU prefers.
CROSSOVER = (2, 5)
FEATURES = ("avx2", "avx512", "amx")
STEPS = {
    "decode step": ("workload=decode", "workload.steps=4"),
    "decode step of 4 sequences": ("workload=decode", "workload.steps=4", "workload.batch=4"),
    "layer call of 32 tokens": ("workload=layer", "workload.steps=4", "workload.batch=32"),
}
PRECISIONS = ("bf16", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A call that is counted, by its name in the reference. `prepare` brings it back to where it begins."""

    name: str
    call: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@contextmanager
def fixed_crossovers() -> Iterator[None]:
    """The same loops for the same rows on every CPU."""
    before = _kernels.crossovers()
    for isa, precision in before:
        _kernels.set_crossover(isa, precision, *CROSSOVER)
    try:
        yield
    finally:
        for key, pair in before.items():
            _kernels.set_crossover(*key, *pair)


def groups() -> list[str]:
    """Instruction sets with kernels to count, slower ones first, and the engine."""
    return [isa for isa in _kernels.isas() if isa not in ("reference", "amx_emulated")] + [ENGINE]


def names_of(group: str) -> list[str]:
    """Names of the calls of a group, in order."""
    if group == ENGINE:
        features = [feature for feature in FEATURES if not _kernels.grants()[feature]]
        return [_step_name(*each) for each in _steps(features)]
    return [name for name, _ in _kernel_calls(group)]


def calls_of(group: str) -> Iterator[Counted]:
    """The calls of a group, each made when it is its turn."""
    if group == ENGINE:
        yield from _engine_calls()
    else:
        for name, make in _kernel_calls(group):
            yield Counted(name=name, call=make())


def choices() -> list[str]:
    """What decides which kernels a step of the engine runs: what this machine grants, and prefers."""
    granted = [isa for isa, reason in _kernels.grants().items() if not reason]
    preferred = [_kernels.isa_of(isa, precision) for isa in FEATURES if isa in granted for precision in PRECISIONS]
    return [*granted, *(f"prefers {isa}" for isa in dict.fromkeys(preferred))]


Make = Callable[[], Callable[[], object]]


def _kernel_calls(isa: str) -> Iterator[tuple[str, Make]]:
    for precision in EXPERTS:
        if isa in _kernels.formats()[precision]["isas"]:
            for rows in SIZES:
                yield f"experts {precision} {rows} rows", partial(_experts, precision, isa, rows)
    for precision in LINEARS:
        if isa in _kernels.formats()[precision]["isas"]:
            for rows in (1, 32):
                yield f"linear {precision} {rows} rows", partial(_linear, precision, isa, rows)
    if isa in ATTENTION:
        yield "attention decode", partial(_decode_attention, isa)
        yield "attention of a prompt", partial(_prompt_attention, isa)
    if isa in ROWS:
        yield "rms_norm", partial(_rms_norm, isa)


@cache
def _team() -> _kernels.ThreadPool:
    """This thread alone."""
    return _kernels.ThreadPool([min(os.sched_getaffinity(0))], 0)


def _rng() -> np.random.Generator:
    return np.random.default_rng(20251128)


@cache
def _packed(precision: str, hidden: int, intermediate: int) -> _kernels.PackedExperts:
    if _kernels.formats()[precision]["scales"] != "super":
        return random_layer(_rng(), 1, hidden, intermediate).packed(precision)
    rng, packed = _rng(), _kernels.PackedExperts(1, hidden, intermediate, precision)
    shapes = ((intermediate, hidden), (intermediate, hidden), (hidden, intermediate))
    packed.write_expert_blocks(0, *(random_packable(rng, precision, *shape) for shape in shapes))
    return packed


def _experts(precision: str, isa: str, rows: int) -> Callable[[], object]:
    packed = _packed(precision, *SIZES[rows])
    x = random_bits(_rng(), rows, packed.hidden)
    ids, gates = np.zeros((rows, 1), np.int64), np.ones((rows, 1), np.float32)
    return _kernels.MoE(packed, _team()).prepare(x, ids, gates, np.empty_like(x), isa=isa).forward


@cache
def _matrix(precision: str) -> _kernels.PackedMatrix:
    matrix = _kernels.PackedMatrix(256, 512, precision)
    matrix.write(random_bits(_rng(), 256, 512))
    return matrix


def _linear(precision: str, isa: str, rows: int) -> Callable[[], object]:
    x, out = random_bits(_rng(), rows, 512), np.empty((rows, 256), np.uint16)
    return partial(_kernels.Linear(_matrix(precision), _team()).forward, x, out, isa=isa)


def _heads(*shape: int) -> Bits:
    return random_bits(_rng(), *shape, 128)


def _numbers(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def _decode_attention(isa: str) -> Callable[[], object]:
    q, keys, values = _heads(1, 8), _heads(1, 2, 256), _heads(1, 2, 256)
    arrays = (q, keys, values, _numbers(0), _numbers(256), np.empty_like(q))
    return partial(_kernels.DecodeAttention(_team()).forward, *arrays, scale=0.1, isa=isa)


def _prompt_attention(isa: str) -> Callable[[], object]:
    q, keys, values, tables = _heads(32, 8), _heads(4, 2, 16), _heads(4, 2, 16), _numbers(0, 1, 2, 3).reshape(1, 4)
    arrays = (q, keys, values, tables, np.zeros(32, np.int64), np.arange(16, 48), np.empty_like(q))
    return partial(_kernels.PagedAttention(_team()).forward, *arrays, scale=0.1, isa=isa)


def _rms_norm(isa: str) -> Callable[[], object]:
    x, weight = random_bits(_rng(), 4, 2048), random_bits(_rng(), 2048)
    return partial(_kernels.rms_norm, x, weight, np.empty_like(x), 1e-6, isa=isa)


def _steps(features: list[str]) -> Iterator[tuple[str, str, str]]:
    for precision in PRECISIONS:
        for step in STEPS:
            for feature in features:
                yield precision, step, feature


def _step_name(precision: str, step: str, feature: str) -> str:
    return f"{step} {precision} {feature}"


def _spec(precision: str, step: str, feature: str) -> RunSpec:
    dense = [] if step.startswith("layer") else ["engine.packed_dense=true", f"device_precision={precision}"]
    words = [*STEPS[step], f"engine.{feature}=true", f"precision={precision}", "engine.threads=1", *dense]
    (part,) = read_request(["model=tiny", "model.layers=null", *words]).parts
    return part.spec


def _engine_calls() -> Iterator[Counted]:
    torch.set_num_threads(1)
    features = [feature for feature in FEATURES if not _kernels.grants()[feature]]
    specs = {each: _spec(*each) for each in _steps(features)}
    opened: dict[tuple[str, bool], System] = {}
    for (precision, step, feature), spec in specs.items():
        key = precision, step.startswith("layer")
        if key not in opened:
            sharing = [other for (p, s, _), other in specs.items() if (p, s.startswith("layer")) == key]
            opened[key] = open_system(sharing, HostRole(cores=1))
        system = opened[key]
        system.configure(spec)
        yield Counted(name=_step_name(precision, step, feature), call=system.step, prepare=system.start)
