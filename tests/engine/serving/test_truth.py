"""Whoever shares a step and wherever keys come from: a request gets what it gets alone, as `Generator` computes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from ktbench.engine.components import EngineComponents
from ktbench.engine.generate import Generator
from ktbench.engine.serving.requests import Sampling, ServeRequest
from ktbench.engine.serving.sampling import SampledAnswer, TokenChooser
from ktbench.spec.run_spec import ModelSpec
from tests.drawing import covering
from tests.engine.engines import FUSED, TOLERANCE, cell, needs_vector, saved
from tests.engine.families.zoo import VOCAB, tiny
from tests.engine.serving.serving import answers, drawn, finished, loaded, opened, submit
from tests.engine.tiny import decode

pytestmark = needs_vector()

LENGTHS = (9, 40, 1, 17)
ARMS: dict[str, dict[str, Any]] = {"base": {}, "lean": FUSED | {"packed_dense": True}}
NEW = 14
TIGHT = {"cache_tokens": 68}  # less than what runs at once needs
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "static": ({"static_batch": 3}, {}),
    "batching": ({"batching": True}, {}),
    "chunked": ({"batching": True, "chunked_prefill": True}, {}),
    "preempted": ({"batching": True, "chunked_prefill": True}, TIGHT),
    "cached": ({"batching": True, "chunked_prefill": True, "prefix_cache": True}, {}),
    "cached in memory": ({"batching": True, "prefix_cache": True}, TIGHT | {"ram_bytes": 1 << 20}),
}


NAMES = ("qwen3_moe", "gpt_oss", "deepseek_v3")


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return saved(_without_near_ties(tiny(request.param)), folder)


def _without_near_ties(model: ModelSpec) -> ModelSpec:
    """Routers of latent attention choose all experts: absorbed and expanded keys round differently, and would flip."""
    config = model.config
    if "kv_lora_rank" not in config:
        return model
    chosen = {"num_experts_per_tok": config["n_routed_experts"], "n_group": 1, "topk_group": 1}
    return replace(model, config=config | chosen)


@pytest.fixture(scope="module", params=ARMS)
def arm(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ARMS[request.param]


@pytest.fixture(scope="module")
def held(model: ModelSpec, arm: dict[str, Any]) -> EngineComponents:
    """Engines of all ways run on the same weights, one after the other, as those of a worker do."""
    return loaded(model, **arm)


@contextmanager
def equal_rows(arm: dict[str, Any]) -> Iterator[None]:
    """Has PyTorch, which multiplies in the base, compute a row alike whatever rows are beside it.

    oneDNN does not promise that: where there is AMX, it multiplies few rows by AVX-512 and more by AMX, and the two
    round differently. What our own kernels multiply is equal with oneDNN, too.
    """
    with pytest.MonkeyPatch.context() as patched:
        if arm == ARMS["base"]:
            patched.setattr(torch.backends.mkldnn, "enabled", False)
        yield


@pytest.fixture(scope="module")
def alone(model: ModelSpec, arm: dict[str, Any], held: EngineComponents) -> list[list[int | None]]:
    with equal_rows(arm), closing(opened(model, None, held, **arm)) as engine:
        return answers(engine, drawn(LENGTHS), max_new=NEW)


def test_a_request_gets_what_the_generator_computes(
    model: ModelSpec, arm: dict[str, Any], held: EngineComponents
) -> None:
    """Of every token all probabilities; the likeliest, where it is ahead by more than the tolerance, is chosen."""
    with closing(opened(model, None, held, **arm)) as engine:
        submit(engine, drawn(LENGTHS), NEW, logprobs=VOCAB)
        events = finished(engine)
    generator = Generator(model, held)
    generator.use(cell(model, decode(), **arm))
    for i, prompt in enumerate(drawn(LENGTHS)):
        given = [one.token for one in events[str(i)] if one.token is not None]
        assert len(given) == NEW and events[str(i)][-1].finish == "length"
        truth = torch.log_softmax(generator.forced([prompt], [given])[0], dim=-1)
        for seen, row in zip(events[str(i)], truth, strict=True):
            assert [logprob for _, logprob in seen.top] == sorted((one for _, one in seen.top), reverse=True)
            every = torch.tensor([logprob for _, logprob in sorted(seen.top)])
            assert float((every - row).norm() / row.norm()) < TOLERANCE
            assert (seen.token, seen.logprob) in seen.top and seen.logprob == seen.top[0][1]
            best, second = row.topk(2)[0].tolist()
            if best - second > 0.1:
                assert seen.token == int(row.argmax())


@pytest.mark.parametrize(
    ("model", "arm", "way"),
    covering(product(NAMES, ARMS, WAYS), lambda model, arm, way: ((model, way), (arm, way))),
    indirect=["model", "arm"],
    scope="module",
)
def test_who_shares_a_step_changes_nothing(
    model: ModelSpec, arm: dict[str, Any], held: EngineComponents, alone: list[list[int | None]], way: str
) -> None:
    engine_features, limits = WAYS[way]
    with equal_rows(arm), closing(opened(model, limits, held, **arm, **engine_features)) as engine:
        for _ in range(2):  # the second time with what the first left behind
            assert answers(engine, drawn(LENGTHS), max_new=NEW) == alone
        counted = engine.counters()
        assert (counted["preempted"] > 0) == (limits.get("cache_tokens") == TIGHT["cache_tokens"])
        assert (counted["cached_prompt_tokens"] > 0) == ("cached" in way)
        assert (counted["ram_pages_read"] > 0) == (way == "cached in memory")
        assert engine.notes() == ()


def test_cancelled_neighbours_change_nothing(
    model: ModelSpec, arm: dict[str, Any], held: EngineComponents, alone: list[list[int | None]]
) -> None:
    features = {"batching": True, "chunked_prefill": True, "prefix_cache": True}
    with equal_rows(arm), closing(opened(model, None, held, **arm, **features)) as engine:
        submit(engine, drawn(LENGTHS), NEW)
        for i, prompt in enumerate(drawn((30, 5, 50), seed=2)):
            engine.submit(ServeRequest(key=f"gone {i}", prompt=prompt, max_new=9))
        seen: dict[str, list[int | None]] = {}
        for number in range(4):
            for event in engine.step():
                seen.setdefault(event.key, []).append(event.token)
            if number < 3:
                engine.cancel(f"gone {number}")
        for key, events in finished(engine).items():
            seen.setdefault(key, []).extend(one.token for one in events)
        assert [seen[str(i)] for i in range(len(LENGTHS))] == alone


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.8, top_p=0.9, seed=5), Sampling(repetition_penalty=1.3)])
def test_drawn_tokens_depend_on_the_request_alone(model: ModelSpec, sampling: Sampling) -> None:
    """On its prompt, seed and logits: others are in its steps, and it is preempted. Logits may round as others sit."""
    prompts = drawn(LENGTHS)
    with closing(opened(model, TIGHT, batching=True, chunked_prefill=True)) as engine:
        submit(engine, prompts, NEW, sampling=sampling, logits=True)
        events = finished(engine)
        assert engine.counters()["preempted"]
    for i, prompt in enumerate(prompts):
        alone = SampledAnswer(sampling, prompt)
        for one in events[str(i)]:
            assert one.logits is not None
            assert TokenChooser().choose(torch.from_numpy(one.logits)[None], [alone]) == [one.token]
