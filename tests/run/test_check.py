"""The check rejects what it must, over random experts and routings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.engine.protocol import ExpertsObservation
from ktbench.run.check import check, check_the_check, mutants, relative_error, stale
from ktbench.spec.record import Outcome

EXPERTS, HIDDEN = 5, 12


def reference(seen: ExpertsObservation) -> NDArray[np.float32]:
    weights = np.random.default_rng(7).normal(size=(EXPERTS, HIDDEN, HIDDEN))
    result: NDArray[np.float32] = np.einsum("tk,tkhi,ti->th", seen.gates, weights[seen.ids], seen.hidden)
    return result.astype(np.float32)


def observed(seed: int, tokens: int, top_k: int, noise: float = 0.0) -> ExpertsObservation:
    random = np.random.default_rng(seed)
    gates = np.sort(random.dirichlet(np.full(top_k, 4.0), size=tokens), axis=1)[:, ::-1].astype(np.float32)
    ids = np.array([random.permutation(EXPERTS)[:top_k] for _ in range(tokens)])
    hidden = random.normal(size=(tokens, HIDDEN)).astype(np.float32)
    seen = ExpertsObservation(layer=3, hidden=hidden, ids=ids, gates=gates, output=hidden)
    truth = reference(seen)
    output = truth + noise * np.linalg.norm(truth) / np.sqrt(truth.size) * random.normal(size=truth.shape)
    return ExpertsObservation(layer=3, hidden=hidden, ids=ids, gates=gates, output=output.astype(np.float32))


@given(st.integers(0, 999), st.integers(1, 6), st.integers(1, 4))
def test_rounding_passes_and_every_mutant_fails(seed: int, tokens: int, top_k: int) -> None:
    seen = observed(seed, tokens, top_k, noise=0.003)
    assert check([seen], reference, tolerance=0.01).outcome is Outcome.OK
    assert check_the_check([seen], reference, tolerance=0.01) == ""
    truth = reference(seen)
    for name, mutant in mutants(seen, truth, reference):
        wrong = ExpertsObservation(layer=3, hidden=seen.hidden, ids=seen.ids, gates=seen.gates, output=mutant)
        assert check([wrong], reference, tolerance=0.01).outcome is Outcome.WRONG, name


@pytest.mark.parametrize(
    ("tokens", "error", "outcome"),
    [(1, 0.036, Outcome.OK), (1, 0.045, Outcome.WRONG), (12, 0.032, Outcome.OK), (12, 0.036, Outcome.WRONG)],
)
def test_the_error_of_few_tokens_scatters(tokens: int, error: float, outcome: Outcome) -> None:
    seen = observed(1, tokens, 2)
    wrong = replace(seen, output=reference(seen) * np.float32(1 + error))
    assert check([wrong], reference, tolerance=0.03).outcome is outcome


def test_a_tolerance_that_cannot_fail_is_found_out() -> None:
    assert "would pass zeros" in check_the_check([observed(1, 3, 2)], reference, tolerance=1.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_output_that_is_not_finite_has_no_number_for_an_error(bad: float) -> None:
    seen = observed(1, 3, 2)
    seen.output[0, 0] = bad
    verdict = check([seen], reference, tolerance=0.01)
    assert (verdict.outcome, verdict.error) == (Outcome.WRONG, None)


def test_relative_error_of_zero_truth() -> None:
    zero, one = np.zeros(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    assert relative_error(zero, zero) == 0.0
    assert relative_error(one, zero) == float("inf")


def test_stale_logits() -> None:
    logits = np.ones((1, 4), dtype=np.float32)
    assert stale(logits, logits * 1.001, tolerance=0.05) == ""
    assert "relative error 0.5" in stale(logits, logits * 2, tolerance=0.05)
