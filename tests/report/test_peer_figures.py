"""Figures in which systems are compared: speeds per system and precision, over the prompt, over tokens per expert."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.results.rows import rows_of
from tests.report.drawn import bar_heights, caption, curve, legend, speed_figure, titles, x_names
from tests.report.peer_stores import DECODE, KERNELS, PEERS, PREFILL, UNPROVEN
from tests.report.synthetic import Store

ALL = replace(DECODE, arms=PEERS)
STORES = {
    "decode": DECODE,
    "decode with gaps": ALL,
    "one precision": Store(arms=UNPROVEN, rounds=6, run="peers"),
    "every precision": replace(ALL, precisions=("bf16", "q8_0", "int8", "q4_0", "int4_g32")),
    "prefill": PREFILL,
    "kernels": KERNELS,
}


def test_bars_of_systems_are_speeds_so_that_no_system_has_to_be_there(tmp_path: Path) -> None:
    run = ALL.write(tmp_path)
    (axes,) = speed_figure(run).axes
    speeds = [row.tokens_per_s.mid for row in rows_of(run) if row.role == "arm" and row.tokens_per_s]
    assert len(speeds) == 5 + 3 + 3
    assert bar_heights(axes) == pytest.approx(speeds)
    assert axes.get_ylabel() == "tokens/s"
    assert x_names(axes) == ["bf16", "q8_0", "q4_0"]
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in axes.patches[:5]}) == 5
    assert "speed in tokens/s; whiskers: interval of the median." in caption(speed_figure(run))


def test_a_baseline_with_a_long_name_leaves_the_axis_readable(tmp_path: Path) -> None:
    arms = tuple(replace(arm, label=label) for arm, label in zip(PEERS, ("transformers grouped_mm",), strict=False))
    run = Store(arms=(*arms, replace(PEERS[1])), rounds=6).write(tmp_path)
    assert speed_figure(run).axes[0].get_ylabel() == "speed-up (×)"


def test_prefill_has_a_panel_for_each_precision_over_the_prompt(tmp_path: Path) -> None:
    run = PREFILL.write(tmp_path)
    drawn = speed_figure(run)
    assert titles(drawn) == ["bf16 weights", "int8 weights", "q4_0 weights"]
    assert {axes.get_xlabel() for axes in drawn.axes} == {"tokens of the prompt"}
    assert {(axes.get_xscale(), axes.get_yscale()) for axes in drawn.axes} == {("log", "linear")}
    ours = ("+v+d", "+v+d+l")
    assert legend(drawn)[:5] == [f"ktbench {arm.label}" if arm.label in ours else arm.label for arm in PEERS]
    speeds = [row.tokens_per_s.mid for row in rows_of(run) if row.label == "llama.cpp" and row.tokens_per_s]
    assert list(curve(drawn.axes[0], 2).get_ydata()) == pytest.approx(speeds[:9])
    assert list(curve(drawn.axes[1], 0).get_ydata()) == pytest.approx(speeds[9:18])


def test_each_panel_has_its_own_baseline_and_no_other(tmp_path: Path) -> None:
    arms = (PREFILL.arms[2], PREFILL.arms[4])
    drawn = speed_figure(replace(PREFILL, arms=arms).write(tmp_path))
    assert [len(axes.containers) for axes in drawn.axes] == [2, 2, 2]
    assert not any(axes.texts for axes in drawn.axes)
