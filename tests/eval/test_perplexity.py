"""Perplexity of texts, held against lm-eval's own count."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ktbench.eval.evaluate import measure_perplexity
from ktbench.eval.tasks.harness import TextDocument

model = pytest.importorskip("lm_eval.api.model")
metrics = pytest.importorskip("lm_eval.api.metrics")
PAGES = (" = One = \n \n Some 1 @,@ 000 words , twice . \n", " = Two = \n \n It 's ünlike the first @-@ rate one . \n")
DOCUMENTS = [TextDocument(name=f"wikitext2/{index:03d}", text=page) for index, page in enumerate(PAGES)]
NATS_A_LETTER = 0.5


class FakeLM(model.TemplateLM):  # type: ignore[misc, name-defined]
    """Every letter is a token and costs the same; longer texts than 16 letters go through it in windows."""

    def __init__(self, nats_a_letter: float = NATS_A_LETTER) -> None:
        super().__init__()
        self.nats_a_letter = nats_a_letter
        self.requests: list[Any] = []

    @property
    def eot_token_id(self) -> int:
        return 0

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        return [ord(letter) for letter in string]

    def _loglikelihood_tokens(self, requests: Any, **options: Any) -> Any:
        raise NotImplementedError

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        self.requests += requests
        return [-self.nats_a_letter * len(self.tok_encode(*request.args)) for request in requests]


def test_the_model_is_asked_for_the_texts_of_lm_eval() -> None:
    lm = FakeLM()
    list(measure_perplexity(lm, DOCUMENTS))
    assert [request.args for request in lm.requests] == [
        (" = One =\n\nSome 1,000 words, twice.\n",),
        (" = Two =\n\nIt's ünlike the first-rate one.\n",),
    ]
    assert {request.request_type for request in lm.requests} == {"loglikelihood_rolling"}


def test_weighted_means_are_the_perplexities_of_lm_eval() -> None:
    """Words are split at blanks, bytes counted in the pages as they stand; the means are lm-eval's own."""
    lm = FakeLM()
    answers = list(measure_perplexity(lm, DOCUMENTS))
    lengths = [len(request.args[0]) for request in lm.requests]
    counts = {
        "nll_nats": lengths,
        "nll_nats_per_word": [len(re.split(r"\s+", page)) for page in PAGES],
        "nll_nats_per_byte": [len(page.encode()) for page in PAGES],
    }
    for metric, expected in counts.items():
        values, weights = np.array([(one.value, one.weight) for one in answers if one.metric == metric]).T
        assert weights.tolist() == expected
        items = [(-NATS_A_LETTER * length, count) for length, count in zip(lengths, expected, strict=True)]
        mean = values @ weights / weights.sum()
        assert math.exp(mean) == pytest.approx(metrics.weighted_perplexity(items))
        assert mean / math.log(2) == pytest.approx(metrics.bits_per_byte(items))
    assert [one.question for one in answers] == ["wikitext2/000"] * 3 + ["wikitext2/001"] * 3
    assert {one.value for one in answers if one.metric == "nll_nats"} == {NATS_A_LETTER}


def test_a_likelihood_that_is_not_finite_has_no_value() -> None:
    answers = list(measure_perplexity(FakeLM(math.inf), DOCUMENTS[:1]))
    assert [(one.value, one.why) for one in answers] == [(None, "its log-likelihood is not finite")] * 3
