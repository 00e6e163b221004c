"""Prompts that are put through in parts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from ktbench.engine.routing import PassRouting
from ktbench.spec.run_spec import WorkloadSpec
from tests.drawing import covering
from tests.engine.engines import FUSED, TOLERANCE, cell, changed, engine_for, logits, needs_vector, relative
from tests.engine.families.plain import build
from tests.engine.families.zoo import ALL, TOP_K
from tests.engine.prompts import alone, together
from tests.engine.tiny import decode, prefill

pytestmark = needs_vector()

CHUNKS = [1, 5, 13, 40]  # of prompts of 13 tokens
ENGINES = [
    pytest.param(engine, id=name)
    for name, engine in (("base", {}), ("fused", FUSED), ("lean", FUSED | {"packed_dense": True}))
]
EITHER = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.parametrize(
    ("name", "engine"), covering(product(("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss"), ENGINES))
)
def test_chunks_give_the_logits_of_the_whole_prompt(name: str, engine: dict[str, Any]) -> None:
    model = changed(name, **ALL, **({"sliding_window": 8} if name == "mixtral" else {}))
    system = engine_for(cell(model, prefill(), **engine))
    truth = together(build(model), prefill(batch=2))
    for chunk in CHUNKS:
        assert relative(logits(system, cell(model, prefill(batch=2, chunk=chunk), **engine)), truth) < TOLERANCE


@EITHER
def test_padded_prompts_may_be_chunked(engine: dict[str, Any]) -> None:
    model, workload = changed("qwen3_moe", **ALL), {"batch": 3, "shortest": 4}
    system, network = engine_for(cell(model, prefill(), **engine)), build(model)
    for make in (prefill, decode):
        seen = logits(system, cell(model, make(**workload, chunk=3), **engine))
        assert relative(seen, alone(network, make(**workload))) < TOLERANCE


@EITHER
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_decode_at_depth_does_not_depend_on_how_the_prompt_went_through(name: str, engine: dict[str, Any]) -> None:
    model = changed(name, **ALL)
    system, network = engine_for(cell(model, decode(), **engine)), build(model)
    truth = together(network, decode(batch=2, prompt=29))
    for chunk in (None, 4, 29):
        seen = logits(system, cell(model, decode(batch=2, prompt=29, chunk=chunk), **engine))
        assert relative(seen, truth) < TOLERANCE


def routed(workload: WorkloadSpec, **engine: Any) -> tuple[PassRouting, ...]:
    model = changed("qwen3_moe")
    system = engine_for(cell(model, workload, **engine))
    system.configure(cell(model, workload, **engine))
    return system.recorded_routing()


@pytest.mark.parametrize("routing", ["model", "zipf"])
def test_every_chunk_has_a_routing_of_its_own_tokens(routing: str) -> None:
    passes = routed(prefill(batch=2, chunk=5, routing=routing))
    assert [[layer.ids.shape for layer in one_pass] for one_pass in passes] == [
        [(2 * tokens, TOP_K)] * 4 for _ in range(2) for tokens in (5, 5, 3)
    ]


def test_drawn_routing_is_that_of_the_whole_prompt_token_by_token() -> None:
    whole = routed(prefill(batch=2, steps=1, routing="zipf"))[0]
    parts = routed(prefill(batch=2, steps=1, chunk=5, routing="zipf"))
    for layer, expected in enumerate(whole):
        for name in ("ids", "gates"):
            joined = torch.cat([getattr(part[layer], name).view(2, -1, TOP_K) for part in parts], dim=1)
            assert torch.equal(joined.view(-1, TOP_K), getattr(expected, name))


def test_the_recorded_routing_is_replayed_chunk_by_chunk() -> None:
    """Every call of a step gets the routing that was recorded for its chunk."""
    model, workload = changed("qwen3_moe"), prefill(batch=2, chunk=5)
    system = engine_for(cell(model, workload))
    logits(system, cell(model, workload))
    recorded = system.recorded_routing()[3:]
    observed = [seen.ids for seen in system.observe()]
    expected = [layer.ids for one_pass in recorded for layer in one_pass]
    assert len(observed) == len(expected) == 3 * 4
    for seen, all_rows in zip(observed, expected, strict=True):
        rows = {tuple(row) for row in all_rows.tolist()}
        assert {tuple(row) for row in seen.tolist()} <= rows
        assert len(seen) == min(12, len(all_rows))


def test_each_chunk_reads_the_weights_once_more() -> None:
    """With all experts active in every chunk: three chunks, three times the bytes and the output head's work."""
    model = changed("qwen3_moe", **ALL)
    works = []
    for chunk in (None, 5):
        workload = prefill(batch=2, chunk=chunk)
        system = engine_for(cell(model, workload))
        system.configure(cell(model, workload))
        works.append(system.work())
    whole, chunked = works
    head = model.shape.vocab * model.shape.hidden
    assert chunked.tokens == whole.tokens == 26
    assert chunked.weight_bytes == 3 * whole.weight_bytes
    assert chunked.flops - whole.flops == 2 * 2 * 2 * head


def test_a_longer_chunk_than_the_prompt_is_the_prompt() -> None:
    model = changed("qwen3_moe")
    system = engine_for(cell(model, decode()))
    same = [logits(system, cell(model, decode(batch=2, chunk=chunk))) for chunk in (11, 100)]
    assert all(map(torch.equal, *same))
