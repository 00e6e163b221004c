"""Curve figures: points are what was measured, roofs lie where arithmetic puts them, and all of it can be read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

from ktbench.report.documents import documents_of
from ktbench.report.figures.draw import draw
from ktbench.report.figures.marks import decades
from ktbench.resources import data_folder
from ktbench.results import read_run
from ktbench.results.rows import rows_of
from ktbench.spec.record import Outcome
from tests.report.drawn import caption, curve, inks, legend, speed_figure, x_names
from tests.report.layers import (
    EXPERT_WEIGHTS,
    KERNELS,
    PEAKS,
    READ,
    TOP_K,
    LayerArm,
    LayerPart,
    LayerStore,
    work_of,
)

NO_AMX = "+m: this processor has no AMX"
WITHOUT_AMX = tuple(
    LayerArm(label=arm.label, outcome=Outcome.UNSUPPORTED, why=NO_AMX) if "+m" in arm.label else arm for arm in KERNELS
)
LOUD = tuple(replace(arm, noise=0.25) for arm in KERNELS)
EVERY = (*KERNELS, LayerArm(label="+v+m+d"), LayerArm(label="+v+m+d int4_g128", share=0.7))
FEW = (LayerArm(label="+v+d", share=0.95), LayerArm(label="+m+d", share=0.75))
EIGHT = tuple(range(1, 9))


def part(**changes: object) -> LayerStore:
    return LayerStore(parts=(LayerPart(**changes),), rounds=6)  # type: ignore[arg-type]


STORES = {
    "kernels": part(),
    "deepseek": part(arms=KERNELS[:7], tokens=(1, 4, 16, 64, 256)),
    "bf16": part(arms=KERNELS[:3]),
    "without AMX": part(arms=WITHOUT_AMX),
    "loud": part(arms=LOUD),
    "every precision": part(arms=EVERY),
    "one point": part(tokens=(8,)),
    "routings": part(arms=FEW, tokens=(1, 2, 4), routings=("balanced", "zipf")),
    "far apart": replace(part(), roof_noise=0.3),
    "few tokens": part(figure="latency", arms=FEW, tokens=EIGHT),
    "few tokens, all": part(figure="latency", arms=KERNELS, tokens=EIGHT),
    "nothing ran": part(arms=(LayerArm(label="base", outcome=Outcome.CRASHED, why="signal 9"),), tokens=(1, 2)),
    "no latency": part(figure="latency", arms=(LayerArm(label="+m", outcome=Outcome.UNSUPPORTED, why=NO_AMX),)),
}


def dashed(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if line.get_linestyle() == "--"]


@pytest.mark.parametrize("name", ["kernels", "bf16", "without AMX", "few tokens, all"])
def test_labels_cover_no_marker(tmp_path: Path, name: str) -> None:
    """Labels are drawn under curves, so one that a marker lies over could not be read."""
    drawn = speed_figure(STORES[name].write(tmp_path))
    drawn.draw_without_rendering()
    for axes in drawn.axes:
        points = [xy for container in axes.containers for xy in container.lines[0].get_xydata()]  # type: ignore[attr-defined]
        (covered,) = inks([axes.texts], drawn)
        for x, y in axes.transData.transform(points):
            assert not covered[covered.shape[0] - 1 - round(y), round(x)], (x, y)


def test_labels_of_the_recorded_kernels_cross_no_curve_and_no_whisker() -> None:
    """AMX goes beyond the roof of AVX-512 there, as far as the label of that is wide."""
    run = read_run(data_folder("reports") / "recorded" / "granite_rapids_2_cores" / "kernels")
    document = next(one for one in documents_of(run) if one.table.part == "qwen3_layer")
    drawn = draw(document)
    drawn.draw_without_rendering()
    for axes in drawn.axes:
        lines = [container.lines[0].get_xydata() for container in axes.containers]  # type: ignore[attr-defined]
        lines += [bar for container in axes.containers for bar in container.lines[2][0].get_segments()]  # type: ignore[attr-defined]
        points = [xy for line in lines for xy in _along(axes.transData.transform(line))]
        (covered,) = inks([axes.texts], drawn)
        assert not any(covered[covered.shape[0] - 1 - round(y), round(x)] for x, y in points)


def _along(points: np.ndarray) -> list[tuple[float, float]]:
    """Every pixel or so of a line through points."""
    found: list[tuple[float, float]] = []
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = 2 + int(2 * max(abs(x1 - x0), abs(y1 - y0)))
        found += zip(np.linspace(x0, x1, steps), np.linspace(y0, y1, steps), strict=True)
    return found


def test_points_are_operations_over_the_median_step(tmp_path: Path) -> None:
    run = STORES["kernels"].write(tmp_path)
    line = curve(speed_figure(run).axes[1], 0)
    cells = [cell for cell in run.header.cells if cell.label == "+v+d int8"]
    step_s = {
        cell.spec.tokens_per_expert: median(median(r.samples_s) for r in run.records if r.cell == cell.key)
        for cell in cells
    }
    assert list(line.get_xdata()) == sorted(step_s)
    expected = [2 * EXPERT_WEIGHTS * TOP_K * tokens / step_s[tokens] / 1e12 for tokens in sorted(step_s)]
    assert list(line.get_ydata()) == pytest.approx(expected)


def test_whiskers_are_the_interval(tmp_path: Path) -> None:
    run = STORES["loud"].write(tmp_path)
    row = next(row for row in rows_of(run) if row.label == "base" and row.spec.tokens_per_expert == 1)
    assert row.step_s is not None
    _, _, (bars,) = speed_figure(run).axes[0].containers[0].lines  # type: ignore[attr-defined]
    (_, low), (_, high) = bars.get_segments()[0]
    flops = work_of(row.spec).flops
    assert (low, high) == pytest.approx((flops / row.step_s.high / 1e12, flops / row.step_s.low / 1e12))


@pytest.mark.parametrize(("panel", "dtype", "stored"), [(0, "bf16", 2.0), (1, "int8", 1.0), (2, "int8", 0.5625)])
def test_roofs_are_the_measured_peaks_and_the_read_slope(tmp_path: Path, panel: int, dtype: str, stored: float) -> None:
    """A token adds two operations for each weight, which has `stored` bytes: 25 GB/s allow 50 / stored GFLOPS."""
    axes = speed_figure(replace(STORES["kernels"], roof_noise=0.0).write(tmp_path)).axes[panel]
    slope, *peaks = dashed(axes)
    xs, ys = slope.get_xdata(), slope.get_ydata()
    assert [y / x for x, y in zip(xs, ys, strict=True)] == pytest.approx([READ * 2 / stored / 1e12] * 2)
    levels = {isa: PEAKS[isa, dtype] / 1e12 for isa in ("amx", "avx512")}
    assert sorted(line.get_ydata()[0] for line in peaks) == pytest.approx(sorted(levels.values()))
    for line in peaks:  # a peak begins where the read roof reaches it
        start, level = line.get_xdata()[0], line.get_ydata()[0]
        assert start * READ * 2 / stored / 1e12 == pytest.approx(level)
    assert ys[-1] == pytest.approx(levels["amx"])
    said = {text.get_text() for text in axes.texts}
    assert {"read 25 GB/s", f"amx {levels['amx']:.2g}", f"avx512 {levels['avx512']:.2f}"} <= said


def test_the_band_reaches_from_the_least_to_the_most_sampled(tmp_path: Path) -> None:
    """At the left edge the read roof bounds it, at the right edge the peak of AMX."""
    run = STORES["bf16"].write(tmp_path)
    roofs = [roof for record in run.records for roof in record.roofs]
    reads = [roof.read_bytes_per_s / 1e12 for roof in roofs]
    peaks = [roof.peak_flops / 1e12 for roof in roofs if roof.peak_flops and roof.peak_isa == "amx"]
    axes = speed_figure(run).axes[0]
    corners = axes.collections[0].get_paths()[0].vertices
    left, right = axes.get_xlim()
    at_left = {round(y / x, 9) for x, y in corners if x == pytest.approx(left)}
    at_right = {round(y, 6) for x, y in corners if x == pytest.approx(right)}
    assert at_left == {round(min(reads), 9), round(max(reads), 9)}
    assert at_right == {round(min(peaks), 6), round(max(peaks), 6)}


def test_base_is_a_thin_line_in_the_panels_of_other_precisions(tmp_path: Path) -> None:
    bf16, int8, *_ = speed_figure(STORES["kernels"].write(tmp_path)).axes
    base = curve(bf16, 0)
    (reference,) = (line for line in int8.lines if line.get_linestyle() == "-" and line.get_marker() == "None")
    assert list(reference.get_ydata()) == list(base.get_ydata())
    assert reference.get_linewidth() < base.get_linewidth()
    assert "base, bf16" in {text.get_text() for text in int8.texts}
    assert not any("base" in text.get_text() for text in bf16.texts)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.004, 20, [0.01, 0.1, 1, 10]),
        (0.3, 30, [0.5, 1, 2, 5, 10, 20]),
        (1, 100, [1, 10, 100]),
    ],
)
def test_decades_or_finer_where_those_are_few(low: float, high: float, shown: list[float]) -> None:
    assert decades(low, high) == pytest.approx(shown)


def test_a_setting_that_changes_with_the_precision_is_said_by_the_panel(tmp_path: Path) -> None:
    run = part(arms=KERNELS[:4], tokens=(1, 4)).write(tmp_path)
    seeds = {"bf16": 3, "int8": 7}
    cells = tuple(
        replace(cell, spec=replace(cell.spec, workload=replace(cell.spec.workload, seed=seeds[cell.spec.precision])))
        for cell in run.header.cells
    )
    drawn = speed_figure(replace(run, header=replace(run.header, cells=cells)))
    assert legend(drawn) == legend(speed_figure(run)) == ["base", "+v+d", "+m+d", "roof, measured"]
    assert [f"seed {seed}" in axes.get_title() for axes, seed in zip(drawn.axes, seeds.values(), strict=True)] == [
        True
    ] * 2


def test_single_points_that_failed_are_named_by_their_tokens(tmp_path: Path) -> None:
    run = STORES["deepseek"].write(tmp_path)
    (cell,) = (c for c in run.header.cells if c.label == "+v+d int8" and c.spec.tokens_per_expert == 16)
    failed = replace(
        next(r for r in run.records if r.cell == cell.key),
        round=9,
        outcome=Outcome.WRONG,
        why="layer 0: relative error 0.4",
        samples_s=(),
    )
    drawn = speed_figure(replace(run, records=(*run.records, failed)))
    assert "Not drawn: +v+d int8 at 16 (WRONG, layer 0: relative error 0.4)." in caption(drawn)
    assert list(curve(drawn.axes[1], 0).get_xdata()) == [1, 4, 64, 256]


def test_a_noisy_point_is_ringed(tmp_path: Path) -> None:
    arms = (KERNELS[0], replace(KERNELS[1], noise=0.3))
    drawn = speed_figure(part(arms=arms, tokens=(1, 4)).write(tmp_path))
    assert legend(drawn) == ["base", "+v+d", "NOISY", "roof, measured"]
    (ring,) = (line for line in drawn.axes[0].lines if line.get_linestyle() == "None" and line.get_marker() == "o")
    assert list(ring.get_ydata()) == list(curve(drawn.axes[0], 1).get_ydata())
    assert "A ringed value is NOISY" in caption(drawn)
    quiet = speed_figure(replace(STORES["bf16"], run="b").write(tmp_path))
    assert "NOISY" not in legend(quiet)


def test_where_most_points_are_noisy_the_others_are_ringed(tmp_path: Path) -> None:
    arms = (KERNELS[0], *(replace(arm, noise=0.3) for arm in KERNELS[1:3]))
    drawn = speed_figure(part(arms=arms, tokens=(1, 4)).write(tmp_path))
    rings = [line for line in drawn.axes[0].lines if line.get_linestyle() == "None" and line.get_marker() == "o"]
    assert list(curve(drawn.axes[0], 0).get_ydata()) in [list(ring.get_ydata()) for ring in rings]
    assert "OK" in legend(drawn) and "NOISY" not in legend(drawn)


def test_the_latency_figure_starts_from_zero(tmp_path: Path) -> None:
    run = STORES["few tokens"].write(tmp_path)
    axes = speed_figure(run).axes[0]
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    assert x_names(axes) == [str(n) for n in EIGHT]
    ms = [row.step_s.mid * 1e3 for row in rows_of(run) if row.label == "+m+d" and row.step_s]
    assert list(curve(axes, 1).get_ydata()) == pytest.approx(ms)


def test_the_read_roof_of_a_layer_is_a_time(tmp_path: Path) -> None:
    """Eight experts of 3 × 2048 × 768 bf16 weights at 25 GB/s."""
    axes = speed_figure(replace(STORES["few tokens"], roof_noise=0.0).write(tmp_path)).axes[0]
    (line,) = dashed(axes)
    assert list(line.get_ydata()) == pytest.approx([8 * 3 * 2048 * 768 * 2 / 25e9 * 1e3] * 8)
    assert [text.get_text() for text in axes.texts] == ["read 25 GB/s"]


def test_curves_differ_in_grey_and_in_shape(tmp_path: Path) -> None:
    arms = tuple(LayerArm(label=label) for label in ("base", "+v", "+m", "+v+d", "+m+d", "+v+m", "+v+m+d"))
    axes = speed_figure(part(arms=arms, tokens=(1, 2)).write(tmp_path)).axes[0]
    lines = [curve(axes, n) for n in range(len(arms))]
    assert len({line.get_marker() for line in lines}) == len(arms)
    grey = [np.dot(to_rgb(line.get_color()), (0.299, 0.587, 0.114)) for line in lines]
    assert all(abs(one - other) > 0.1 for one, other in pairwise(grey))


def test_an_arm_looks_the_same_with_and_without_base(tmp_path: Path) -> None:
    with_base, without = (
        speed_figure(part(arms=arms, tokens=(1, 2), figure="throughput").write(tmp_path / name)).axes[0]
        for name, arms in (("a", KERNELS[:3]), ("b", KERNELS[1:3]))
    )
    assert curve(with_base, 1).get_marker() == curve(without, 0).get_marker()
    assert curve(with_base, 1).get_color() == curve(without, 0).get_color()


@pytest.mark.parametrize(("name", "width"), [("bf16", 3.5), ("few tokens", 3.5), ("kernels", 7.0), ("deepseek", 7.0)])
def test_sized_for_a_column_or_a_page(tmp_path: Path, name: str, width: float) -> None:
    assert speed_figure(STORES[name].write(tmp_path)).get_figwidth() == width
