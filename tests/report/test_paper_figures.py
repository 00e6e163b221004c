"""Figures of published numbers: the values are those of the lines, nothing lies over another, the same bytes again."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ktbench.report.documents import Document
from ktbench.report.figures.draw import draw
from ktbench.report.figures.output import Stylesheet, embedded
from ktbench.report.figures.published import bar_namer, form_of, namer, panels_of
from ktbench.report.paper_table import paper_table
from ktbench.results.paper import PaperLine, paper_lines
from ktbench.results.rows import rows_of
from ktbench.spec.sweep import NO_STYLE, FigureStyle
from tests.drawing import few_of
from tests.report.drawn import (
    bar_heights,
    caption,
    legend,
    titles,
)
from tests.report.paper_cells import KT, cell, record, run_of

OTHER = cell("base", of="qwen3_30b_a3b", prompt=7)  # no number is about it
FORMS = {
    "fig3": "curves", "fig7": "curves", "fig11": "curves", "placement": "curves", "fig10": "bars", "fig12": "bars",
    "fig14b": "bars", "concurrency": "bars", "table2": "scores", "fig13": "heat", "quantisation": "list",
    "layerwise": "curves", "llamafile": "curves", "sfta": "bars", "stateda": "bars", "statedb": "bars",
}  # fmt: skip


def lines_of(figure: str, factor: float | None = None) -> list[PaperLine]:
    """The numbers of a figure; what is a speed of ours is simulated as `factor` of it."""
    run = run_of([(OTHER, record(OTHER, 1.0))], figure)
    lines = [line for line in paper_lines(run, rows_of(run)) if line.id]
    ours = [line.phase != "accuracy" and not line.arm.startswith("llama") for line in lines]
    if factor is None:
        return lines
    return [
        replace(line, simulated=factor * (line.published or 0)) if mine else line
        for line, mine in zip(lines, ours, strict=True)
    ]


def drawn(figure: str, lines: list[PaperLine], style: FigureStyle = NO_STYLE) -> Figure:
    run = run_of([(OTHER, record(OTHER, 1.0))], figure)
    table = paper_table(run, rows_of(run), lines)
    return draw(Document(kind="paper", run=run, rows=rows_of(run), lines=tuple(lines), table=table), style)


@pytest.mark.parametrize("figure", FORMS)
def test_the_form_is_what_the_numbers_ask_for(figure: str) -> None:
    assert form_of(lines_of(figure)) == FORMS[figure]


@pytest.mark.parametrize("figure", few_of(["fig7", "fig12", "fig13"], {"fig13"}))
def test_the_same_lines_give_the_same_bytes(figure: str) -> None:
    lines = lines_of(figure, 0.9)
    first, second = BytesIO(), BytesIO()
    for file in (first, second):
        drawn(figure, lines).savefig(file, format="png", metadata={"Software": None})
    assert first.getvalue() == second.getvalue()
    assert embedded(drawn(figure, lines), "a", Stylesheet()) == embedded(drawn(figure, lines), "a", Stylesheet())


def test_bars_are_as_high_as_the_values_and_published_ones_are_hollow() -> None:
    lines = lines_of("fig14b", 0.5)
    sheet = drawn("fig14b", lines)
    assert titles(sheet) == ["DeepSeek-V3", "DeepSeek-V2", "Qwen2-57B-A14B"]
    for panel, axes in zip(panels_of(lines), sheet.axes, strict=True):
        heights = bar_heights(axes)
        assert heights == pytest.approx([value for one in panel.lines for value in (one.published, one.simulated)])
        looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in axes.patches[::2]}
        assert looks == {((1.0, 1.0, 1.0, 1.0), "//////")}
    assert legend(sheet) == ["published", "simulated", "simulated, used to fit"]


def test_a_simulated_arm_without_a_published_value_has_no_bar_but_beside_a_measured_one() -> None:
    lines = lines_of("stateda", 0.9)
    alone = replace(lines[0], id="", arm="+v+m", published=None, simulated=123.0, source="")
    assert not any(123.0 in bar_heights(axes) for axes in drawn("stateda", [*lines, alone]).axes)
    assert "Not drawn: 1 number" in caption(drawn("stateda", [*lines, alone]))
    both = replace(alone, measured=120.0)
    assert any({123.0, 120.0} <= {*bar_heights(axes)} for axes in drawn("stateda", [*lines, both]).axes)


def test_bars_of_what_constants_were_fitted_on_look_different() -> None:
    lines = [replace(line, fitted=n == 0) for n, line in enumerate(lines_of("fig14b", 0.5))]
    sheet = drawn("fig14b", lines)
    ours = [bar.get_facecolor() for axes in sheet.axes for bar in axes.patches[1::2]]
    assert ours[0] not in ours[1:] and len({*ours}) == 2
    assert legend(drawn("fig14b", [replace(line, fitted=False) for line in lines])) == ["published", "simulated"]


def test_base_comes_first_and_other_systems_before_ours_with_their_formats() -> None:
    lines = lines_of("fig12")
    panel = panels_of(lines)[0]
    assert [line.arm for line in panel.lines] == ["base", "llama.cpp", KT, f"{KT} deferral=3"]
    assert [bar_namer(lines)(line) for line in panel.lines] == ["base", "llama.cpp, fp16", KT, f"{KT} deferral=3"]


def test_panels_of_one_model_say_what_they_measure() -> None:
    sheet = drawn("fig10", lines_of("fig10", 0.9))
    assert titles(sheet) == [
        "host busy", "device busy", "overlap", "synchronisation and copies of activations", "time saved",
    ]  # fmt: skip
    assert {axes.get_ylabel() for axes in sheet.axes} == {"%", ""}


def test_curves_run_through_the_values() -> None:
    lines = lines_of("fig11", 2.0)
    sheet = drawn("fig11", lines)
    assert titles(sheet) == [
        "DeepSeek-V3, bf16", "DeepSeek-V2, bf16", "Qwen2-57B-A14B, bf16",
        "DeepSeek-V3, int4_g32", "DeepSeek-V2, int8", "Qwen2-57B-A14B, int8",
    ]  # fmt: skip
    ours = [one for one in lines if (one.arm, one.model, one.machine) == (KT, "deepseek_v3", "paper_a100")]
    curves = [curve for curve in sheet.axes[0].lines if curve.get_ydata()[0] in (18.13, 36.26)]  # type: ignore[index]
    hollow, filled = sorted(curves, key=lambda curve: float(np.asarray(curve.get_ydata())[0]))
    assert list(hollow.get_xdata()) == list(filled.get_xdata()) == [one.tokens for one in ours]  # type: ignore[arg-type]
    assert list(hollow.get_ydata()) == [one.published for one in ours]  # type: ignore[arg-type]
    assert list(filled.get_ydata()) == [one.simulated for one in ours]  # type: ignore[arg-type]
    assert hollow.get_markerfacecolor() == "none" and hollow.get_linestyle() == "--"
    assert filled.get_markerfacecolor() == filled.get_color()
    assert legend(sheet) == ["base", "llama.cpp", KT, "published", "simulated"]


def test_what_was_measured_here_is_a_third_look() -> None:
    lines = [replace(line, measured=1.0, fitted=False) for line in lines_of("fig12", 0.9)]
    assert legend(drawn("fig12", lines)) == ["published", "simulated", "measured here"]
    curves = [replace(line, measured=1.0) for line in lines_of("fig7", 0.9)]
    assert legend(drawn("fig7", curves))[-1] == "measured here"


def test_numbers_without_a_place_on_the_axis_are_said() -> None:
    sheet = drawn("fig3", lines_of("fig3", 0.9))
    assert "Not drawn: 3 numbers without a place on the axis." in caption(sheet)
    assert len({tuple(np.atleast_1d(line.get_xdata())) for line in sheet.axes[0].lines}) == 1


def test_settings_tell_curves_of_one_arm_apart() -> None:
    lines = lines_of("fig3")
    assert set(map(namer(lines), lines)) == {"base", "base, without AMX", "+m+d"}
    shades = {line.get_color() for line in handles(drawn("fig3", lines))[:3]}
    assert len(shades) == 3


def test_many_curves_of_one_model_have_a_panel_each() -> None:
    sheet = drawn("placement", lines_of("placement", 0.9))
    policies = ["random", "uniform", "front_loading", "frequency", "dynamic"]
    assert titles(sheet) == [f"policy {policy}" for policy in policies]
    for axes in sheet.axes:
        places = {x for line in axes.lines for x in np.atleast_1d(line.get_xdata())}
        assert sorted(places) == pytest.approx([n / 10 for n in range(11)])  # with what has nothing at the device


def test_a_list_has_a_dot_for_each_score() -> None:
    (axes,) = drawn("quantisation", lines_of("quantisation")).axes
    dots = next(line for line in axes.lines if len(np.atleast_1d(line.get_xdata())) > 2)
    assert list(np.asarray(dots.get_xdata())) == [line.published for line in lines_of("quantisation")]


def handles(sheet: Figure) -> list[Line2D]:
    return [one for legend in sheet.legends for one in legend.legend_handles if isinstance(one, Line2D)]
