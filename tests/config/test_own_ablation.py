"""An ablation of the user's own, named by its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.config import compose, freeze
from ktbench.resources import option_files
from ktbench.spec.errors import RequestError

MINE = """
# Two arms at two lengths.
defaults:
  - override /workload: prefill
model:
  layers: 2
sweep:
  name: mine
  title: Mine
  arms: [base, +v]
  axes:
    workload.prompt: [8, 16]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("sign", ["+", ""])
def test_it_is_swept_like_one_that_ships(file: Path, sign: str) -> None:
    request = freeze(compose([f"{sign}ablation={file}", "model=tiny"]))
    (part,) = request.parts
    assert (part.name, part.title, part.sweep.arms) == ("", "Mine", ("base", "+v"))
    assert part.spec.workload.phase == "prefill"
    assert [point["workload.prompt"] for point in part.sweep.points] == [8, 16]


def test_overrides_win_over_it(file: Path) -> None:
    request = freeze(compose([f"+ablation={file}", "model=tiny", "workload.prompt=32", "sweep.arms=[base]"]))
    assert request.parts[0].sweep.arms == ("base",)
    assert request.parts[0].spec.workload.prompt == 32


def test_it_is_a_part_beside_others(file: Path) -> None:
    request = freeze(compose([f"+ablation={file},decode", "model=tiny", "model.layers=2"]))
    assert [part.name for part in request.parts] == ["mine", "decode"]
    assert [part.spec.workload.phase for part in request.parts] == ["prefill", "decode"]


def test_a_changed_file_is_read_again(file: Path) -> None:
    compose([f"+ablation={file}"])
    file.write_text(MINE.replace("[base, +v]", "[base, +m]"))
    assert freeze(compose([f"+ablation={file}", "model=tiny"])).parts[0].sweep.arms == ("base", "+m")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "must be a mapping with the key sweep"),
        ("model: {layers: 2}", "must be a mapping with the key sweep"),
        ("sweep: {name: decode, arms: [base]}", "decode is a shipped ablation with other content"),
        ("sweep: {name: mine, arms: [base, +z]}", r"\+z"),
        ("sweep: {name: mine, amrs: [base]}", "amrs"),
    ],
)
def test_what_is_no_ablation_is_refused_in_one_line(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(RequestError, match=says) as error:
        freeze(compose([f"+ablation={file}", "model=tiny"]))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(RequestError, match=r"^ablation=nowhere\.yaml: No such file"):
        compose(["+ablation=nowhere.yaml"])


def test_a_copy_of_one_that_ships_is_it(tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_bytes(option_files("ablation")["decode"].read_bytes())
    assert freeze(compose([f"+ablation={copy}"])).parts == freeze(compose(["+ablation=decode"])).parts
