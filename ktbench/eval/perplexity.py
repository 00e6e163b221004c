"""Perplexity of whole texts, counted as lm-eval's task `wikitext` counts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from ktbench.eval.asking import Answer
from ktbench.eval.texts import Document

if TYPE_CHECKING:
    from lm_eval.api.model import TemplateLM

_NOT_FINITE = "its log-likelihood is not finite"


def measure_perplexity(lm: TemplateLM, documents: Sequence[Document]) -> Iterator[Answer]:
    """Three answers to each document: `nll_nats` a token, `nll_nats_per_word` and `nll_nats_per_byte`.

    Each is weighted by the tokens, words and bytes that it is a mean over, so that exp(Σ wv / Σ w) over documents is
    perplexity, word_perplexity and byte_perplexity, and bits_per_byte is the latter's logarithm to base 2. Words and
    bytes are those of the text as it stands in the file, tokens those of the text that lm-eval makes of it. Texts
    longer than the model's context go through it in windows (`loglikelihood_rolling`).
    """
    from lm_eval.api.instance import Instance
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    asked = [wikitext_detokenizer({"page": document.text}) for document in documents]
    requests = [
        Instance(request_type="loglikelihood_rolling", doc={"page": document.text}, arguments=(text,), idx=index)
        for index, (document, text) in enumerate(zip(documents, asked, strict=True))
    ]
    for document, text, nats in zip(documents, asked, lm.loglikelihood_rolling(requests), strict=True):
        yield from _answers(document, len(lm.tok_encode(text)), float(nats))


def _answers(document: Document, tokens: int, loglikelihood_nats: float) -> Iterator[Answer]:
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results

    results = process_results({"page": document.text}, (loglikelihood_nats,))
    counts = {
        "nll_nats": tokens,
        "nll_nats_per_word": results["word_perplexity"][1],
        "nll_nats_per_byte": results["byte_perplexity"][1],
    }
    known = isfinite(loglikelihood_nats)
    for metric, count in counts.items():
        value = -loglikelihood_nats / count if known else None
        why = "" if known else _NOT_FINITE
        yield Answer(question=document.name, metric=metric, value=value, weight=float(count), why=why)
