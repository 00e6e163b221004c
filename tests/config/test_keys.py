"""Keys of ablations, against those that Hydra composes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from ktbench.cli import main
from ktbench.config import compose, freeze
from ktbench.config.keys import check_ablation, known_keys
from ktbench.resources import option_files
from ktbench.spec.errors import RequestError

KNOWN = [key for key in known_keys() if key not in ("machine.sources", "sweep.axes")]
FREE = ("machine.sources", "sweep.axes")  # mappings of any keys, which the specs check
SWEEP = {"name": "mine", "arms": ["base", "+v"], "baseline": "base"}


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """`{a: {b: value}}` of `a.b`."""
    for name in reversed(dotted.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def misspelt(key: str, at: int, how: str) -> str:
    return {"gone": key[:at] + key[at + 1 :], "twice": key[:at] + key[at:][:1] + key[at:], "other": key[:at] + "~"}[how]


@given(st.sampled_from(KNOWN))
def test_every_key_that_is_composed_is_known(key: str) -> None:
    check_ablation(nested(key, None), "file")


@given(st.sampled_from(KNOWN), st.integers(0, 30), st.sampled_from(["gone", "twice", "other"]))
def test_a_misspelt_key_is_named_with_its_file(key: str, at: int, how: str) -> None:
    parent, dot, name = key.rpartition(".")
    wrong = misspelt(name, at, how)
    assume(wrong and f"{parent}{dot}{wrong}" not in known_keys())
    with pytest.raises(ValueError, match="^file: ") as error:
        check_ablation(nested(f"{parent}{dot}{wrong}", 1), "file")
    assert repr(wrong) in str(error.value) and parent in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "key",
    [
        "defaults",
        "workload.stream.slo.ttft_s",  # keys of presets that are not composed by default
        "workload.lora_rank",
        "model.config.rope_parameters.beta_fast",
        "model.config.n_routed_experts",
        *(f"{free}.anything" for free in FREE),
    ],
)
def test_keys_of_other_presets_are_known(key: str) -> None:
    check_ablation(nested(key, None), "file")


@pytest.mark.parametrize(
    "content",
    [
        {"workload": {"stream": {"slo": {"ttft": 1}}}},
        {"model": {"config": {"rope_parameters": {"rope_tht": 1}}}},
        {"inject": {"rules": [{"name": "experts", "operater": "experts"}]}},
        {"suite": {"name": "mine", "tasks": [{"name": "nano", "soucre": "nano"}]}},
        {"measure.max_minutes": 3},
        {"hydra": {"job": {}}},
        {3: 4},
    ],
)
def test_wherever_it_is(content: Mapping[Any, Any]) -> None:
    with pytest.raises(ValueError, match="unknown key"):
        check_ablation(content, "file")


@pytest.mark.parametrize("ending", [".yaml", ".yaml,decode"])
def test_a_file_with_an_unknown_key_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump({"measure": {"max_minute": 3}, "sweep": SWEEP}))
    assert main(["plan", f"+ablation=mine{ending}", "model=tiny"]) == 2
    output, errors = capsys.readouterr()
    assert not output and errors.count("\n") == 1
    assert "mine.yaml" in errors and "max_minute'" in errors and "max_minutes" in errors


def test_one_that_ships_is_held_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({"engine": {"defferal": 3}, "sweep": SWEEP}))
    monkeypatch.setattr("ktbench.config.options.group_folder", lambda group: tmp_path)
    monkeypatch.setattr("ktbench.config.options.ablation_names", lambda: ["wrong"])
    with pytest.raises(RequestError, match=r"wrong\.yaml: engine: unknown key 'defferal'"):
        compose(["+ablation=wrong", "model=tiny"])


@pytest.mark.parametrize("name", option_files("ablation"))
def test_those_that_ship_have_known_keys(name: str) -> None:
    check_ablation(yaml.safe_load(option_files("ablation")[name].read_text()), name)


def test_a_known_key_still_counts(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"measure": {"max_minutes": 3.5}, "sweep": SWEEP}))
    assert freeze(compose([f"+ablation={file}", "model=tiny"])).measure.max_minutes == 3.5
