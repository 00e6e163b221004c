"""Activation profiles: kept, read back, given as counts, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ktbench.engine.workload import recorded as profiles
from ktbench.engine.workload.recorded import ActivationProfile, Architecture, count_selections, read_profile
from ktbench.spec.run_spec import ModelSpec
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
    said = str(error.value)
    assert "\n" not in said
    return said


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    read = read_profile(kept(tmp_path), model())
    assert np.array_equal(read.counts, COUNTS)
    assert (read.model, read.tokens, read.source) == ("tiny", 60, "eight prompts")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["profile.npz"]


def test_a_slice_takes_the_first_layers_of_its_model_whatever_vocabulary_and_name(tmp_path: Path) -> None:
    file = kept(tmp_path)
    read = read_profile(file, model("some/folder", num_hidden_layers=1, vocab_size=64))
    assert np.array_equal(read.counts, COUNTS[:1])
    said = refused(file, model(num_hidden_layers=3))
    assert "has 2 MoE layers, tiny needs 3" in said


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
    said = refused(kept(tmp_path), model("other", **changes))
    assert "recorded from tiny, this is other" in said
    assert says in said


def test_files_that_are_no_profiles_are_refused(tmp_path: Path) -> None:
    text, other, pickled, cut = (str(tmp_path / name) for name in ("a.txt", "b.npz", "c.npz", "d.npz"))
    Path(text).write_text("no numbers")
    np.savez(other, decode=COUNTS)
    np.savez(pickled, counts=np.array([{"a": 1}], dtype=object), about=np.array("{}"))
    Path(cut).write_bytes(Path(other).read_bytes()[:60])
    assert "no such file, write FILE or FILE:ARRAY" in refused(str(tmp_path / "none.npz"))
    assert "no such file" in refused(str(tmp_path))
    assert "not an npz file" in refused(text)
    assert "not an npz file" in refused(cut)
    assert "not an npz file of plain arrays" in refused(pickled)
    assert "name an array of counts as FILE:ARRAY, the file has decode" in refused(other)
    assert "no array 'prefill', the file has decode" in refused(f"{other}:prefill")


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


def test_an_array_of_counts_is_taken_for_the_model_asked_for_without_dense_layers(tmp_path: Path) -> None:
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
def test_selections_are_counted_and_nobody_is_not(ids: NDArray[np.int64]) -> None:
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
