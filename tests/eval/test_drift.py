"""Drift against distributions worked out in float64, and the file that keeps those of the unmodified model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ktbench.eval.drift import DriftPlan, divergence_nats, measure_drift
from ktbench.eval.evaluate import GradedAnswer
from ktbench.eval.tasks.harness import TextDocument
from tests.eval.conftest import ByteTokenizer

VOCAB = 128
RANDOM = np.random.default_rng(3)
# Logits [previous token, vocab] of the unmodified model, and what another adds to them.
TABLE = RANDOM.normal(size=(VOCAB, VOCAB)).astype(np.float32)
NOISE = RANDOM.normal(size=(VOCAB, VOCAB)).astype(np.float32)
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom."
DOCUMENTS = [
    TextDocument(name="text", text=TEXT),
    TextDocument(name="short", text="brief"),
    TextDocument(name="sum", text="1+1=", continuation="2\n"),
]
PLAN = DriftPlan(phase="decode", model="abc", vocab=VOCAB, prompt=8, given=6, batch=2)


class Bigrams:
    """Predicts by the token before alone; what the prefill of `forced` predicts is wrong, and must not be taken."""

    max_positions: int | None = None

    def __init__(self, table: np.ndarray) -> None:
        self.table = torch.from_numpy(table)
        self.batches: list[int] = []

    def passed(self, rows: Sequence[Sequence[int]], last: Sequence[int]) -> Iterator[Tensor]:
        self.batches.append(len(rows))
        return (self.table[torch.tensor(row)][-count:] for row, count in zip(rows, last, strict=True))

    def forced(self, prompts: Sequence[Sequence[int]], given: Sequence[Sequence[int]]) -> Tensor:
        self.batches.append(len(prompts))
        assert len({len(one) for one in given}) == 1
        before = torch.tensor([[prompt[-1], *own[:-1]] for prompt, own in zip(prompts, given, strict=True)])
        logits = self.table[before]
        logits[:, 0] *= -1  # the prefill's
        return logits


def drift_of(generator: Bigrams, reference: Path, *, own: bool, plan: DriftPlan = PLAN) -> list[GradedAnswer]:
    return list(measure_drift(generator, ByteTokenizer(), DOCUMENTS, plan=plan, reference=reference, is_reference=own))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def by_hand(tokens: bytes, first: int, other: np.ndarray) -> dict[str, float]:
    """The three metrics of `tokens[first:]`, each predicted by the token before."""
    before, after = list(tokens[first - 1 : -1]), list(tokens[first:])
    log_p, log_q = log_softmax(TABLE[before]), log_softmax(other[before])
    return {
        "kl_nats": (np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean(),
        "top1": (log_p.argmax(axis=1) == log_q.argmax(axis=1)).mean(),
        "nll_nats": -log_q[range(len(after)), after].mean(),
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "references" / "base-decode"
    drift_of(Bigrams(TABLE), path, own=True)
    return path


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_metrics_are_those_worked_out_by_hand(phase: str, scale: float, tmp_path: Path) -> None:
    plan = replace(PLAN, phase=phase)  # type: ignore[arg-type]
    drift_of(Bigrams(TABLE), tmp_path / "kept", own=True, plan=plan)
    other = TABLE + np.float32(scale) * NOISE
    answers = [
        one for one in drift_of(Bigrams(other), tmp_path / "kept", own=False, plan=plan) if one.question != "short"
    ]
    windows = {f"text/{at}": (TEXT[at : at + 14].encode(), 8) for at in range(0, len(TEXT) - 13, 14)}
    windows["sum"] = (b"1+1=2\n", 4)
    assert [one.question for one in answers] == [question for question in windows for _ in range(3)]
    for one in answers:
        tokens, first = windows[one.question]
        assert one.weight == len(tokens) - first
        assert one.value == pytest.approx(by_hand(tokens, first, other)[one.metric], rel=1e-4, abs=1e-9)


def test_the_unmodified_model_agrees_with_itself(reference: Path) -> None:
    for answers in (drift_of(Bigrams(TABLE), reference, own=False), drift_of(Bigrams(TABLE), reference, own=True)):
        assert {one.value for one in answers if one.metric == "kl_nats"} == {0.0, None}
        assert {one.value for one in answers if one.metric == "top1"} == {1.0}


def test_texts_too_short_are_answers_without_a_value(reference: Path) -> None:
    (short,) = [one for one in drift_of(Bigrams(TABLE), reference, own=False) if one.value is None]
    assert (short.question, short.weight, short.why) == ("short", 0.0, "has fewer than the 14 tokens of a window")


def test_the_limit_draws_windows(tmp_path: Path) -> None:
    plan = replace(PLAN, limit=2, seed=1)
    drawn = {one.question for one in drift_of(Bigrams(TABLE), tmp_path / "a", own=True, plan=plan)} - {"short"}
    assert len(drawn) == 2
    assert drawn <= {"sum", *(f"text/{at}" for at in range(0, 78, 14))}


def test_windows_are_of_their_document(tmp_path: Path) -> None:
    answers = drift_of(Bigrams(TABLE), tmp_path / "a", own=True)
    clusters = {one.question: one.cluster for one in answers if one.question != "short"}
    assert clusters == {"sum": "", **{f"text/{at}": "text" for at in range(0, 70, 14)}}


def test_batches_are_small_enough_for_their_logits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for room, expected in ((256 << 20, [2, 2, 2]), (10, [1] * 6)):
        monkeypatch.setattr("ktbench.eval.drift._BATCH_BYTES", room)
        engine = Bigrams(TABLE)
        drift_of(engine, tmp_path / "kept", own=True)
        assert engine.batches == expected


def test_what_is_not_finite_has_no_value(reference: Path, tmp_path: Path) -> None:
    broken = TABLE.copy()
    broken[ord("1"), 0] = broken[ord("="), 0] = np.nan
    answers = {(one.question, one.metric): one for one in drift_of(Bigrams(broken), reference, own=False)}
    assert answers["sum", "kl_nats"].value is answers["sum", "top1"].value is None
    assert answers["sum", "kl_nats"].why == "its logits are not finite"
    assert answers["text/0", "kl_nats"].value == 0.0
    with pytest.raises(ValueError, match="sum: the unmodified model's logits are not finite"):
        drift_of(Bigrams(broken), tmp_path / "kept", own=True)
    assert list(tmp_path.iterdir()) == []


def test_windows_too_long_for_the_model_are_refused(tmp_path: Path) -> None:
    engine = Bigrams(TABLE)
    engine.max_positions = 13
    with pytest.raises(ValueError, match="windows of 14 tokens, the model was made for 13"):
        drift_of(engine, tmp_path / "kept", own=True)


def test_a_file_is_whole_or_not_there(reference: Path, tmp_path: Path) -> None:
    assert [path.name for path in reference.parent.iterdir()] == ["base-decode"]
    begun = measure_drift(
        Bigrams(TABLE), ByteTokenizer(), DOCUMENTS, plan=PLAN, reference=tmp_path / "kept", is_reference=True
    )
    next(begun), next(begun)
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    begun.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no predictions of the unmodified model, which has to be evaluated first"):
        drift_of(Bigrams(TABLE), tmp_path / "kept", own=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": 9, "given": 5}, "predictions of text="),
        ({"seed": 1, "limit": 3}, "predictions of text="),
    ],
)
def test_predictions_of_something_else_are_refused(change: dict[str, object], message: str, reference: Path) -> None:
    with pytest.raises(ValueError, match=message):
        drift_of(Bigrams(TABLE), reference, own=False, plan=replace(PLAN, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"prompt": 1}, {"given": 0}, {"batch": 0}])
def test_a_plan_refuses_what_cannot_be_asked(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"drift\.(prompt|given|batch)=\d: must be at least"):
        replace(PLAN, **change)  # type: ignore[arg-type]


def distributions(seed: int, spread: float, positions: int = 3, tokens: int = 17) -> Tensor:
    draw = np.random.default_rng(seed)
    return torch.from_numpy(spread * draw.normal(size=(positions, tokens)).astype(np.float32)).log_softmax(-1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**16), st.integers(0, 2**16), st.floats(0.01, 300), st.integers(1, 20))
def test_divergence_is_that_of_float64_and_never_negative(one: int, two: int, spread: float, positions: int) -> None:
    log_p, log_q = (distributions(seed, spread, positions) for seed in (one, two))
    expected = (log_p.double().exp() * (log_p.double() - log_q.double())).sum(dim=1)
    found = divergence_nats(log_p, log_q)
    assert (found >= 0).all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert divergence_nats(log_p, log_p).tolist() == [0.0] * positions
    assert (found > 0).all() or torch.equal(log_p, log_q)


def test_divergence_is_exact_where_roundings_are_larger_than_it() -> None:
    """ε on one logit of V alike: ε² (1/V)(1 − 1/V) / 2 to second order, far below what float32 resolves of log p."""
    logits = torch.zeros(1, 50_000, dtype=torch.float64)
    moved = logits.clone()
    moved[0, 7] = 1e-3
    expected = 1e-6 / 50_000 / 2
    found = divergence_nats(logits.log_softmax(-1).float(), moved.log_softmax(-1).float())
    assert float(found) == pytest.approx(expected, rel=0.01)


def test_tokens_that_the_model_does_not_know_are_refused(tmp_path: Path) -> None:
    plan = replace(PLAN, vocab=max(TEXT.encode()))
    with pytest.raises(ValueError, match=f"token {plan.vocab} of the tokenizer is none of the {plan.vocab}"):
        drift_of(Bigrams(NOISE[: plan.vocab, : plan.vocab]), tmp_path / "p", own=True, plan=plan)
