"""Rows, tables and figures of engines whose roles are apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.collections import PolyCollection

from ktbench.report.figures.cells import axis_of, cells_of
from ktbench.results.rows import rows_of
from ktbench.spec.record import Outcome
from tests.report.drawn import speed_figure, x_names
from tests.report.role_stores import DEFERRAL, DEPTH, LADDER, PLACEMENT, POLICIES
from tests.report.synthetic import Arm

MIXED = (
    *LADDER[:3],
    Arm(label="+v+d+l skipping=2", step_ms=18.0),
    Arm(label="+v+d+l deferral=6", outcome=Outcome.WRONG, why="layer 3: relative error 0.2"),
)
STORES = {
    "deferral": DEFERRAL,
    "batches": replace(DEFERRAL, arms=LADDER[:5], batches=(1, 2, 4, 8)),
    "mixed": replace(DEFERRAL, arms=MIXED),
    "placement": PLACEMENT,
    "depth": DEPTH,
    "depth and batch": replace(DEPTH, batches=(1, 8)),
    "one depth": replace(DEPTH, prompts=(64,)),
}


def test_shares_are_those_of_the_steps(tmp_path: Path) -> None:
    """Busy 62 % of the time, the device waiting 48 % of it: it worked 52 %, both did 62 + 52 - 100 %."""
    row = rows_of(DEFERRAL.write(tmp_path))[0]
    mids = [row.values[name].mid for name in ("host_busy", "device_busy", "overlap")]
    assert mids == pytest.approx([0.62, 0.52, 0.14])


def test_the_figure_of_roles_has_speeds_above_shares(tmp_path: Path) -> None:
    run = DEFERRAL.write(tmp_path)
    rows = [row for row in rows_of(run) if row.role == "arm"]
    speed, busy = speed_figure(run).axes
    assert x_names(busy) == [*map(str, range(9)), "auto"]
    assert busy.get_xlabel() == "experts deferred, of 8 a token"
    ys = speed.containers[0].lines[0].get_ydata()  # type: ignore[attr-defined]
    assert list(ys) == pytest.approx([row.tokens_per_s.mid for row in rows if row.tokens_per_s])
    heights = [[bar.get_height() for bar in container] for container in busy.containers]
    hosts = [bars[0] for bars in heights[: len(rows)]]
    assert hosts == pytest.approx([100 * row.values["host_busy"].mid for row in rows])
    assert speed.get_ylim()[0] == busy.get_ylim()[0] == 0


def test_of_a_device_that_waits_unseen_the_share_of_the_host_alone_is_drawn(tmp_path: Path) -> None:
    unseen = tuple(replace(arm, roles=(arm.roles[0], None)) for arm in LADDER if arm.roles)
    run = replace(DEFERRAL, arms=unseen).write(tmp_path)
    (first, *_) = rows_of(run)
    assert first.values["host_busy"].mid == pytest.approx(0.62)
    assert not {"device_busy", "overlap"} & first.values.keys()
    figure = speed_figure(run)
    assert len(figure.axes[1].containers) == len(unseen)


def test_depth_is_the_axis_that_varies_most(tmp_path: Path) -> None:
    assert axis_of(cells_of(rows_of(STORES["depth and batch"].write(tmp_path)))).key == "workload.prompt"
    assert axis_of(cells_of(rows_of(PLACEMENT.write(tmp_path)))).key == "engine.placement.ratio"
    assert axis_of(cells_of(rows_of(STORES["one depth"].write(tmp_path / "one")))).key == "workload.prompt"


def test_an_axis_of_a_described_machine_has_the_name_and_unit_of_its_constant(tmp_path: Path) -> None:
    rows = rows_of(STORES["depth"].write(tmp_path))[:2]
    speeds = [replace(row, settings={"machine.read_gb_per_s": 100.0 * n}) for n, row in enumerate(rows, 1)]
    assert axis_of(cells_of(speeds)).name == "read bandwidth of a domain from its own memory, GB/s"


def test_a_line_for_each_arm_over_the_context(tmp_path: Path) -> None:
    run = DEPTH.write(tmp_path)
    axes = speed_figure(run).axes[0]
    assert (axes.get_xscale(), axes.get_ylim()[0]) == ("log", 0)
    assert x_names(axes) == ["64", "512", "2048", "8192"]
    rows = [row for row in rows_of(run) if row.label == "+v+d+l" and row.tokens_per_s]
    line = axes.containers[1].lines[0]  # type: ignore[attr-defined]
    assert list(line.get_ydata()) == pytest.approx([row.tokens_per_s.mid for row in rows if row.tokens_per_s])
    band = [each for each in axes.collections if isinstance(each, PolyCollection)][1].get_paths()[0].vertices
    ends = [end for row in rows if row.tokens_per_s for end in (row.tokens_per_s.low, row.tokens_per_s.high)]
    assert (min(y for _, y in band), max(y for _, y in band)) == pytest.approx((min(ends), max(ends)))


def test_a_line_for_each_policy_over_the_share_at_the_device(tmp_path: Path) -> None:
    drawn = speed_figure(PLACEMENT.write(tmp_path))
    said = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    assert said == ["policy host", *(f"policy {name}" for name in POLICIES)]
    lines = [container.lines[0].get_xdata() for container in drawn.axes[0].containers]  # type: ignore[attr-defined]
    assert [list(xs) for xs in lines] == [[0.0], *([[0.125, 0.25, 0.5]] * 4)]
    assert drawn.axes[0].get_xlabel() == "share of the experts at the device"
