"""Log-probabilities of prompts, in whatever parts these are computed, against one pass of the generator."""

from __future__ import annotations

import pytest

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

import torch

from ktbench.engine.generate import open_generator
from ktbench.engine.protocol import HostRole
from ktbench.engine.serving.engine import BatchEngine, open_serving
from ktbench.engine.serving.requests import ServeRequest, TokenEvent
from ktbench.spec.engine import ServingSpec
from tests.eval.lm.checkpoints import Checkpoint, cell_of, written

ROUNDING = 0.15  # nats: passes differ in how bf16 is rounded
PROMPT = tuple(b"the quick brown fox jumps over the lazy dog")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return written("qwen3_moe", tmp_path_factory.mktemp("qwen3_moe"))


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint) -> list[float]:
    generator = open_generator([cell_of(checkpoint)], HostRole(cores=1))
    generator.use(cell_of(checkpoint))
    (logits,) = generator.passed([PROMPT])
    every = torch.log_softmax(logits, dim=-1)
    return [float(every[at, token]) for at, token in enumerate(PROMPT[1:])]


def answered(engine: BatchEngine, *requests: ServeRequest) -> dict[str, list[TokenEvent]]:
    found: dict[str, list[TokenEvent]] = {one.key: [] for one in requests}
    for one in requests:
        engine.submit(one)
    while engine.state.running or engine.state.waiting:
        for event in engine.step():
            found[event.key].append(event)
    return found


def scored(key: str) -> ServeRequest:
    return ServeRequest(key=key, prompt=PROMPT, max_new=2, logprobs=2, prompt_logprobs=True)


def plain(key: str) -> ServeRequest:
    return ServeRequest(key=key, prompt=PROMPT, max_new=3)


@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize("features", [{}, {"batching": True, "chunked_prefill": True, "prefix_cache": True}])
def test_a_prompt_is_scored_in_any_parts(
    checkpoint: Checkpoint, expected: list[float], chunk: int, features: dict[str, bool]
) -> None:
    spec = cell_of(checkpoint, serving=ServingSpec(chunk_tokens=chunk, cache_tokens=1024), **features)
    engine = open_serving(spec, HostRole(cores=1))
    answered(engine, plain("before"))  # leaves its pages in the prefix cache
    found = answered(engine, plain("a"), scored("b"), plain("c"))
    first, *others = found["b"]
    assert [one for one, _ in first.prompt_logprobs] == pytest.approx(expected, abs=ROUNDING)
    for logprob, top in first.prompt_logprobs:
        assert len(top) == 2
        assert top[0][1] >= max(top[1][1], logprob)
    assert first.cached_tokens == 0
    assert not any(one.prompt_logprobs for one in (*others, *found["a"], *found["c"]))
    tokens = [[one.token for one in found[key]] for key in "abc"]
    assert tokens[0] == tokens[2]
    engine.close()
