"""The choice of tokens against float64 arithmetic written out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from transformers import RepetitionPenaltyLogitsProcessor

from ktbench.engine.serving.requests import Sampling
from ktbench.engine.serving.sampling import SampledAnswer, TokenChooser, gumbel
from tests.drawing import covering

# float32 may hold numbers below the normal ones as zeros.
SMALL = st.lists(st.floats(-8, 8, width=32, allow_subnormal=False), min_size=1, max_size=12)
DRAWS = 3000
Logits = NDArray[np.float64]


def chances(logits: Logits, sampling: Sampling) -> Logits:
    """Probabilities [V] that temperature, min_p, top_k and top_p leave, one after the other."""
    scaled = logits / sampling.temperature
    left: Logits = np.exp(scaled - scaled.max())
    left[left < sampling.min_p * left.max()] = 0
    order = np.argsort(-scaled, kind="stable")  # which differ where their exponentials do not
    if sampling.top_k:
        left[order[sampling.top_k :]] = 0
    left /= left.sum()
    reached = np.cumsum(left[order])
    left[order[reached - left[order] >= sampling.top_p]] = 0
    return left / left.sum()


def drawn(logits: Logits, sampling: Sampling, times: int) -> list[int | None]:
    chooser, answer, row = TokenChooser(), SampledAnswer(sampling), torch.from_numpy(logits)[None].float()
    return [chooser.choose(row, [answer])[0] for _ in range(times)]


def require_shares(tokens: list[int | None], wanted: Logits) -> None:
    """A chi-square test, of tokens with few draws together; what has no share is never drawn."""
    seen = np.bincount([token for token in tokens if token is not None], minlength=len(wanted))
    assert seen[wanted == 0].sum() == 0
    order = np.argsort(-wanted)
    expected = wanted[order] * len(tokens)
    many = int((expected >= 8).sum())
    groups = [(seen[order][:many], expected[:many]), ([seen[order][many:].sum()], [expected[many:].sum()])]
    pairs = [(s, e) for found, shares in groups for s, e in zip(found, shares, strict=True) if e > 0]
    if len(pairs) > 1:
        observed, foreseen = zip(*pairs, strict=True)
        assert stats.chisquare(observed, foreseen).pvalue > 1e-4


SAMPLINGS = [
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.6, seed=2),
    Sampling(temperature=1.7, top_p=0.7, seed=3),
    Sampling(temperature=1.0, top_k=7, seed=4),
    Sampling(temperature=1.0, min_p=0.2, seed=5),
    Sampling(temperature=1.2, top_k=40, top_p=0.6, min_p=0.03, seed=6),
]


@pytest.mark.parametrize(
    ("sampling", "size"),
    covering(product(SAMPLINGS, (5, 1500)), lambda sampling, size: (sampling, (size, sampling.keeps_all))),
    ids=lambda one: f"{one.temperature} {one.top_p} {one.top_k} {one.min_p}" if isinstance(one, Sampling) else None,
)
def test_tokens_are_drawn_with_the_probabilities_of_the_softmax(sampling: Sampling, size: int) -> None:
    """Of one block of tokens, and of several, the last of which is not full."""
    logits = np.random.default_rng(size).normal(scale=2, size=size).astype(np.float32).astype(np.float64)
    require_shares(drawn(logits, sampling, DRAWS), chances(logits, sampling))


@given(SMALL, st.floats(0.2, 3), st.floats(0.05, 1), st.integers(0, 13), st.floats(0, 1), st.integers(0, 2**63 - 1))
def test_no_other_token_is_drawn_than_is_left(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    values = np.array(logits)
    # Where two ways to round would leave other tokens, either is right.
    near = [Sampling(temperature=temperature, top_p=min(1, top_p + e), top_k=top_k, min_p=max(0, min_p - e), seed=seed)
            for e in (0, 1e-5)]  # fmt: skip
    left = sum(chances(values, one) for one in near)
    assert all(token is not None and left[token] > 0 for token in drawn(values, sampling, 20))


@pytest.mark.parametrize("size", [2000, 151_646])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(20, 1.0, 0.0), (900, 0.8, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.01)])
def test_what_is_left_of_a_large_vocabulary(size: int, top_k: int, top_p: float, min_p: float) -> None:
    logits = np.random.default_rng(3).normal(scale=4, size=size).astype(np.float32).astype(np.float64)
    logits[-1] = logits.max()  # in a block that is not full, beside one as large
    sampling = Sampling(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    left = chances(logits, sampling)
    tokens = drawn(logits, sampling, 150)
    assert all(token is not None and left[token] > 0 for token in tokens)
    assert left[logits.argmax()] > 0


def test_noise_is_that_of_a_gumbel_distribution_and_of_its_key() -> None:
    noise = gumbel(7, 3, np.arange(20_000))
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3
    assert np.array_equal(noise[500:600], gumbel(7, 3, np.arange(500, 600)))
    for other in (gumbel(8, 3, np.arange(20_000)), gumbel(7, 4, np.arange(20_000)), np.roll(noise, 1)):
        assert abs(np.corrcoef(noise, other)[0, 1]) < 0.03


@pytest.mark.parametrize("size", [26, 32_000])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_rounding_of_logits_changes_few_draws(size: int, top_p: float) -> None:
    """Of a seed beside other users. A draw by the sum of sorted probabilities changed in 69 of 100."""
    random, chooser, changed = np.random.default_rng(0), TokenChooser(), 0
    for seed in range(200):
        logits = torch.from_numpy(random.normal(scale=2.5, size=size))
        rounded = logits + torch.from_numpy(random.normal(scale=0.01, size=size))
        sampling = Sampling(temperature=1.0, top_p=top_p, seed=seed)
        one, other = (chooser.choose(each[None].float(), [SampledAnswer(sampling)]) for each in (logits, rounded))
        changed += one != other
    assert changed <= 6


@pytest.mark.parametrize("shift", [-512.0, -64.0, 64.0, 512.0])
def test_what_all_logits_have_in_common_changes_no_draw(shift: float) -> None:
    """Whether or not float32 holds their exponentials."""
    logits = np.round(np.random.default_rng(4).normal(scale=2, size=1300) * 64) / 64  # exact when shifted, too
    sampling = Sampling(temperature=1.0, seed=9)
    assert drawn(logits + shift, sampling, 200) == drawn(logits, sampling, 200)


def test_what_is_drawn_does_not_depend_on_the_batch() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    samplings = [Sampling(temperature=1.0, seed=seed) for seed in (5, 6, 7)]
    answers, chooser = [SampledAnswer(one) for one in samplings], TokenChooser()
    together = [chooser.choose(logits, answers) for _ in range(6)]
    for i, sampling in enumerate(samplings):
        alone = SampledAnswer(sampling)
        assert [TokenChooser().choose(logits[[i]], [alone])[0] for _ in range(6)] == [row[i] for row in together]
    assert len({tuple(column) for column in zip(*together, strict=True)}) == 3


def test_greedy_beside_drawn() -> None:
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(1)).bfloat16()
    tied = logits.clone()
    tied[0, [7, 30]] = logits.max() + 1
    chooser, answers = TokenChooser(), [SampledAnswer(Sampling()), SampledAnswer(Sampling(temperature=2.0, seed=3))]
    greedy, others = zip(*(chooser.choose(tied, answers) for _ in range(30)), strict=True)
    assert set(greedy) == {int(tied[0].argmax())}
    assert len(set(others)) > 3


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 0.0])
def test_the_smallest_temperatures_give_the_likeliest(temperature: float) -> None:
    assert set(drawn(np.linspace(-60, 60, 700), Sampling(temperature=temperature), 20)) == {699}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_choose_nothing(wrong: float, temperature: float) -> None:
    logits = torch.tensor([[1.0, wrong, 0.0], [3.0, 1.0, -torch.inf]])
    answers = [SampledAnswer(Sampling(temperature=temperature, top_k=2)) for _ in range(2)]
    first, second = TokenChooser().choose(logits, answers)
    assert first is None
    assert second in (0, 1)
    assert [one.count for one in answers] == [0, 1]


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_repetition_is_penalised_as_in_transformers(penalty: float) -> None:
    """Over some tokens of three answers, one of them without a penalty; the second one has ended before the last."""
    draw, width, prompts = torch.Generator().manual_seed(2), 30, [[3, 4, 4], [5], [6, 7]]
    samplings = [Sampling(repetition_penalty=one) for one in (penalty, penalty, 1.0)]
    answers = [SampledAnswer(one, prompt) for one, prompt in zip(samplings, prompts, strict=True)]
    chooser, texts = TokenChooser(), [list(one) for one in prompts]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    for number in range(20):
        logits, left = torch.randn(3, width, generator=draw).bfloat16(), [0, 1, 2] if number < 15 else [0, 2]
        expected = [int(theirs(torch.tensor([texts[i]]), logits[[i]].float()).argmax()) for i in (0, 1)]
        expected.append(int(logits[2].argmax()))
        assert chooser.choose(logits[left], [answers[i] for i in left]) == [expected[i] for i in left]
        for i in left:
            texts[i].append(expected[i])
    assert len({*texts[0]}) > len({*texts[2]}) or penalty < 1


def test_presence_and_frequency_count_tokens_of_the_answer_alone() -> None:
    """By OpenAI's formula: logit - frequency * count - presence where the count is above 0."""
    draw, texts = torch.Generator().manual_seed(3), list[int]()
    sampling = Sampling(presence_penalty=0.7, frequency_penalty=0.4, logit_bias=((2, 1.5), (9, -100.0)))
    answer = SampledAnswer(sampling, [4, 4, 4, 5])
    for _ in range(40):
        logits = torch.randn(1, 10, generator=draw)
        wanted = logits[0].double().numpy().copy()
        wanted[2] += 1.5
        wanted[9] -= 100
        for token in range(10):
            wanted[token] -= 0.4 * texts.count(token) + 0.7 * (token in texts)
        assert TokenChooser().choose(logits, [answer]) == [wanted.argmax()]
        texts.append(int(wanted.argmax()))
    assert 9 not in texts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_answer_ends_before_its_least_length(temperature: float) -> None:
    logits = torch.tensor([[9.0, 0.0, 8.0, 1.0]])
    answer = SampledAnswer(Sampling(temperature=temperature, min_tokens=5), [1], stop_ids={0, 2, 70})
    tokens = [TokenChooser().choose(logits, [answer])[0] for _ in range(30)]
    assert not {0, 2} & {*tokens[:5]}
    assert {0, 2} & {*tokens[5:]}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan"),
        ({"min_p": 1.1}, "min_p=1.1"),
        ({"top_k": -1}, "top_k=-1"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty=inf"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Sampling(**wrong)  # type: ignore[arg-type]
