"""Streams are drawn from their seed alone, and their lengths and arrivals have the distributions asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.workload.stream import MOONCAKE_BLOCK, draw_stream, gamma_gaps, log_normal, longest_request
from ktbench.engine.workload.stream_traces import read_stream_trace
from ktbench.run.request import plan_request, read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.serving.stream import StreamSpec


def work(seed: int = 0, prompt: int = 20, **stream: Any) -> WorkloadSpec:
    return WorkloadSpec(phase="serve", prompt=prompt, steps=1, seed=seed, stream=StreamSpec(**stream))


def test_equal_seeds_give_equal_streams_and_others_do_not() -> None:
    asked = work(arrivals="poisson", prompt_sigma=1.0, answer_sigma=0.5)
    assert draw_stream(asked, 100) == draw_stream(asked, 100)
    assert draw_stream(asked, 100) != draw_stream(replace(asked, seed=1), 100)


@pytest.mark.parametrize("change", [{"concurrency": 1}, {"cache": "warm"}, {"slo": {"ttft_s": 1.0}}])
def test_the_stream_does_not_depend_on_who_serves_it_how(change: Any) -> None:
    from ktbench.spec.serving.stream import SloSpec

    change = {name: SloSpec(**value) if name == "slo" else value for name, value in change.items()}
    assert draw_stream(work(**change), 100) == draw_stream(work(), 100)


def test_what_one_number_is_drawn_as_does_not_change_the_others() -> None:
    plain, other = draw_stream(work(prompt_sigma=1.0), 100), draw_stream(work(prompt_sigma=1.0, answer_sigma=1.0), 100)
    assert [one.tokens for one in plain] == [one.tokens for one in other]
    assert [one.answer for one in plain] != [one.answer for one in other]


def test_fixed_lengths_are_those_asked_for_and_the_shared_prefix_comes_on_top() -> None:
    stream = draw_stream(work(prompt=20, answer=7, shared_prefix=30), 100)
    assert {len(one.tokens) for one in stream} == {50}
    assert {one.answer for one in stream} == {7}
    assert len({one.tokens[:30] for one in stream}) == 1
    assert len({one.tokens[30:] for one in stream}) == len(stream)
    assert all(0 <= token < 100 for one in stream for token in one.tokens)


def test_lengths_have_the_mean_and_the_distribution_asked_for() -> None:
    stats = pytest.importorskip("scipy.stats")
    mean, sigma, count = 500.0, 0.8, 20_000
    drawn = log_normal(np.random.default_rng(0), mean, sigma, count)
    deviation = mean * np.sqrt(exp(sigma**2) - 1)
    assert abs(drawn.mean() - mean) < 4 * deviation / np.sqrt(count)
    law = stats.lognorm(s=sigma, scale=exp(log(mean) - sigma**2 / 2))
    assert stats.kstest(drawn + np.random.default_rng(1).uniform(-0.5, 0.5, count), law.cdf).pvalue > 0.01
    assert abs(np.median(drawn) - law.median()) < 10


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(shape: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    rate, count = 3.0, 20_000
    gaps = gamma_gaps(np.random.default_rng(0), rate, shape, count)
    assert abs(gaps.mean() - 1 / rate) < 4 / (rate * np.sqrt(shape * count))
    assert gaps.std() * rate == pytest.approx(1 / np.sqrt(shape), rel=0.05)
    assert stats.kstest(gaps, stats.gamma(a=shape, scale=1 / (rate * shape)).cdf).pvalue > 0.01


def test_poisson_arrivals_begin_at_once_and_go_on_at_their_rate() -> None:
    stats = pytest.importorskip("scipy.stats")
    arrivals = [one.arrival_s for one in draw_stream(work(prompt=1, arrivals="poisson", rate=2.0, requests=2000), 10)]
    assert arrivals[0] == 0.0
    gaps = np.diff(np.array(arrivals, dtype=float))
    assert (gaps >= 0).all()
    assert stats.kstest(gaps, stats.expon(scale=0.5).cdf).pvalue > 0.01


def test_closed_loops_have_no_arrivals() -> None:
    assert {one.arrival_s for one in draw_stream(work(), 10)} == {None}


def test_lengths_are_clipped_and_never_empty() -> None:
    stream = draw_stream(work(prompt=3, prompt_sigma=2.0, answer_sigma=2.0, longest_prompt=9, longest_answer=4), 10)
    assert {1, 9} <= {len(one.tokens) for one in stream} <= set(range(1, 10))
    assert {one.answer for one in stream} <= set(range(1, 5))


def test_turns_follow_those_of_their_conversation() -> None:
    stream = draw_stream(work(requests=6, turns=3, concurrency=2, answer=5), 10)
    assert [one.after for one in stream] == [None, None, 0, 1, 2, 3]
    assert longest_request(stream) == 3 * (20 + 5)
    with pytest.raises(ValueError, match="must be a multiple of workload.stream.turns=4"):
        StreamSpec(requests=6, turns=4)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2000000,20,0
2024-05-10 00:00:00.009930+00:00,2162,5
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 3000, "input_length": 700, "output_length": 26, "hash_ids": [46, 99]},
]


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_traces_are_read_in_the_columns_of_their_publishers(tmp_path: Path) -> None:
    first, second = read_stream_trace(written(tmp_path, "azure.csv", AZURE), 2)
    assert (first.prompt, first.answer) == (374, 44)
    assert second.arrival_s - first.arrival_s == pytest.approx(4.314579, abs=1e-5)
    third = read_stream_trace(written(tmp_path, "azure.csv", AZURE), 3)[2]
    assert (third.prompt, third.answer) == (2162, 5), "what failed has no answer and is left out"
    burst = read_stream_trace(written(tmp_path, "burst.csv", BURST), 2)
    assert [(one.arrival_s, one.prompt, one.answer) for one in burst] == [(5.0, 472, 18), (45.5, 1087, 230)]
    lines = "\n".join(map(json.dumps, MOONCAKE))
    moon = read_stream_trace(written(tmp_path, "moon.jsonl", lines), 2)
    assert [(one.arrival_s, one.prompt, one.blocks) for one in moon] == [
        (0.0, 1200, (46, 47, 48)),
        (3.0, 700, (46, 99)),
    ]


def test_equal_hashes_are_equal_tokens_and_times_are_scaled(tmp_path: Path) -> None:
    file = written(tmp_path, "moon.jsonl", "\n".join(map(json.dumps, MOONCAKE)))
    first, second = draw_stream(work(arrivals="trace", trace=file, requests=2, time_scale=0.5), 1000)
    assert (len(first.tokens), len(second.tokens)) == (1200, 700)
    assert first.tokens[:MOONCAKE_BLOCK] == second.tokens[:MOONCAKE_BLOCK]
    assert first.tokens[MOONCAKE_BLOCK:700] != second.tokens[MOONCAKE_BLOCK:]
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.5)
    assert (first.answer, second.answer) == (52, 26)


def test_lengths_of_a_trace_may_arrive_otherwise(tmp_path: Path) -> None:
    file = written(tmp_path, "burst.csv", BURST)
    stream = draw_stream(work(arrivals="closed", concurrency=1, trace=file, requests=2, longest_prompt=500), 10)
    assert [(len(one.tokens), one.answer, one.arrival_s) for one in stream] == [(472, 18, None), (500, 230, None)]


BAD = {
    "empty.csv": "",
    "columns.csv": "a,b\n1,2\n",
    "text.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
    "tokens.csv": "Timestamp,Request tokens,Response tokens\n1,many,2\n",
    "negative.csv": "Timestamp,Request tokens,Response tokens\n1,-5,2\n",
    "half.csv": "Timestamp,Request tokens,Response tokens\n1,1.5,2\n",
    "no_prompt.csv": "Timestamp,Request tokens,Response tokens\n1,0,2\n",
    "not_a_time.csv": "Timestamp,Request tokens,Response tokens\nnan,1,2\n",
    "huge.csv": "Timestamp,Request tokens,Response tokens\n1,1e300,2\n",
    "back.csv": "Timestamp,Request tokens,Response tokens\n5,1,2\n1,1,2\n",
    "short.csv": "Timestamp,Request tokens,Response tokens\n5,1\n",
    "json.jsonl": "{\n",
    "list.jsonl": "[1]\n",
    "hash.jsonl": '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n',
    "deep.jsonl": "[" * 100_000 + "\n",
    "binary.csv": "\x00\x00",
}


@pytest.mark.parametrize("name", BAD)
def test_a_trace_that_cannot_be_read_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    file = written(tmp_path, name, BAD[name])
    with pytest.raises(ValueError) as refused:
        read_stream_trace(file, 2)
    assert str(refused.value).startswith(f"workload.stream.trace={file}: ")
    assert "\n" not in str(refused.value)


@given(content=st.binary(max_size=300), ending=st.sampled_from(["csv", "jsonl"]))
def test_any_bytes_are_read_or_refused(content: bytes, ending: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / f"any.{ending}"
    file.write_bytes(content)
    with pytest.raises(ValueError):  # too few at best
        read_stream_trace(str(file), 10_000)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 10**4), st.lists(st.integers(0, 10**6))),
        min_size=1,
        max_size=20,
    )
)
def test_what_is_written_is_what_is_read(rows: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    file = tmp_path_factory.getbasetemp() / "written.jsonl"
    file.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    read = read_stream_trace(str(file), len(rows))
    assert [(one.arrival_s, one.prompt, one.answer, list(one.blocks)) for one in read] == [
        (at / 1000, prompt, answer, blocks) for at, prompt, answer, blocks in rows
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("workload.stream.trace=nowhere.csv",), "workload.stream.trace=nowhere.csv: no such file"),
        (("workload.stream.arrivals=trace",), "workload.stream.arrivals=trace: name its file in workload.stream.trace"),
        (("workload.stream.rate=0",), "workload.stream.rate=0.0: must be above 0"),
        (("workload.stream.burstiness=2",), "is for workload.stream.arrivals=gamma"),
        (("workload.stream.requests=7", "workload.steps=2"), "must be at least workload.steps=2 times"),
        (("workload.stream.answer=0",), "workload.stream.answer=0: must be at least 1"),
        (("workload.batch=2",), "leave workload.batch, routing, shortest and chunk as they are"),
        (("workload.stream.arrivals=sometimes",), "allowed are closed, poisson, gamma, trace"),
        (("workload.stream.answer=60000",), "was made for"),
        (("workload.stream=null",), "workload.stream: goes with workload.phase=serve, set workload=serve"),
    ],
)
def test_bad_requests_are_refused_in_one_line(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(RequestError) as refused:
        plan_request(read_request(["model=qwen3_30b_a3b", "model.layers=1", "workload=serve", *words]))
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
