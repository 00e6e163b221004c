"""Pages that are made: one for each ablation, verb, feature, key; the picture of the rooms follows the table."""

from __future__ import annotations

from dataclasses import fields

import pytest

from docs.gen.ablations import Ablation, ablation_pages, ablations, page
from docs.gen.figures import Figure, recorded_runs
from docs.gen.reference import KEYS, reference_pages
from docs.gen.repository import DOCS, leading_comment, table
from docs.gen.rooms import KERNELS, PICTURE, Picture, picture, read_rooms
from ktbench.cli import VERBS
from ktbench.config import ablation_names
from ktbench.core.features import FEATURES

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
    assert all(f"`{arm}`" in text for arm in one.sweep.get("arms", ()))
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
    keys = [f"`{name}.{field.name}`" for name, spec in KEYS.items() for field in fields(spec)]
    assert all(key in pages["reference/config.md"] for key in keys)
    assert "::: ktbench.core.spec\n" in pages["reference/python/core.md"]


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(["a"], [["x|y"]]).splitlines()[-1] == "| x\\|y |"
