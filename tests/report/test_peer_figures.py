"""Figures in which systems are compared: speeds per system and precision, over the prompt, over tokens per expert."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from ktbench.report.figures.draw import draw_speeds
from ktbench.report.speed_table import table_of
from ktbench.results import Run
from ktbench.results.rows import rows_of
from tests.report.peer_stores import DECODE, KERNELS, PEERS, PREFILL, UNPROVEN
from tests.report.synthetic import Store
from tests.report.test_curves import caption, curve, ink
from tests.report.test_figure import texts

ALL = replace(DECODE, arms=PEERS)
STORES = {
    "decode": DECODE,
    "decode with gaps": ALL,
    "one precision": Store(arms=UNPROVEN, rounds=6, run="peers"),
    "every precision": replace(ALL, precisions=("bf16", "q8_0", "int8", "q4_0", "int4_g32")),
    "prefill": PREFILL,
    "kernels": KERNELS,
}


def figure(run: Run) -> Figure:
    rows = rows_of(run)
    return draw_speeds(rows, table_of(run, rows))


@pytest.mark.parametrize("name", STORES)
def test_no_text_lies_over_another_or_leaves_the_page(tmp_path: Path, name: str) -> None:
    drawn = figure(STORES[name].write(tmp_path))
    drawn.canvas.draw()
    width, height = drawn.canvas.get_width_height()
    covered = np.zeros((height, width), dtype=bool)
    for text in texts(drawn):
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height, text.get_text()
        mine = ink(text, drawn)
        assert not (covered & mine).any(), f"{text.get_text()!r} lies over another text"
        covered |= mine


def test_bars_of_systems_are_speeds_so_that_no_system_has_to_be_there(tmp_path: Path) -> None:
    run = ALL.write(tmp_path)
    (axes,) = figure(run).axes
    speeds = [row.tokens_per_s.mid for row in rows_of(run) if row.role == "arm" and row.tokens_per_s]
    assert len(speeds) == 5 + 3 + 3
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(speeds)  # type: ignore[attr-defined]
    assert axes.get_ylabel() == "tokens/s"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["bf16", "q8_0", "q4_0"]
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in axes.patches[:5]}) == 5
    assert "speed in tokens/s; whiskers: interval of the median." in caption(figure(run))


def test_a_speed_that_is_no_comparison_is_marked_on_its_bar(tmp_path: Path) -> None:
    drawn = figure(STORES["one precision"].write(tmp_path))
    marked = [text.get_text() for text in drawn.axes[0].texts if text.get_text().endswith("†")]
    assert len(marked) == 1
    assert "Not shown to give the same answers as the other systems (†): llama.cpp." in caption(drawn)


def test_a_baseline_with_a_long_name_leaves_the_axis_readable(tmp_path: Path) -> None:
    arms = tuple(replace(arm, label=label) for arm, label in zip(PEERS, ("transformers grouped_mm",), strict=False))
    run = Store(arms=(*arms, replace(PEERS[1])), rounds=6).write(tmp_path)
    assert figure(run).axes[0].get_ylabel() == "speed-up (×)"


def test_prefill_has_a_panel_for_each_precision_over_the_prompt(tmp_path: Path) -> None:
    run = PREFILL.write(tmp_path)
    drawn = figure(run)
    assert [axes.get_title() for axes in drawn.axes] == ["bf16 weights", "int8 weights", "q4_0 weights"]
    assert {axes.get_xlabel() for axes in drawn.axes} == {"tokens of the prompt"}
    assert {(axes.get_xscale(), axes.get_yscale()) for axes in drawn.axes} == {("log", "linear")}
    assert [text.get_text() for text in drawn.legends[0].get_texts()][:5] == [arm.label for arm in PEERS]
    speeds = [row.tokens_per_s.mid for row in rows_of(run) if row.label == "llama.cpp" and row.tokens_per_s]
    assert list(curve(drawn.axes[0], 2).get_ydata()) == pytest.approx(speeds[:9])
    assert list(curve(drawn.axes[1], 0).get_ydata()) == pytest.approx(speeds[9:18])


def test_each_panel_has_its_own_baseline_and_no_other(tmp_path: Path) -> None:
    arms = (PREFILL.arms[2], PREFILL.arms[4])
    drawn = figure(replace(PREFILL, arms=arms).write(tmp_path))
    assert [len(axes.containers) for axes in drawn.axes] == [2, 2, 2]
    assert not any(axes.texts for axes in drawn.axes)


def test_systems_that_cannot_run_a_precision_are_named_below(tmp_path: Path) -> None:
    said = caption(figure(PREFILL.write(tmp_path)))
    assert (
        "Not drawn: transformers grouped_mm in int8, transformers eager in int8, transformers grouped_mm in q4_0, "
        "transformers eager in q4_0 (UNSUPPORTED, transformers runs bf16 alone)."
    ) in said


def test_kernels_of_systems_share_panels_by_precision(tmp_path: Path) -> None:
    drawn = figure(KERNELS.write(tmp_path))
    assert [axes.get_title() for axes in drawn.axes] == [
        "bf16 weights (TFLOPS)",
        "int8 weights (TOPS)",
        "int4_g32 weights (TOPS)",
    ]
    assert [len(axes.containers) for axes in drawn.axes] == [4, 2, 2]
    assert "transformers eager, bf16" in {text.get_text() for text in drawn.axes[1].texts}
