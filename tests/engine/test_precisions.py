"""Packed weights in every precision and in domains: right against float64, with the evidence that they ran."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.layer import LayerSystem
from ktbench.engine.load_layer import EngineLayer, load_layer
from ktbench.engine.protocol import HostRole, System, Unsupported
from ktbench.engine.weight_plan import Packing
from ktbench.run.check import check, check_the_check
from ktbench.spec.record import Outcome, collect, dishonest
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.weights import FORMATS, Precision, expert_bytes
from tests.drawing import covering
from tests.engine.arrays import relative
from tests.engine.engines import FUSED, VECTOR, granted, needs_vector
from tests.engine.test_fused import AMX, AVX512
from tests.engine.test_layer import exact
from tests.engine.tiny import decode, layer, load, prefill, run, spec, tiny_model

kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built")

# What points of lattices are read from is in tests/engine/gguf.
PRECISIONS = tuple(name for name in get_args(Precision) if FORMATS[name].from_numbers)
# Against float64 on the bf16 weights. Sixteen even levels put a Gaussian number 0.107 of its spread off (Max 1960, IRE
# Transactions on Information Theory 6, table II), three such matrices in a row sqrt(3) times that; few tokens scatter.
_INT4 = 1.2 * 3**0.5 * 0.1075
# Q4_0 has even levels of an eighth of the largest of 32, whose mean square is 5.71: off by sqrt(5.71 / 8² / 12).
_Q4_0 = 1.2 * 3**0.5 * 0.0862
TOLERANCE = {"bf16": 0.005, "int8": 0.03, "int4_g32": _INT4, "int4_g64": _INT4, "int4_g128": _INT4}
TOLERANCE |= {"q8_0": 0.02, "q4_0": _Q4_0}
# Of 640,000 normal numbers in blocks of 32, rounded by NumPy to the tables of both formats: 0.0787 and 0.1152 off.
TOLERANCE |= {"iq4_nl": 1.25 * 3**0.5 * 0.0787, "mxfp4": 1.25 * 3**0.5 * 0.1152}
# Even levels of a seventh of the largest of 32, and e4m3 with the largest of 128 x 128 at 448, in the same way.
TOLERANCE |= {"int4_bf16": 1.25 * 3**0.5 * 0.0970, "fp8": 1.25 * 3**0.5 * 0.0264}
# What ggml leaves of normal numbers, and for the last two NumPy (tests/kernels/test_supers.py).
_SUPERS = {"q2_k": 0.2968, "q3_k": 0.1508, "q4_k": 0.0713, "q5_k": 0.0361, "q6_k": 0.0178, "iq4_xs": 0.0767}
_SUPERS |= {"nvfp4": 0.0951, "int4_zp": 0.0807}
TOLERANCE |= {name: 1.4 * 3**0.5 * error for name, error in _SUPERS.items()}
SETTINGS = [
    pytest.param({"avx2": True}, marks=granted("avx2"), id="a"),
    pytest.param({"avx512": True}, marks=AVX512, id="v"),
    pytest.param({"amx": True}, marks=AMX, id="m"),
    pytest.param({"avx512": True, "amx": True, "dynamic": True}, marks=[AVX512, AMX], id="v+m+d"),
]


WORKLOADS = [pytest.param(decode(batch=2), id="decode"), pytest.param(prefill(), id="prefill")]


def cell(model: ModelSpec, workload: WorkloadSpec, precision: Precision, **engine: Any) -> RunSpec:
    return replace(spec(model, workload, **engine), precision=precision)


def opened(model: ModelSpec, workload: WorkloadSpec, **held: Any) -> System:
    """A system for the workload on two cores."""
    if workload.phase == "layer":
        return load_layer(model, host=HostRole(cores=2), **held)
    return load(model, cores=2, **held)


def evidence_of(system: System, requested: RunSpec) -> str:
    """What is dishonest about the steps of a workload."""
    before = dict(system.counters())
    run(system, requested.workload.steps)
    moved = {name: count - before[name] for name, count in system.counters().items()}
    return dishonest(collect(requested.engine.features, moved))


@pytest.fixture(scope="module")
def layers() -> Callable[[Precision], LayerSystem]:
    """A layer that holds no weights but those in a precision, for all who configure it."""
    model, host = tiny_model(hidden_size=256, moe_intermediate_size=128), HostRole(cores=1)
    return cache(
        lambda precision: load_layer(model, host=host, keep_original=False, packing=Packing(precision=precision))
    )


@pytest.fixture(scope="module")
def engines() -> Callable[[Precision], HybridEngine]:
    """The same of whole models."""
    return cache(lambda precision: load(tiny_model(), keep_original=False, packing=Packing(precision=precision)))


def met_by_a_layer(precision: Precision, engine: Mapping[str, bool]) -> Iterable[Hashable]:
    """Every format, and every setting with scales of each kind."""
    return precision, (kernels.formats()[precision]["scales"], repr(engine))


@pytest.mark.parametrize(("precision", "engine"), covering(product(PRECISIONS, SETTINGS), met_by_a_layer))
def test_layer_agrees_with_float64_and_passes_the_check(
    layers: Callable[[Precision], LayerSystem], precision: Precision, engine: Mapping[str, bool]
) -> None:
    system = layers(precision)
    model = system.model
    for workload in (layer(batch=1), layer(batch=40), layer(batch=9, routing="zipf")):
        requested = cell(model, workload, precision, **engine)
        system.configure(requested)
        for output, prepared in zip(run(system, 3), system._steps, strict=True):
            assert relative(output.numpy(), exact(model, prepared)) < TOLERANCE[precision]
        seen = system.observe()
        assert check(seen, system.reference, requested.tolerance).outcome is Outcome.OK
        assert check_the_check(seen, system.reference, requested.tolerance) == ""


@needs_vector()
@pytest.mark.parametrize(
    ("precision", "step", "error"),
    [
        ("int8", 1 / 253, 0.01),
        ("q8_0", 1 / 225, 0.01),
        ("int4_g32", 0.3, 0.12),
        ("q4_0", 0.3, 0.12),
        ("iq4_nl", 0.3, 0.1),
        ("mxfp4", 0.26, 0.14),
    ],
)
def test_reference_takes_the_weights_as_stored(precision: Precision, step: float, error: float) -> None:
    """Rounding moves a weight by at most half a step: 1/254 of its row's largest in int8, about 1/14 in int4.

    In MXFP4 the largest one moves by up to a quarter, from 8 to 6.

    Scales of blocks are rounded as well, to half precision: by 1/2048.
    """
    model = tiny_model()
    packed = load_layer(model, host=HostRole(cores=1), keep_original=True, packing=Packing(precision=precision))
    held = packed._held
    assert isinstance(held, EngineLayer)
    assert held.original is not None
    assert held.packed is not None
    original, stored = (copies._backends[0].matrices(3) for copies in (held.original, held.packed))
    for name in ("gate", "up", "down"):
        truth, seen = getattr(original, name).float(), getattr(stored, name)
        assert seen.dtype == torch.float32
        assert not torch.equal(seen, truth)
        largest = truth.abs().amax(dim=1, keepdim=True)
        assert ((seen - truth).abs() <= largest * step).all()
        assert relative(seen.numpy(), truth.numpy()) < error


@needs_vector()
@pytest.mark.parametrize(("precision", "workload"), covering(product(PRECISIONS, WORKLOADS)))
def test_the_whole_engine_runs_in_every_precision(
    engines: Callable[[Precision], HybridEngine], precision: Precision, workload: WorkloadSpec
) -> None:
    system = engines(precision)
    requested = cell(system.model, workload, precision, **FUSED)
    system.configure(requested)
    assert evidence_of(system, requested) == ""
    verdict = check(system.observe(), system.reference, requested.tolerance)
    assert verdict.outcome is Outcome.OK, verdict.why


@needs_vector()
def test_bytes_of_a_step_follow_the_precision(engines: Callable[[Precision], HybridEngine]) -> None:
    model, workload = tiny_model(), decode(routing="concentrated", steps=1)
    held: dict[str, int] = {}
    for precision in PRECISIONS:
        system = engines(precision)
        system.configure(cell(model, workload, precision, **FUSED))
        run(system, 1)
        held[precision] = system.work().weight_bytes
        alone = load_layer(model, host=HostRole(cores=1), keep_original=False, packing=Packing(precision=precision))
        alone.configure(cell(model, layer(batch=1, routing="concentrated"), precision, **FUSED))
        assert alone.work().weight_bytes == 4 * expert_bytes(model.shape, precision)
    for precision in PRECISIONS:
        saved = 2 * 4 * (expert_bytes(model.shape, "bf16") - expert_bytes(model.shape, precision))
        assert held["bf16"] - held[precision] == saved


@needs_vector()
@pytest.mark.parametrize(
    ("precision", "workload"),
    covering(
        product(
            ("bf16", "int8", "int4_g32", "q4_0"),
            (pytest.param(decode(batch=3), id="decode"), pytest.param(layer(batch=20), id="layer")),
        )
    ),
)
def test_domains_give_the_same_output_and_their_own_evidence(precision: Precision, workload: WorkloadSpec) -> None:
    model = tiny_model(moe_intermediate_size=256)
    system = opened(model, workload, keep_original=False, packing=Packing(precision=precision, domains=2))
    on, off = (cell(model, workload, precision, **FUSED, numa=n, domains=2, threads=2) for n in (True, False))
    for requested in (on, off, on):
        system.configure(requested)
        assert evidence_of(system, requested) == ""
        verdict = check(system.observe(), system.reference, requested.tolerance)
        assert verdict.outcome is Outcome.OK, verdict.why


@needs_vector()
@pytest.mark.parametrize("workload", [decode(), layer()], ids=["decode", "layer"])
def test_packed_weights_of_another_cell_are_refused(workload: WorkloadSpec) -> None:
    model = tiny_model()
    system = opened(model, workload, packing=Packing(precision="int8"))
    with pytest.raises(ValueError, match="precision=bf16 .*packed with int8"):
        system.configure(cell(model, workload, "bf16", **FUSED))
    with pytest.raises(ValueError, match=r"engine\.domains=2 .*packed with 1"):
        system.configure(cell(model, workload, "int8", **FUSED, domains=2, threads=2))
    with pytest.raises(Unsupported, match=r"lie on one NUMA node, engine\.domains=2 splits them"):
        system.configure(cell(model, workload, "int8", **FUSED, numa=True))


@needs_vector()
def test_domains_need_a_thread_each() -> None:
    model = tiny_model(moe_intermediate_size=256)
    system = load(model, cores=1, keep_original=False, packing=Packing(domains=2))
    with pytest.raises(Unsupported, match="2 domains need a thread each, there are 1"):
        system.configure(cell(model, decode(), "bf16", **FUSED, numa=True, domains=2, threads=None))


@needs_vector()
def test_steps_leave_no_numbers_behind_that_were_not_computed() -> None:
    """The output is not a number until a step has run, so that a step which does nothing is found out."""
    model = tiny_model()
    system = load_layer(model, host=HostRole(cores=1), keep_original=False, packing=Packing())
    system.configure(cell(model, layer(batch=2), "bf16", **FUSED))
    system.start()
    assert np.isnan(system._traced.output.float().numpy()).all()
    system.step()
    assert np.isfinite(system.logits()).all()


@needs_vector()
def test_every_copy_has_run_before_a_step_is_timed() -> None:
    model = tiny_model()
    host = HostRole(cores=1, cache_bytes=5 * model.shape.experts * expert_bytes(model.shape, "int8"))
    system = load_layer(model, host=host, keep_original=False, packing=Packing(precision="int8"))
    requested = cell(model, layer(steps=2), "int8", **FUSED)
    system.configure(requested)
    copies = system._replicas_in_turn
    assert copies.count == 7
    assert all(backend.counters()[VECTOR.counter] for backend in copies._backends)  # type: ignore[attr-defined]
    before = dict(system.counters())
    system.configure(requested)
    assert system.counters() == before
