"""The choice of tokens against float64 arithmetic written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from ktbench.engine.generate import TokenChooser, draw
from ktbench.engine.serving.requests import Sampling

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=12)


def chances(logits: list[float], sampling: Sampling) -> dict[int, float]:
    """Tokens that are left with their probabilities, in the order in which numbers stand for them."""
    scaled = np.array(logits, np.float64) / sampling.temperature
    whole = np.exp(scaled - scaled.max())
    whole /= whole.sum()
    order = sorted(range(len(logits)), key=lambda token: -whole[token])
    kept, reached = [], 0.0
    for token in order:
        if reached < sampling.top_p:
            kept.append(token)
        reached += whole[token]
    return {token: whole[token] / whole[kept].sum() for token in kept}


@given(LOGITS, st.floats(0.2, 3), st.floats(0.05, 0.99), st.floats(0, 1, exclude_max=True))
def test_a_number_stands_for_the_token_whose_share_it_falls_in(
    logits: list[float], temperature: float, top_p: float, uniform: float
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p)
    left = chances(logits, sampling)
    token = draw(torch.tensor(logits, dtype=torch.float64), sampling, uniform)
    borders = np.cumsum([0.0, *left.values()])
    near = 1e-9  # where two ways to add up may differ
    shares = {one: (borders[i] - near, borders[i + 1] + near) for i, one in enumerate(left)}
    assert shares[token][0] <= uniform < shares[token][1]


def test_shares_are_those_of_the_distribution() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9)
    logits = [0.3, -1.0, 2.0, 1.5, -4.0]
    left = chances(logits, sampling)
    assert len(left) < len(logits)
    numbers = (np.arange(4000) + 0.5) / 4000
    drawn = [draw(torch.tensor(logits, dtype=torch.float64), sampling, float(one)) for one in numbers]
    for token, chance in left.items():
        assert drawn.count(token) / len(drawn) == pytest.approx(chance, abs=1e-3)


def test_what_is_drawn_does_not_depend_on_the_batch() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    samplings = [Sampling(temperature=1.0, seed=seed) for seed in (5, 6, 7)]
    together = [TokenChooser(samplings, 6).choose(logits, [0, 1, 2], number) for number in range(6)]
    for i, sampling in enumerate(samplings):
        alone = TokenChooser([sampling], 6)
        assert [alone.choose(logits[i : i + 1], [0], number)[0] for number in range(6)] == [row[i] for row in together]
    left = TokenChooser(samplings, 6).choose(logits[[2]], [2], 3)
    assert left == [together[3][2]]
    assert len({tuple(column) for column in zip(*together, strict=True)}) == 3


def test_greedy_beside_drawn() -> None:
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(1)).bfloat16()
    tied = logits.clone()
    tied[0, [7, 30]] = logits.max() + 1
    chooser = TokenChooser([Sampling(), Sampling(temperature=2.0, seed=3)], 30)
    greedy, drawn = zip(*(chooser.choose(tied, [0, 1], number) for number in range(30)), strict=True)
    assert set(greedy) == {int(tied[0].argmax())}
    assert len(set(drawn)) > 3


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_repetition_is_penalised_as_in_transformers(penalty: float) -> None:
    """Over some tokens of three answers, one of them without a penalty; the second one has ended before the last."""
    draw, width, prompts = torch.Generator().manual_seed(2), 30, [[3, 4, 4], [5], [6, 7]]
    samplings = [Sampling(repetition_penalty=one) for one in (penalty, penalty, 1.0)]
    chooser, texts = TokenChooser(samplings, 20, prompts), [list(one) for one in prompts]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    for number in range(20):
        logits, left = torch.randn(3, width, generator=draw).bfloat16(), [0, 1, 2] if number < 15 else [0, 2]
        expected = [int(theirs(torch.tensor([texts[i]]), logits[[i]].float()).argmax()) for i in (0, 1)]
        expected.append(int(logits[2].argmax()))
        assert chooser.choose(logits[left], left, number) == [expected[i] for i in left]
        for i in left:
            texts[i].append(expected[i])
    assert len({*texts[0]}) > len({*texts[2]}) or penalty < 1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Sampling(**wrong)  # type: ignore[arg-type]
