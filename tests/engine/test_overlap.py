"""Roles on cores of their own: the same numbers, and work that is handed over before it is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine.fused import FusedExperts
from ktbench.engine.hybrid import HybridEngine
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.timeline import Span, Timeline
from tests.drawing import covering
from tests.engine.engines import (
    CPUS,
    FUSED,
    PACKED_DENSE,
    TWO_CORES,
    VECTOR,
    cell,
    changed,
    engine_for,
    logits,
    needs_vector,
    split_cell,
)
from tests.engine.families.zoo import LAYERS, TOP_K
from tests.engine.tiny import decode, prefill, run

pytestmark = [needs_vector(), TWO_CORES]

# Qwen2's blocks call the shared expert before the routed ones, DeepSeek's and GLM's after them; Mixtral has none.
NAMES = ("qwen2_moe", "deepseek_v3", "mixtral")


@dataclass(frozen=True)
class Pair:
    """Engines of one model whose roles share one core, and have a core each."""

    model: ModelSpec
    shared: HybridEngine
    split: HybridEngine

    def cell(self, workload: WorkloadSpec, **engine: Any) -> RunSpec:
        return split_cell(self.model, workload, **engine)

    def of_shared(self, workload: WorkloadSpec, **engine: Any) -> list[Tensor]:
        return logits(self.shared, cell(self.model, workload, **FUSED, **engine))

    def of_split(self, workload: WorkloadSpec, **engine: Any) -> list[Tensor]:
        return logits(self.split, self.cell(workload, **engine))

    def timeline(self, workload: WorkloadSpec, **engine: Any) -> Timeline:
        self.of_split(workload, **engine)
        return self.split.timeline()


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    model = changed(request.param)
    shared = [cell(model, decode(), **FUSED, packed_dense=lean) for lean in (False, True)]
    split = [split_cell(model, decode(), packed_dense=lean) for lean in (False, True)]
    pair = Pair(model, engine_for(*shared), engine_for(*split, cpus=CPUS))
    yield pair
    pair.split.close()


@pytest.mark.parametrize(
    ("feature", "n", "lean"),
    covering(
        product(("deferral", "skipping"), range(TOP_K + 1), (False, True)),
        lambda feature, n, lean: ((feature, n), (feature, lean)),
    ),
)
def test_decode_gives_the_same_bits(pair: Pair, lean: bool, feature: str, n: int) -> None:
    workload = decode(batch=3, shortest=6)
    engine: dict[str, Any] = {"packed_dense": lean, feature: n}
    assert all(map(torch.equal, pair.of_split(workload, **engine), pair.of_shared(workload, **engine)))


@PACKED_DENSE
@pytest.mark.parametrize("engine", [{}, {"deferral": 1, "defer_prefill": True}], ids=["plain", "deferred"])
def test_prefill_gives_the_same_bits(pair: Pair, lean: bool, engine: dict[str, Any]) -> None:
    for workload in (prefill(batch=2), prefill(batch=2, chunk=5)):
        seen = pair.of_split(workload, packed_dense=lean, **engine)
        assert all(map(torch.equal, seen, pair.of_shared(workload, packed_dense=lean, **engine)))


@PACKED_DENSE
def test_observing_gives_the_same_bits(pair: Pair, lean: bool) -> None:
    pair.of_split(decode(batch=2), packed_dense=lean, deferral=1)
    replayed = pair.split.logits().copy()
    seen = pair.split.observe()
    assert (pair.split.logits() == replayed).all()
    assert len(seen) == 2 * moe_layers(pair) - 1  # the last layer defers nothing
    for observation in seen:
        truth = pair.split.reference(observation)
        assert abs(observation.output - truth).max() < 0.02 * abs(truth).max()


def moe_layers(pair: Pair) -> int:
    return pair.model.shape.moe_layers


@PACKED_DENSE
def test_counters_of_both_roles_move(pair: Pair, lean: bool) -> None:
    pair.split.configure(pair.cell(decode(), packed_dense=lean))
    before = dict(pair.split.counters())
    run(pair.split, 3)
    after = pair.split.counters()
    assert all(after[name] > before[name] for name in ("host_busy_ns", "device_wait_ns", VECTOR.counter))
    assert "host_busy_ns" not in pair.shared.counters()


def spans(timeline: Timeline, resource: str, *kinds: str) -> list[Span]:
    return [one for one in timeline.spans if one.resource == resource and (not kinds or one.kind in kinds)]


def first(timeline: Timeline, resource: str, kind: str, layer: int) -> Span:
    return next(one for one in spans(timeline, resource, kind) if one.layer == layer)


@PACKED_DENSE
@pytest.mark.parametrize("deferral", [0, 1])
def test_spans_lie_in_the_step_one_after_the_other(pair: Pair, lean: bool, deferral: int) -> None:
    timeline = pair.timeline(decode(batch=2), packed_dense=lean, deferral=deferral)
    assert timeline.title == f"{VECTOR.mark}{'+l' if lean else ''}{' deferral=1' if deferral else ''}"
    for resource in ("host", "device"):
        own = spans(timeline, resource)
        assert own
        assert all(0 <= one.begin_s <= one.end_s <= timeline.step_s for one in own)
        assert all(one.end_s <= other.begin_s for one, other in pairwise(own))


@PACKED_DENSE
def test_every_moe_layer_is_one_job_which_is_awaited_there(pair: Pair, lean: bool) -> None:
    timeline = pair.timeline(decode(batch=2), packed_dense=lean)
    moe = list(range(LAYERS - moe_layers(pair), LAYERS))
    jobs = spans(timeline, "host")
    assert [(job.kind, job.layer) for job in jobs] == [("experts", layer) for layer in moe]
    assert [wait.layer for wait in spans(timeline, "device", "wait")] == moe
    for job, wait in zip(jobs, spans(timeline, "device", "wait"), strict=True):
        assert job.end_s <= wait.end_s


@PACKED_DENSE
def test_experts_are_submitted_before_the_shared_expert_runs(pair: Pair, lean: bool) -> None:
    timeline = pair.timeline(decode(batch=2), packed_dense=lean)
    if pair.model.name == "mixtral":
        assert not spans(timeline, "device", "shared")
        return
    for job in spans(timeline, "host"):
        assert job.layer is not None
        submitted = first(timeline, "device", "submit", job.layer)
        shared, wait = (first(timeline, "device", kind, job.layer) for kind in ("shared", "wait"))
        assert submitted.begin_s <= job.begin_s
        assert submitted.end_s <= shared.begin_s
        assert shared.end_s <= wait.begin_s


@PACKED_DENSE
def test_deferred_experts_are_awaited_in_the_next_layer(pair: Pair, lean: bool) -> None:
    timeline = pair.timeline(decode(batch=2), packed_dense=lean, deferral=1)
    moe = list(range(LAYERS - moe_layers(pair), LAYERS))
    jobs = [(job.kind, job.layer) for job in spans(timeline, "host")]
    assert jobs == [(kind, layer) for layer in moe[:-1] for kind in ("experts", "deferred")] + [("experts", moe[-1])]
    # A wait bears the layer that the experts are of: on time in their layer, deferred after those of the next one.
    waits = [wait.layer for wait in spans(timeline, "device", "wait")]
    expected = [layer for here in moe for layer in (here, here - 1) if layer >= moe[0]]
    assert unrepeated(waits) == unrepeated(expected)


def unrepeated(layers: list[int | None]) -> list[int | None]:
    """Waits that follow each other at once for the same layer are one span."""
    return [layer for number, layer in enumerate(layers) if number == 0 or layers[number - 1] != layer]


class Outstanding:
    """Follows which calls have been submitted and not waited for, and the most of them there were."""

    def __init__(self) -> None:
        self.now: list[int] = []
        self.most = 0
        self.order: list[tuple[str, int]] = []

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        start = FusedExperts.start

        def watched(experts: FusedExperts, hidden: Tensor, routing: Any) -> Any:
            layer = experts._layer
            self.now.append(layer)
            self.most = max(self.most, len(self.now))
            self.order.append(("submit", layer))
            fetch = start(experts, hidden, routing)

            def fetched() -> Tensor:
                self.order.append(("wait", layer))
                self.now.remove(layer)
                return fetch()

            return fetched

        monkeypatch.setattr(FusedExperts, "start", watched)


def test_at_most_three_jobs_are_outstanding_and_none_is_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's own two, and until its on-time experts are waited for the deferred ones of the layer before."""
    followed = Outstanding()
    pair.split.configure(pair.cell(decode(batch=2), deferral=1))
    followed.patch(monkeypatch)
    pair.split.step()
    assert followed.most == 3
    assert followed.now == []
    layers = range(LAYERS - moe_layers(pair), LAYERS)
    expected = []
    for layer in layers:
        expected += [("submit", layer)] * (1 if layer == layers[-1] else 2)
        expected += [("wait", layer)] + ([("wait", layer - 1)] if layer > layers[0] else [])
    assert followed.order == expected


def test_without_deferral_one_job_is_outstanding(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Outstanding()
    pair.split.configure(pair.cell(decode(batch=2)))
    followed.patch(monkeypatch)
    pair.split.step()
    assert (followed.most, followed.now) == (1, [])


def test_the_device_role_has_its_threads_to_itself(pair: Pair) -> None:
    pair.split.configure(pair.cell(decode()))
    host = pair.split._components.host
    assert host is not None
    assert host.team.threads == 1
    assert torch.get_num_threads() == 1
