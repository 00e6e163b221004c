"""A timed step copies no cache; repeating it untimed gives the same logits, whatever the cache holds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine.decode.step import Forward
from ktbench.engine.protocol import HostRole, System
from ktbench.peers.transformers.system import open_transformers
from ktbench.spec.peers import PeerSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.engine.families.zoo import tiny
from tests.engine.tiny import decode, load, prefill

pytestmark = pytest.mark.peers

FAMILIES = ["qwen3_moe", "qwen3_next", "gpt_oss", "minimax"]  # keys and values, linear attention, windows, both
STEPS = 4
WORKLOADS = {
    "decode": decode(batch=2, steps=STEPS),
    "padded": decode(batch=3, steps=STEPS, shortest=5),
    "prefill": prefill(),
}


def base(model: ModelSpec) -> System:
    return load(model, cores=1)


def transformers(model: ModelSpec) -> System:
    return open_transformers(model, HostRole(cores=1))


def cell(system: str, model: ModelSpec, work: WorkloadSpec) -> RunSpec:
    named: dict[str, Any] = {"system": "transformers", "peer": PeerSpec(tune_s=0)} if system == "transformers" else {}
    return RunSpec(model=model, workload=work, **named)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> ModelSpec:
    return tiny(request.param)


@pytest.fixture(scope="module", params=["ktbench", "transformers"])
def opened(request: pytest.FixtureRequest, model: ModelSpec) -> tuple[str, System]:
    return request.param, base(model) if request.param == "ktbench" else transformers(model)


@contextmanager
def counted_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the calls that copy a cache, or anything, in the order in which they are made."""
    seen: list[str] = []

    def counting(name: str, whole: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            seen.append(name)
            return whole(*args, **named)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((copy, "copy"), (copy, "deepcopy"), (Forward, "snapshot"), (Forward, "restore")):
            patch.setattr(owner, name, counting(name, getattr(owner, name)))
        yield seen


@pytest.mark.parametrize("work", WORKLOADS.values(), ids=WORKLOADS)
def test_a_timed_step_copies_no_cache(
    opened: tuple[str, System], model: ModelSpec, work: WorkloadSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, system = opened
    system.configure(cell(name, model, work))
    with counted_copies(monkeypatch) as copies:
        system.start()
        started = len(copies)
        for _ in range(work.steps):
            system.step()
    assert started > 0  # the counter sees copies: going back to the prompt makes one
    assert copies[started:] == []


@pytest.mark.parametrize("work", WORKLOADS.values(), ids=WORKLOADS)
def test_repeating_a_step_gives_its_logits_and_leaves_no_trace(
    opened: tuple[str, System], model: ModelSpec, work: WorkloadSpec
) -> None:
    name, system = opened
    system.configure(cell(name, model, work))
    timed = [step_logits(system) for _ in range(work.steps)]
    assert not torch.equal(timed[0], timed[1])
    for repeats in (1, 2):
        system.start()
        for before in timed:
            assert torch.equal(step_logits(system), before)
            for _ in range(repeats):
                assert system.observe()
                assert torch.equal(logits(system), before)


def step_logits(system: System) -> Tensor:
    system.step()
    return logits(system)


def logits(system: System) -> Tensor:
    return torch.from_numpy(system.logits().copy())
