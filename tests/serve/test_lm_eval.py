"""lm-eval's `local-completions` against a server of the engine, and the engine as `eval` asks it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("tenacity", reason="the packages of lm-eval[api] are not installed")
pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench.eval.tasks.nano import questions
from ktbench.serve.tokens import TextTokens
from tests.eval.lm.checkpoints import Checkpoint, cell_of, engine_lm, replies, shipped
from tests.serve.fake import FakeEngine, Server, serving
from tests.serve.real import open_real

ROUNDING = 0.1  # nats of a token, whose passes differ in how bf16 is rounded


def swapped(text: str) -> str:
    *words, last, end = text.split(" ")
    return " ".join([*words, end, last])


ASKED = [(one.prompt, one.answer) for one in questions(2) if one.task in ("repeat", "lookup", "cipher")]
# Multiple choice: the answer, the same with its last two words swapped, and the answer to another question.
SORTED = [one for one in questions(9) if one.task == "sort"]
CHOICES = [
    (one.prompt, choice)
    for one, other in pairwise([*SORTED, SORTED[0]])
    for choice in (one.answer, swapped(one.answer), other.answer)
]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return shipped()


@pytest.fixture(scope="module")
def served(checkpoint: Checkpoint) -> Iterator[Server]:
    features = {"batching": True, "chunked_prefill": True, "prefix_cache": True}
    tokens = TextTokens.open(str(checkpoint.folder))
    waiting = FakeEngine(most_waiting=64)
    vocab = checkpoint.model.shape.vocab
    with serving(tokens, waiting, real=lambda: open_real(checkpoint, **features), vocab=vocab) as found:
        yield found


@pytest.fixture(scope="module")
def theirs(served: Server, checkpoint: Checkpoint) -> Any:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        model="nano",
        base_url=f"{served.url}/completions",
        tokenizer=str(checkpoint.folder),
        tokenizer_backend="huggingface",
        add_bos_token=True,  # as the tokenizer itself does
        max_retries=1,
        batch_size=4,
    )


@pytest.fixture(scope="module")
def ours(checkpoint: Checkpoint) -> Any:
    return engine_lm(checkpoint, cell_of(checkpoint), max_length=256)


def test_likelihoods_are_those_of_eval(theirs: Any, ours: Any) -> None:
    found = zip(ASKED, replies(theirs, "loglikelihood", ASKED), replies(ours, "loglikelihood", ASKED), strict=True)
    for (_, answer), (theirs_sum, theirs_greedy), (sum_, greedy) in found:
        assert theirs_sum == pytest.approx(sum_, abs=ROUNDING * len(answer))
        assert theirs_greedy == greedy


def test_choices_are_those_of_lm_evals_own_model(theirs: Any, checkpoint: Checkpoint) -> None:
    """The token that ends an answer has its entry, so that the client, which drops the last, drops none of a choice."""
    from lm_eval.models.huggingface import HFLM

    hf = HFLM(pretrained=str(checkpoint.folder), device="cpu", dtype="bfloat16", batch_size=9, add_bos_token=True)
    found, wanted = (replies(one, "loglikelihood", CHOICES) for one in (theirs, hf))
    for (_, choice), (sum_, _), (expected, _) in zip(CHOICES, found, wanted, strict=True):
        assert sum_ == pytest.approx(expected, abs=ROUNDING * len(choice))
    for at in range(0, len(CHOICES), 3):
        best, expected_best = (max(range(3), key=lambda i: each[at + i][0]) for each in (found, wanted))
        assert best == expected_best == 0


def test_answers_and_so_scores_are_those_of_eval(theirs: Any, ours: Any) -> None:
    arguments = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False, "temperature": 0.0}
    asked = [(prompt, dict(arguments)) for prompt, _ in ASKED]
    wanted = [str(one) for one in replies(ours, "generate_until", [(prompt, dict(arguments)) for prompt, _ in ASKED])]
    got = replies(theirs, "generate_until", asked)
    assert got == wanted
