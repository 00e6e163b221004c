"""Recorded routing: real files where they are at hand, made ones for what can go wrong."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ktbench.engine.workload.recorded import read_trace

TRACES = Path(__file__).parents[4] / "shared" / "data" / "routing_traces"
REAL = pytest.mark.skipif(not TRACES.is_dir(), reason="no shared data folder next to this checkout")
COUNTS = np.array([[0, 0, 0, 0], [1, 2, 3, 4]])
TOKENS = np.array([[[0, 1]], [[2, 3]], [[3, 1]]], dtype=np.uint8)


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "trace.npz", **arrays)
    return str(folder / "trace.npz")


def test_counts_are_drawn_by_plackett_luce(tmp_path: Path) -> None:
    """Probability of an ordered pair: share of the first, times share of the second in what is left."""
    trace = read_trace(saved(tmp_path, decode_a=COUNTS), experts=4, top_k=2, seed=5)
    drawn = trace.draw(60_000, 0)
    weight = COUNTS[1] / COUNTS[1].sum()
    for first, second in permutations(range(4), 2):
        expected = weight[first] * weight[second] / (1 - weight[first])
        assert np.mean((drawn == (first, second)).all(axis=1)) == pytest.approx(expected, abs=0.01)


def test_steps_and_seeds_differ_and_repeat(tmp_path: Path) -> None:
    file = saved(tmp_path, decode=np.arange(1, 65).reshape(2, 32))
    draws = [read_trace(file, 32, 4, seed).draw(10, step) for seed, step in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert draws[0].dtype == np.int64
    assert np.array_equal(draws[0], draws[3])
    assert not np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_a_layer_with_too_few_experts_is_never_chosen(tmp_path: Path) -> None:
    counts = np.array([[0, 0, 0, 0], [5, 0, 0, 0], [1, 1, 0, 0]])
    for seed in range(20):
        drawn = read_trace(saved(tmp_path, decode=counts), 4, 2, seed).draw(50, 0)
        assert set(drawn.ravel().tolist()) == {0, 1}
        assert all(a != b for a, b in drawn.tolist())


def test_tokens_are_replayed_in_turn_and_around_the_end(tmp_path: Path) -> None:
    trace = read_trace(saved(tmp_path, decode=TOKENS), experts=4, top_k=2, seed=0)
    replayed = np.concatenate([trace.draw(2, step) for step in range(3)]).tolist()
    turns = [np.roll(TOKENS[:, 0], -first, axis=0).tolist() * 2 for first in range(3)]
    assert replayed in turns


def test_the_array_is_the_named_one_or_the_first_of_decode(tmp_path: Path) -> None:
    file = saved(tmp_path, prefill_a=COUNTS[:, ::-1], decode_b=COUNTS, decode_c=2 * COUNTS)
    chosen = {name: read_trace(f"{file}{name}", 4, 2, 0).counts.tolist() for name in ("", ":decode_c", ":prefill_a")}  # type: ignore[attr-defined]
    assert chosen == {"": [1, 2, 3, 4], ":decode_c": [2, 4, 6, 8], ":prefill_a": [4, 3, 2, 1]}


def test_a_file_name_may_have_a_colon(tmp_path: Path) -> None:
    Path(saved(tmp_path, decode=COUNTS)).rename(tmp_path / "a:b.npz")
    assert read_trace(str(tmp_path / "a:b.npz"), 4, 2, 0).draw(1, 0).shape == (1, 2)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("", {"decode": COUNTS[:, :3]}, "counts of 3 experts, the model has 4"),
    ("", {"decode": TOKENS[..., :1]}, "4 experts and 1 per token, the model has 4 and 2 per token"),
    ("", {"decode": TOKENS[:1]}, "2 experts and 2 per token, the model has 4 and 2 per token"),
    ("", {"decode": np.array([[[3, 3]]])}, "a token selects the same expert twice"),
    ("", {"decode": np.array([[7, 0, 0, 0]])}, "in no layer were 2 or more experts selected"),
    ("", {"decode": COUNTS / 2}, r"array of float64 \[2, 4\], must hold counts"),
    ("", {"decode": COUNTS[1]}, r"array of int64 \[4\], must hold counts"),
    ("", {"decode": -COUNTS}, "must hold counts"),
    ("", {"decode": COUNTS[:0]}, "must hold counts"),
    ("", {"prefill": COUNTS}, "no array 'decode…', the file has prefill"),
    (":other", {"decode": COUNTS, "b": COUNTS}, "no array 'other', the file has decode, b"),
]


@pytest.mark.parametrize(("name", "arrays", "why"), BAD, ids=range(len(BAD)))
def test_bad_traces_are_refused_in_one_line(name: str, arrays: dict[str, Any], why: str, tmp_path: Path) -> None:
    file = saved(tmp_path, **arrays)
    with pytest.raises(ValueError, match=why) as refused:
        read_trace(file + name, experts=4, top_k=2, seed=0)
    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_not_traces_are_refused(tmp_path: Path) -> None:
    text, single, pickled, cut = (tmp_path / name for name in ("a.txt", "b.npy", "c.npz", "d.npz"))
    text.write_text("no numbers")
    np.save(single, COUNTS)
    np.savez(pickled, decode=np.array([{"a": 1}], dtype=object))
    cut.write_bytes(pickled.read_bytes()[:50])
    for file in (text, single, pickled, cut):
        with pytest.raises(ValueError, match="not an npz file"):
            read_trace(str(file), 4, 2, 0)
    for missing in (str(tmp_path / "none.npz"), f"{tmp_path / 'none.npz'}:decode", str(tmp_path)):
        with pytest.raises(ValueError, match="no such file, write FILE or FILE:ARRAY"):
            read_trace(missing, 4, 2, 0)


@REAL
def test_counts_of_deepseek_v3() -> None:
    file = TRACES / "deepseek_v3_ep_statistics.npz"
    drawn = read_trace(f"{file}:prefill_in1024", experts=256, top_k=8, seed=3).draw(4000, 0)
    assert all(len(set(row)) == 8 for row in drawn.tolist())
    load = np.bincount(drawn.ravel(), minlength=256) / drawn.size
    with np.load(file) as arrays:
        counts = arrays["prefill_in1024"][3:]
    shares = counts / counts.sum(axis=1, keepdims=True)
    # The layer is one of them: selection without replacement flattens the shares only a little.
    assert min(np.abs(load - share).sum() for share in shares) < 0.1
    assert sorted(np.abs(load - share).sum() for share in shares)[1] > 0.3


@REAL
def test_tokens_of_gpt_oss() -> None:
    file = TRACES / "gpt_oss_20b_decode.npz"
    drawn = read_trace(str(file), experts=32, top_k=4, seed=1).draw(50, 2)
    with np.load(file) as arrays:
        recorded = arrays["experts"]
    text = recorded.astype(np.int64)
    starts = np.argwhere((text[:-49] == drawn[0]).all(axis=2))
    assert any(np.array_equal(text[token : token + 50, layer], drawn) for token, layer in starts)
    with pytest.raises(ValueError, match="32 experts and 4 per token, the model has 128 and 4 per token"):
        read_trace(str(file), experts=128, top_k=4, seed=1)
