"""Prompts of unequal length: each sequence of a padded batch gets what it gets alone in plain Transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ktbench.spec.run_spec import WorkloadSpec
from tests.engine.engines import FUSED, TOLERANCE, cell, changed, engine_for, logits, needs_vector, relative, stirred
from tests.engine.families.plain import build
from tests.engine.families.zoo import ALL
from tests.engine.prompts import alone, drawn, together
from tests.engine.tiny import decode, prefill

pytestmark = [needs_vector(), pytest.mark.peers]

FORMS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {},
    "qwen2_moe": {},
    "mixtral": {"sliding_window": 8},
    "glm4_moe": {},
    "deepseek_v3": {},
    "gpt_oss": {},
}
EVERY_FORM = pytest.mark.parametrize("name", FORMS)
WORKLOADS = [decode(batch=3, shortest=4), decode(batch=2, shortest=1), prefill(batch=3, shortest=5, steps=1)]


@EVERY_FORM
def test_padded_sequences_get_what_they_get_alone(name: str) -> None:
    model = changed(name, **(FORMS[name] | ALL))
    network = build(model)
    system = engine_for(cell(model, decode()), cell(model, decode(), **FUSED))
    for workload in WORKLOADS:
        truth = alone(network, workload)
        for engine in ({}, FUSED):
            assert relative(logits(system, cell(model, workload, **engine)), truth) < TOLERANCE


@EVERY_FORM
def test_base_pads_as_a_tokenizer_would(name: str) -> None:
    """With the router's own choice, bit for bit."""
    model = changed(name, **FORMS[name])
    network = build(model)
    system = engine_for(cell(model, decode()))
    for workload in WORKLOADS:
        assert all(map(torch.equal, logits(system, cell(model, workload)), together(network, workload)))


def unmasked(network: PreTrainedModel, workload: WorkloadSpec) -> list[torch.Tensor]:
    """A mutant: padding counts as tokens."""
    whole = WorkloadSpec(phase=workload.phase, prompt=workload.prompt, steps=workload.steps, batch=workload.batch)
    return together(network, whole)


@EVERY_FORM
@pytest.mark.parametrize("workload", WORKLOADS[::2], ids=["decode", "prefill"])
def test_the_tolerance_tells_padding_that_is_seen(name: str, workload: WorkloadSpec) -> None:
    network = stirred(build(changed(name, **(FORMS[name] | ALL))))
    wrong, truth = unmasked(network, workload), alone(network, workload)
    for seen, expected in zip(wrong, truth, strict=True):
        assert relative([seen[0]], [expected[0]]) < TOLERANCE  # the longest has none
        assert relative([seen[1:]], [expected[1:]]) > 2 * TOLERANCE


def test_equal_lengths_need_no_mask() -> None:
    model, workload = changed("qwen3_moe"), decode(batch=2, shortest=11)
    assert drawn(256, workload)[1] == [0, 0]
    system = engine_for(cell(model, workload))
    same = logits(system, cell(model, decode(batch=2)))
    assert all(map(torch.equal, logits(system, cell(model, workload)), same))
