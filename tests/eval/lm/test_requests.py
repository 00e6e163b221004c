"""What the model makes of requests: shared passes, samples, answers kept, work counted, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ktbench.engine.serving.requests import Sampling
from ktbench.eval.lm.cache import AnswerCache, identity_of
from ktbench.eval.lm.model import EngineLM, Tally
from tests.engine.engines import FUSED, needs_vector
from tests.eval.lm.checkpoints import Checkpoint, cell_of, engine_lm, replies

pytestmark = needs_vector()

CONTEXT = "question: what is it? answer:"
GENERATED = [(CONTEXT, {"until": ["\n"], "max_gen_toks": 5}), ("the", {"until": [], "max_gen_toks": 4})]
PAIRS = [(CONTEXT, one) for one in "abcd"] + [("the", " fox")]


@pytest.fixture(scope="module")
def checkpoint(checkpoints: dict[str, Checkpoint]) -> Checkpoint:
    return checkpoints["deepseek_v3"]


@pytest.fixture(scope="module")
def opened(checkpoint: Checkpoint) -> Iterator[EngineLM]:
    lm = engine_lm(
        checkpoint,
        *(cell_of(checkpoint, **one) for one in (FUSED, FUSED | {"packed_dense": True})),
    )
    yield lm
    lm.generator.close()


@pytest.fixture
def lm(opened: EngineLM, checkpoint: Checkpoint) -> EngineLM:
    opened.use(cell_of(checkpoint, **FUSED))
    return opened


def test_continuations_that_differ_in_the_last_token_share_a_pass(
    lm: EngineLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    passed = lm.generator.passed
    monkeypatch.setattr(lm.generator, "passed", lambda rows, last: (passes.append(len(rows)), passed(rows, last))[1])
    together = replies(lm, "loglikelihood", PAIRS)
    assert passes == [2]
    assert lm.tally.prompt_tokens == sum(len(lm.tok_encode(one)) - 1 for one in (CONTEXT + "a", "the fox"))
    alone = [replies(lm, "loglikelihood", [pair])[0] for pair in PAIRS]
    for (one, _), (expected, _) in zip(together, alone, strict=True):
        assert one == pytest.approx(expected, rel=2e-2)


def test_answers_are_kept(lm: EngineLM, checkpoint: Checkpoint, tmp_path: Path) -> None:
    spec = cell_of(checkpoint, **FUSED)
    identity = identity_of(spec, code_id="c", tokenizer=checkpoint.tokenizer)

    def answers() -> tuple[list[Any], list[Any]]:
        lm.use(spec, AnswerCache(tmp_path, identity))
        return replies(lm, "generate_until", GENERATED), replies(lm, "loglikelihood", PAIRS)

    first = answers()
    tokens = [one.tokens for one in first[0]]
    assert (lm.tally.requests, lm.tally.cached, lm.tally.new_tokens) == (7, 0, sum(tokens))
    again = answers()
    assert again == first
    assert [one.tokens for one in again[0]] == tokens
    assert (lm.tally.requests, lm.tally.cached, lm.tally.prompt_tokens, lm.tally.new_tokens) == (7, 7, 0, 0)
    lm.use(spec)
    assert replies(lm, "generate_until", GENERATED) == first[0]
    assert (lm.tally.requests, lm.tally.cached) == (len(GENERATED), 0)


def test_an_interrupted_run_resumes(
    lm: EngineLM, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch is on disk before the next."""
    spec, requests = cell_of(checkpoint, **FUSED), [(f"{i} of", {"until": [], "max_gen_toks": 3}) for i in range(7)]
    truth, generate, calls = replies(lm, "generate_until", requests), lm.generator.generate, []

    def interrupted(*given: Any, **options: Any) -> Any:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(given)
        return generate(*given, **options)

    monkeypatch.setattr(lm.generator, "generate", interrupted)
    monkeypatch.setattr(lm, "batch_size", 2)
    lm.use(spec, AnswerCache(tmp_path, "one"))
    with pytest.raises(KeyboardInterrupt):
        replies(lm, "generate_until", requests)
    monkeypatch.setattr(lm.generator, "generate", generate)
    lm.use(spec, AnswerCache(tmp_path, "one"))
    assert [len(one) > 0 for one in replies(lm, "generate_until", requests)] == [len(one) > 0 for one in truth]
    assert (lm.tally.requests, lm.tally.cached) == (7, 4)


def test_samples_of_a_prompt_differ_and_come_again(lm: EngineLM) -> None:
    arguments = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 1.5, "top_p": 0.9}
    requests = [(CONTEXT, arguments)] * 4
    samples = replies(lm, "generate_until", requests)
    assert len(set(samples)) > 1
    assert replies(lm, "generate_until", requests) == samples
    assert replies(lm, "generate_until", [("the", arguments), *requests])[1:][0] == samples[0]
    seeded = [(CONTEXT, arguments | {"seed": seed}) for seed in (1, 2, 1)]
    first, second, again = replies(lm, "generate_until", seeded)
    assert first == again
    assert first != second
    greedy = [(CONTEXT, arguments | {"temperature": 0.0})] * 2
    lm.tally = Tally()
    assert len(set(replies(lm, "generate_until", greedy))) == 1


def test_what_was_cut_off_is_counted(lm: EngineLM, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Answers without room for more tokens and prompts without room for their beginning, also where they are known."""
    short = EngineLM(lm.generator, checkpoint.tokenizer, max_length=24)
    stop = replies(lm, "generate_until", [("the", {"until": [], "max_gen_toks": 4})])[0][1]
    generated = [
        ("the", {"until": [], "max_gen_toks": 4}),
        ("the", {"until": [stop], "max_gen_toks": 4}),
        ("the quick brown fox jumps over", {"until": [stop], "max_gen_toks": 4}),
    ]
    for _ in range(2):
        short.use(cell_of(checkpoint, **FUSED), AnswerCache(tmp_path, "one"))
        sizes = [one.tokens for one in replies(short, "generate_until", generated)]
        assert (short.tally.cut_answers, short.tally.cut_prompts) == (sum(size == 4 for size in sizes), 1)
        assert sizes[0] == 4 > sizes[1]
        replies(short, "loglikelihood", [("the", " fox"), ("the quick brown fox jumps over", " it")])
        assert short.tally.cut_prompts == 2
    replies(short, "loglikelihood_rolling", [("the quick brown fox jumps over the lazy dog",)])
    assert short.tally.cut_prompts == 2


def test_progress_is_reported(checkpoint: Checkpoint, lm: EngineLM) -> None:
    calls: list[tuple[int, int]] = []
    watched = EngineLM(lm.generator, checkpoint.tokenizer, batch=2, progress=lambda done, of: calls.append((done, of)))
    replies(watched, "generate_until", [(str(i), {"until": [], "max_gen_toks": 2}) for i in range(5)])
    assert calls == [(2, 5), (4, 5), (5, 5)]


def test_long_prompts_go_in_smaller_batches(
    checkpoint: Checkpoint, lm: EngineLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of attention over a batch grow with the square of its longest prompt."""
    passed: list[list[int]] = []
    generate, heads, budget = lm.generator.generate, lm.generator.network.config.num_attention_heads, 200

    def noted(prompts: list[list[int]], *given: Any, **options: Any) -> Any:
        passed.append([len(prompt) for prompt in prompts])
        return generate(prompts, *given, **options)

    monkeypatch.setattr(lm.generator, "generate", noted)
    monkeypatch.setattr("ktbench.eval.lm.model._SCORES_BYTES", 12 * heads * budget)
    requests = [("of " * words, {"until": [], "max_gen_toks": 2}) for words in (30, 8, 7, 1, 2, 1, 1)]
    replies(EngineLM(lm.generator, checkpoint.tokenizer, batch=4), "generate_until", requests)
    assert all(len(batch) == 1 or len(batch) * max(batch) ** 2 <= budget for batch in passed)
    assert len(passed[0]) == 1 < len(passed[-1]) <= 4


def test_recorded_steps_answer_like_others(lm: EngineLM, checkpoint: Checkpoint) -> None:
    """Two ways to compute in bf16 differ by roundings, which may make another token of a random model the likeliest."""
    asked = [("the", " quick"), (CONTEXT, "x")]
    plain = [logprob for logprob, _ in replies(lm, "loglikelihood", asked)]
    lm.use(cell_of(checkpoint, **FUSED, packed_dense=True))
    assert [logprob for logprob, _ in replies(lm, "loglikelihood", asked)] == pytest.approx(plain, rel=0.03)
    assert len(replies(lm, "generate_until", GENERATED)) == len(GENERATED)
    assert lm.generator.notes() == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 4}, "generation_kwargs.num_beams=4: allowed are until, max_gen_toks"),
        ({"typical_p": 0.5}, "generation_kwargs.typical_p=0.5"),
        ({"max_gen_toks": 0}, "generation_kwargs.max_gen_toks=0: must be at least 1"),
        ({"max_gen_toks": 512}, "max_gen_toks=512: the model has 512 positions"),
        ({"do_sample": True, "temperature": 1.0, "top_p": 2.0}, "top_p=2.0"),
    ],
)
def test_other_ways_to_generate_are_refused(lm: EngineLM, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replies(lm, "generate_until", [("the", {"until": []} | arguments)])


def test_an_answer_of_logits_that_are_no_numbers_is_none(lm: EngineLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their likeliest token is the first of the vocabulary, which may be one that ends answers."""
    begin, step, spoilt, first = lm.generator._begin, lm.generator._step, {1}, torch.tensor([0])

    def begun(prompts: list[list[int]], room: int) -> Any:
        logits, batch = begin(prompts, room)
        return logits.index_fill(0, torch.tensor([*spoilt], dtype=torch.long), float("nan")), batch

    monkeypatch.setattr(lm.generator, "_begin", begun)
    monkeypatch.setattr(lm.generator, "_step", lambda batch, ids: step(batch, ids).index_fill(1, first, -99))
    texts, samplings = [[5, 6]] * 3, [Sampling()] * 3
    with pytest.raises(ValueError, match="not finite"):
        lm.generator.generate(texts, samplings, room=3, ended=lambda i, tokens: tokens[-1] == 0)
    spoilt.clear()
    assert len(lm.generator.generate(texts, samplings, room=3, ended=lambda i, tokens: tokens[-1] == 0)) == 3


@pytest.mark.parametrize("way", ["generate_until", "loglikelihood", "loglikelihood_rolling"])
def test_tokens_that_the_model_does_not_know_are_refused(
    lm: EngineLM, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """As of a tokenizer to which tokens were added that the model was not made for."""
    vocab = lm.generator.model.shape.vocab
    monkeypatch.setattr(lm._encoder, "_encode", lambda text, special: [vocab] * len(text))
    requests = {"generate_until": GENERATED, "loglikelihood": PAIRS, "loglikelihood_rolling": [("the fox",)]}
    with pytest.raises(ValueError, match=f"token {vocab} of the tokenizer is none of the {vocab}"):
        replies(lm, way, requests[way])


def test_continuations_that_cannot_be_scored(lm: EngineLM) -> None:
    for tokens in ([], [1] * 600):
        with pytest.raises(ValueError, match=f"continuation has {len(tokens)} tokens, allowed are 1 to 512"):
            lm._loglikelihood_tokens([(None, [1, 2], tokens)])
    assert lm._loglikelihood_tokens([(None, [], [5])]) == lm._loglikelihood_tokens([(None, [lm.prefix_token_id], [5])])
