from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.workload.routing import prompt_ids

SIZES = st.integers(1, 40)


@given(vocab=st.integers(1, 200_000), batch=SIZES, tokens=SIZES, seed=st.integers(0, 2**31))
def test_ids_are_of_the_vocabulary_and_repeatable(vocab: int, batch: int, tokens: int, seed: int) -> None:
    ids = prompt_ids(vocab, batch, tokens, seed)
    assert ids.shape == (batch, tokens)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < vocab
    assert np.array_equal(ids, prompt_ids(vocab, batch, tokens, seed))


def test_seeds_differ_and_ids_are_spread() -> None:
    ids = prompt_ids(10, 1, 10_000, seed=1)
    assert not np.array_equal(ids, prompt_ids(10, 1, 10_000, seed=2))
    assert np.bincount(ids.ravel(), minlength=10).min() > 850


def test_equal_arguments_give_equal_ids_on_any_machine() -> None:
    assert prompt_ids(1000, 1, 4, seed=0).tolist() == [[850, 636, 511, 269]]


@pytest.mark.parametrize("wrong", ["vocab", "batch", "tokens"])
def test_sizes_below_one_are_refused(wrong: str) -> None:
    sizes = {"vocab": 5, "batch": 5, "tokens": 5} | {wrong: 0}
    with pytest.raises(ValueError, match=f"{wrong}=0"):
        prompt_ids(**sizes, seed=0)
