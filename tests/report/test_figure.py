from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb

from ktbench.report.figures.style import width_in, wrapped
from ktbench.report.write import write_report
from ktbench.results.rows import rows_of
from ktbench.spec.record import Outcome
from tests.report.drawn import bar_heights, caption, speed_figure, x_names
from tests.report.synthetic import DECODE, Arm, Store

MESSY = (
    DECODE[0],
    Arm(label="+v", step_ms=61.0, noise=0.3),
    Arm(label="+m", outcome=Outcome.WRONG, why="layer 2: relative error 0.127, tolerance 0.01", fails_at=3),
    Arm(label="+v+d", step_ms=179.0, noise=0.02),
    *DECODE[4:],
)
DEFERRAL = (Arm(label="+v"), *(Arm(label=f"+v deferral={n}", step_ms=100.0 - 5 * n) for n in range(1, 8)))
STORES = {
    "plain": Store(),
    "messy": Store(arms=MESSY),
    "eightfold": Store(arms=(DECODE[0], Arm(label="+v", step_ms=22.0), Arm(label="+m", step_ms=300.0))),
    "one": Store(arms=DECODE[1:2], control=False, rounds=3),
    "two": Store(prompts=(32, 8192)),
    "many": Store(prompts=tuple(2**n for n in range(4, 14)), rounds=6, arms=MESSY),
    "deferral": Store(arms=DEFERRAL),
    "no baseline": Store(arms=(Arm(label="base", outcome=Outcome.CRASHED, why="signal 9"), *DECODE[1:])),
}


def test_names_below_bars_do_not_touch(tmp_path: Path) -> None:
    drawn = speed_figure(Store().write(tmp_path))
    drawn.draw_without_rendering()
    boxes = [label.get_window_extent() for label in drawn.axes[0].get_xticklabels()]
    assert all(right.x0 - left.x1 > 0.04 * drawn.dpi for left, right in pairwise(boxes))


def test_bars_are_the_paired_speedups(tmp_path: Path) -> None:
    run = Store().write(tmp_path)
    axes = speed_figure(run).axes[0]
    expected = [1.0, *(row.speedup.mid for row in rows_of(run)[1:4] if row.speedup)]
    assert bar_heights(axes) == pytest.approx(expected)


def test_arms_without_a_bar_take_no_place_and_are_named_once(tmp_path: Path) -> None:
    arms = (*MESSY[:4], Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why="one NUMA node"), MESSY[5])
    drawn = speed_figure(Store(arms=arms).write(tmp_path))
    assert x_names(drawn.axes[0]) == ["base", "+v", "+v+d"]
    lacking, wrong = caption(drawn).partition("Not run here: ")[2].split("Not drawn: ")
    assert "+v+d+n (one NUMA node)" in lacking and "+v+d+n+c" in lacking and "+m" not in lacking
    assert "+m (WRONG, layer 2: relative error 0.127, tolerance 0.01)" in wrong


def test_every_noisy_bar_has_its_mark_also_where_all_are(tmp_path: Path) -> None:
    for rounds, marked in ((3, {True}), (12, {False})):
        drawn = speed_figure(Store(arms=MESSY[:1], rounds=rounds, drift=0.0).write(tmp_path / str(rounds)))
        assert {text.get_text().startswith("~") for text in drawn.axes[0].texts} == marked


def test_fills_differ_in_grey(tmp_path: Path) -> None:
    axes = speed_figure(STORES["deferral"].write(tmp_path)).axes[0]
    grey = [np.dot(to_rgb(bar.get_facecolor()), (0.299, 0.587, 0.114)) for bar in axes.patches]
    assert all(lighter - darker > 0.06 for lighter, darker in pairwise(grey[:7]))
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in axes.patches}) == len(axes.patches) == 8


def test_files_hold_fonts_and_no_dates(tmp_path: Path) -> None:
    pdf, svg, png = write_report(Store().write(tmp_path), ["figure"])
    assert b"/FontFile2" in pdf.read_bytes()
    assert b"CreationDate" not in pdf.read_bytes()
    assert b"<dc:date>" not in svg.read_bytes()
    assert b"<text" not in svg.read_bytes()  # outlines: the same wherever it is opened
    assert image.imread(png).shape[1] == 3.5 * 300


@pytest.mark.parametrize("limit", [0.5, 1.0, 3.0])
def test_wrapping_keeps_every_word_within_the_limit(limit: float) -> None:
    text = "a machine with two_sockets_or_even_more_of_them, and a CUDA device"
    lines = wrapped(text, 6.0, limit)
    assert all(width_in(line, 6.0) <= limit for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(("name", "width"), [("plain", 3.5), ("two", 7.0), ("many", 7.0)])
def test_sized_for_a_column_or_a_page(tmp_path: Path, name: str, width: float) -> None:
    assert speed_figure(STORES[name].write(tmp_path)).get_figwidth() == width
