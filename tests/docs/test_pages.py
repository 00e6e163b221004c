"""Pages that are made: one for each ablation, verb, feature, key; the picture of the rooms follows the table."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from docs.gen import figures
from docs.gen.ablations import Ablation, ablation_pages, ablations, page
from docs.gen.figures import RECORDED, Figure, figures_of, recorded_runs
from docs.gen.reference import KEYS, reference_pages
from docs.gen.repository import DOCS, table
from docs.gen.rooms import KERNELS, PICTURE, Picture, picture, read_rooms
from ktbench.cli import EXIT_CODES, VERBS, compare, usage
from ktbench.cli.catalogue import leading_comment
from ktbench.cli.keys import keys_of
from ktbench.config import ablation_names, compose
from ktbench.results import Run
from ktbench.results.speedups import Verdict
from ktbench.spec.features import FEATURES
from ktbench.spec.record import Outcome, Provenance

ROOMS = read_rooms((DOCS / "architecture.md").read_text(encoding="utf-8"))


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run python -m docs.gen.rooms"


def test_rooms_stand_above_what_they_import() -> None:
    drawn = Picture(ROOMS)
    assert all(drawn.levels[room] > drawn.levels[one] for room in ROOMS for one in ROOMS[room])
    assert drawn.places.keys() == {*ROOMS, KERNELS}


def test_lines_lead_wherever_imports_do() -> None:
    lines = Picture(ROOMS).lines

    def reached(room: str) -> set[str]:
        return {far for start, one in lines if start == room for far in {one, *reached(one)}}

    assert all(ROOMS[room] <= reached(room) for room in ROOMS)


def test_imports_that_go_round_have_no_picture() -> None:
    with pytest.raises(ValueError, match="go round among a, b"):
        Picture({"a": frozenset("b"), "b": frozenset("a")}).svg()


def test_every_ablation_has_its_page() -> None:
    pages = ablation_pages({})
    assert {f"ablations/{name}.md" for name in ablation_names()} <= pages.keys()
    assert all(f"{name}.md" in pages["ablations/index.md"] for name in ablation_names())


@pytest.mark.parametrize("one", ablations(), ids=lambda one: one.name)
def test_a_page_says_what_its_file_says(one: Ablation) -> None:
    text = page(one, [])
    assert leading_comment(one.text) in text
    assert f"python -m ktbench {one.verb} +ablation={one.name}\n" in text
    for device in ("cpu", "cuda"):  # where the device decides, both
        arms = compose([f"+ablation={one.name}", f"engine.device={device}"]).run["sweep"]["arms"]
        assert all(f"\n| `{arm}` " in text for arm in arms)
    assert "| `$`" not in text
    assert all(f"`{key}`" in text for key in one.sweep.get("axes", ()))
    assert "${model" not in one.title


def test_a_page_shows_its_figures_and_where_they_are_from() -> None:
    (one,) = (one for one in ablations() if one.name == "kernels/few_tokens")
    text = page(one, [Figure(page="images/x.svg", caption="Measured: there.")])
    assert "![Measured: there.](../../images/x.svg)" in text


def test_recorded_runs_are_found() -> None:
    assert "decode" in {folder.name for folder in recorded_runs()}


def test_the_reference_names_every_verb_feature_and_key() -> None:
    pages = reference_pages()
    assert all(f"## {verb}\n" in pages["reference/cli.md"] for verb in VERBS)
    assert all(f"`{feature.counter}`" in pages["reference/features.md"] for feature in FEATURES)
    keys = [f"`{key.name}`" for name, spec in KEYS.items() for key in keys_of(name, spec)]
    assert all(key in pages["reference/config.md"] for key in keys)
    assert "::: ktbench.spec.run_spec\n" in pages["reference/python/spec.md"]


def test_the_glossary_has_every_outcome_verdict_and_provenance_once() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    entries = [entry for cell in first if cell not in ("word", "outcome") for entry in cell.split(", ")]
    assert {*Outcome, *get_args(Provenance)} <= set(entries)
    assert all(f"`{verdict}`" in text for verdict in Verdict)
    assert len(entries) == len(set(entries))


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(["a"], [["x|y"]]).splitlines()[-1] == "| x\\|y |"


def test_exit_codes_are_the_same_wherever_they_are_said() -> None:
    assert {0, 2, compare.SLOWER, 4, 130} <= EXIT_CODES.keys()
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in reference_pages()["reference/cli.md"]
        assert f"{code} {meaning}" in usage()


def test_a_sweep_that_was_stopped_is_swept_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    monkeypatch.setattr(figures, "RECORDED", tmp_path / "none")
    monkeypatch.setattr(figures, "SIMULATED", ("what_if",))
    begun = []

    def swept(words: Sequence[str], *, cwd: Path, **_: object) -> None:
        begun.append(cwd)
        report = cwd / "runs" / words[-1].removeprefix("run_name=") / "report"
        report.mkdir(parents=True)  # refused where there is a run of this name
        (report / "figure-one.svg").write_text("<svg/>")
        if len(begun) == 1:
            raise KeyboardInterrupt
        (report / "figure-two.svg").write_text("<svg/>")

    monkeypatch.setattr(subprocess, "run", swept)
    with pytest.raises(KeyboardInterrupt):
        figures_of()
    for _ in range(2):
        drawn = [one.made for one in figures_of()["what_if"]]
        assert [path.name for path in drawn if path and path.is_file()] == ["figure-one.svg", "figure-two.svg"]
    assert len(begun) == 2, "what is whole is made once"


def test_a_recorded_run_whose_drawing_was_stopped_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(figures, "RECORDED", tmp_path / "recorded")
    monkeypatch.setattr(figures, "SIMULATED", ())
    shutil.copytree(RECORDED / "zen4_2_cores" / "lean", tmp_path / "recorded" / "here" / "lean")
    begun = []

    def drawn(run: Run, kinds: Sequence[str]) -> None:
        begun.append(run.header.run)
        (run.folder / "report").mkdir()
        if len(begun) == 1:
            raise KeyboardInterrupt
        (run.folder / "report" / "figure.svg").write_text("<svg/>")

    monkeypatch.setattr("ktbench.report.write.write_report", drawn)
    with pytest.raises(KeyboardInterrupt):
        figures_of()
    for _ in range(2):
        (figure,) = figures_of()["lean"]
        assert figure.made is not None and figure.made.is_file()
    assert len(begun) == 2, "what is whole is made once"
