"""Recorded routing: activation profiles and traces, read, refused, drawn from, and recorded by the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ktbench.engine.forms import is_experts
from ktbench.engine.routing import PassRouting, Routing
from ktbench.engine.workload import recorded as profiles
from ktbench.engine.workload.recorded import ActivationProfile, Architecture, count_selections, read_profile, read_trace
from ktbench.engine.workload.routing import prompt_ids
from ktbench.run.record import record_profile
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.engine.families.plain import build
from tests.engine.tiny import EXPERTS, decode, load, prefill, spec, tiny_model
from tests.tiny import CONFIG

TRACES = Path(__file__).parents[4] / "shared" / "data" / "routing_traces"
REAL = pytest.mark.skipif(not TRACES.is_dir(), reason="no shared data folder next to this checkout")
COUNTS = np.arange(16, dtype=np.int64).reshape(2, 8)


def model(name: str = "tiny", **changes: Any) -> ModelSpec:
    config = CONFIG | changes
    return ModelSpec(name=name, config=config, full_layers=61, full_vocab=config["vocab_size"])


def profile(counts: NDArray[Any] = COUNTS, of: ModelSpec | None = None) -> ActivationProfile:
    of = of or model()
    return ActivationProfile(
        model=of.name, architecture=Architecture.of(of), counts=counts, tokens=60, source="eight prompts"
    )


def kept(folder: Path, *arguments: Any) -> str:
    profile(*arguments).save(folder / "deep" / "profile.npz")
    return str(folder / "deep" / "profile.npz")


def refused(text: str, of: ModelSpec | None = None) -> str:
    with pytest.raises(ValueError, match=r"^engine\.placement\.profile=") as error:
        read_profile(text, of or model())
    message = str(error.value)
    assert "\n" not in message
    return message


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    read = read_profile(kept(tmp_path), model())
    assert np.array_equal(read.counts, COUNTS)
    assert (read.model, read.tokens, read.source) == ("tiny", 60, "eight prompts")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["profile.npz"]


def test_a_slice_takes_the_first_layers_of_its_model_whatever_vocabulary_and_name(tmp_path: Path) -> None:
    file = kept(tmp_path)
    read = read_profile(file, model("some/folder", num_hidden_layers=1, vocab_size=64))
    assert np.array_equal(read.counts, COUNTS[:1])
    message = refused(file, model(num_hidden_layers=3))
    assert "has 2 MoE layers, tiny needs 3" in message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_experts_per_tok": 3}, "(top_k 2, not 3)"),
        ({"hidden_size": 128, "model_type": "olmoe"}, "(model_type qwen3_moe, not olmoe; hidden 64, not 128"),
        ({"num_experts": 16}, "(experts 8, not 16)"),
    ],
)
def test_a_profile_of_another_model_names_both_and_what_differs(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    message = refused(kept(tmp_path), model("other", **changes))
    assert "recorded from tiny, this is other" in message
    assert says in message


READERS: dict[str, Callable[[str], object]] = {
    "profile": lambda text: read_profile(text, model()),
    "trace": lambda text: read_trace(text, 4, 2, 0),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_files_that_are_no_npz_of_plain_arrays_are_refused(read: Callable[[str], object], tmp_path: Path) -> None:
    text, single, pickled, cut = (tmp_path / name for name in ("a.txt", "b.npy", "c.npz", "d.npz"))
    text.write_text("no numbers")
    np.save(single, COUNTS)
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(pickled, counts=objects, about=np.array("{}"), decode=objects)
    cut.write_bytes(pickled.read_bytes()[:60])
    for file in (text, single, pickled, cut):
        with pytest.raises(ValueError, match=rf"={re.escape(str(file))}: not an npz file"):
            read(str(file))
    for missing in (str(tmp_path / "none.npz"), f"{tmp_path / 'none.npz'}:decode", str(tmp_path)):
        with pytest.raises(ValueError, match="no such file, write FILE or FILE:ARRAY"):
            read(missing)


def test_files_that_are_no_profiles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", decode=COUNTS)
    assert "name an array of counts as FILE:ARRAY, the file has decode" in refused(str(tmp_path / "b.npz"))
    assert "no array 'prefill', the file has decode" in refused(f"{tmp_path / 'b.npz'}:prefill")


ABOUT = {"model": "tiny", "architecture": {}, "tokens": 1, "source": ""}
BAD_ABOUT = ["", "[]", "{}", json.dumps(ABOUT), json.dumps(ABOUT | {"tokens": "many"})]


@pytest.mark.parametrize("about", BAD_ABOUT)
def test_a_profile_whose_text_is_damaged_is_refused(about: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", counts=COUNTS, about=np.array(about))
    assert "not an activation profile (" in refused(str(tmp_path / "p.npz"))


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        (-COUNTS, "-15 selections are counted"),
        (COUNTS / 2, "array of float64 [2, 8], must hold counts [MoE layers, experts]"),
        (COUNTS[1], "array of int64 [8], must hold counts"),
        (COUNTS[:0], "array of int64 [0, 8], must hold counts"),
        (COUNTS[:, :5], "counts of 5 experts, tiny has 8"),
    ],
    ids=["negative", "fractions", "one layer", "none", "experts"],
)
@pytest.mark.parametrize("array", ["", ":counts"], ids=["profile", "array"])
def test_counts_that_are_none_are_refused(counts: NDArray[Any], says: str, array: str, tmp_path: Path) -> None:
    about = json.dumps(ABOUT | {"architecture": profiles.to_plain(Architecture.of(model()))})
    np.savez(tmp_path / "p.npz", counts=counts, about=np.array(about))
    assert says in refused(f"{tmp_path / 'p.npz'}{array}")


def test_an_array_of_counts_is_taken_for_the_requested_model_without_dense_layers(tmp_path: Path) -> None:
    np.savez(tmp_path / "trace.npz", decode=np.stack([0 * COUNTS[0], *COUNTS]))
    read = read_profile(f"{tmp_path / 'trace.npz'}:decode", model())
    assert np.array_equal(read.counts, COUNTS)
    assert (read.model, read.tokens) == ("tiny", 28 // 2)


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space left"):
        profile(2 * COUNTS).save(Path(file))
    assert [entry.name for entry in Path(file).parent.iterdir()] == ["profile.npz"]
    assert np.array_equal(read_profile(file, model()).counts, COUNTS)


@given(arrays(np.int64, (7, 3), elements=st.integers(-1, 5)))
def test_selections_are_counted_and_no_expert_is_not(ids: NDArray[np.int64]) -> None:
    assert count_selections(ids, 6).tolist() == [int((ids == expert).sum()) for expert in range(6)]


def test_share_of_the_hottest_and_evenness_by_hand() -> None:
    counts = np.array([[8, 1, 1, 1, 1, 1, 1, 2], [3, 3, 3, 3, 3, 3, 3, 3], [4, 4, 0, 0, 0, 0, 0, 0]])
    seen = profile(counts)
    assert seen.hottest_share().tolist() == [8 / 16, 1 / 8, 4 / 8]
    assert seen.hottest_share(0.25).tolist() == [10 / 16, 2 / 8, 1]
    assert seen.evenness()[1:] == pytest.approx([1, 1 / 3])
    assert seen.evenness()[0] == pytest.approx((0.5 * 1 + 6 / 16 * 4 + 2 / 16 * 3) / 3)


@REAL
def test_counts_of_deepseek_v3() -> None:
    deepseek = model(num_experts=256, num_experts_per_tok=8, num_hidden_layers=58)
    read = read_profile(f"{TRACES / 'deepseek_v3_ep_statistics.npz'}:decode_in1000out1000", deepseek)
    assert read.counts.shape == (58, 256)
    assert read.tokens == 147_308_544 // 8
    assert (read.counts.sum(axis=1) == 147_308_544).all()
    assert "has 58 MoE layers" in refused(
        f"{TRACES / 'deepseek_v3_ep_statistics.npz'}:prefill_in512",
        model(num_experts=256, num_experts_per_tok=8, num_hidden_layers=61),
    )


TRACE_COUNTS = np.array([[0, 0, 0, 0], [1, 2, 3, 4]])
TOKENS = np.array([[[0, 1]], [[2, 3]], [[3, 1]]], dtype=np.uint8)


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "trace.npz", **arrays)
    return str(folder / "trace.npz")


def test_counts_are_drawn_by_plackett_luce(tmp_path: Path) -> None:
    """Probability of an ordered pair: share of the first, times share of the second in what is left."""
    trace = read_trace(saved(tmp_path, decode_a=TRACE_COUNTS), experts=4, top_k=2, seed=5)
    drawn = trace.draw(60_000, 0)
    weight = TRACE_COUNTS[1] / TRACE_COUNTS[1].sum()
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
    file = saved(tmp_path, prefill_a=TRACE_COUNTS[:, ::-1], decode_b=TRACE_COUNTS, decode_c=2 * TRACE_COUNTS)
    chosen = {name: read_trace(f"{file}{name}", 4, 2, 0).counts.tolist() for name in ("", ":decode_c", ":prefill_a")}  # type: ignore[attr-defined]
    assert chosen == {"": [1, 2, 3, 4], ":decode_c": [2, 4, 6, 8], ":prefill_a": [4, 3, 2, 1]}


def test_a_file_name_may_have_a_colon(tmp_path: Path) -> None:
    Path(saved(tmp_path, decode=TRACE_COUNTS)).rename(tmp_path / "a:b.npz")
    assert read_trace(str(tmp_path / "a:b.npz"), 4, 2, 0).draw(1, 0).shape == (1, 2)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("", {"decode": TRACE_COUNTS[:, :3]}, "counts of 3 experts, the model has 4"),
    ("", {"decode": TOKENS[..., :1]}, "4 experts and 1 per token, the model has 4 and 2 per token"),
    ("", {"decode": TOKENS[:1]}, "2 experts and 2 per token, the model has 4 and 2 per token"),
    ("", {"decode": np.array([[[3, 3]]])}, "a token selects the same expert twice"),
    ("", {"decode": np.array([[7, 0, 0, 0]])}, "in no layer were 2 or more experts selected"),
    ("", {"decode": TRACE_COUNTS / 2}, r"array of float64 \[2, 4\], must hold counts"),
    ("", {"decode": TRACE_COUNTS[1]}, r"array of int64 \[4\], must hold counts"),
    ("", {"decode": -TRACE_COUNTS}, "must hold counts"),
    ("", {"decode": TRACE_COUNTS[:0]}, "must hold counts"),
    ("", {"prefill": TRACE_COUNTS}, "no array 'decode…', the file has prefill"),
    (":other", {"decode": TRACE_COUNTS, "b": TRACE_COUNTS}, "no array 'other', the file has decode, b"),
]


@pytest.mark.parametrize(("name", "arrays", "why"), BAD, ids=range(len(BAD)))
def test_bad_traces_are_refused_in_one_line(name: str, arrays: dict[str, Any], why: str, tmp_path: Path) -> None:
    file = saved(tmp_path, **arrays)
    with pytest.raises(ValueError, match=why) as refused:
        read_trace(file + name, experts=4, top_k=2, seed=0)
    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


@REAL
def test_draws_of_deepseek_v3() -> None:
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


def chosen_by_transformers(model: ModelSpec, ids: np.ndarray) -> np.ndarray:
    """[MoE layers, tokens, k]: what the routers of an untouched model choose in one pass over ids [batch, tokens]."""
    network = build(model)
    seen: list[np.ndarray] = []
    for module in network.modules():
        if is_experts(module):
            module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1].numpy()))
    with torch.inference_mode():
        network(torch.from_numpy(ids))
    return np.stack(seen)


def counted(ids: np.ndarray) -> list[list[int]]:
    return [np.bincount(layer.ravel(), minlength=EXPERTS).tolist() for layer in ids]


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "deepseek_v3"])
def test_prefill_records_every_token_of_every_prompt(name: str) -> None:
    model, work = tiny_model(name), prefill(batch=2, steps=1)
    profile = record_profile(lambda _: load(model), spec(model, work))
    chosen = chosen_by_transformers(model, prompt_ids(model.shape.vocab, 2, work.prompt, work.seed))
    assert profile.counts.tolist() == counted(chosen)
    assert profile.tokens == 2 * work.prompt


def test_decode_records_the_tokens_after_the_prompt() -> None:
    model, work = tiny_model(), decode(batch=2, steps=5)
    profile = record_profile(lambda _: load(model), spec(model, work))
    chosen = chosen_by_transformers(model, prompt_ids(model.shape.vocab, 2, work.prompt + 5, work.seed))
    after = chosen.reshape(len(chosen), 2, work.prompt + 5, -1)[:, :, work.prompt :]
    assert profile.counts.tolist() == counted(after)
    assert profile.tokens == 2 * 5


class Padded:
    """An engine whose first token is padding."""

    def configure(self, spec: RunSpec) -> None:
        self.requested = spec

    def recorded_routing(self) -> Sequence[PassRouting]:
        ids = torch.tensor([[-1, -1, -1, -1], [0, 1, 2, 3], [0, 4, 5, 6]])
        return [[Routing(ids=ids, gates=torch.ones(3, 4))] * 2] * 3


def test_padding_is_no_token_and_the_profile_names_what_was_run() -> None:
    model, work = tiny_model(), WorkloadSpec(phase="prefill", prompt=3, steps=3, seed=7)
    profile = record_profile(lambda _: Padded(), spec(model, work))
    assert profile.counts.tolist() == [[6, 3, 3, 3, 3, 3, 3, 0]] * 2
    assert profile.tokens == 2 * 3
    assert (profile.model, profile.architecture) == ("qwen3_30b_a3b", Architecture.of(model))
    assert "prefill of 3" in profile.source
    assert "workload.seed=7" in profile.source
