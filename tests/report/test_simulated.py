"""Simulated rows: exact numbers, told from measured ones and never compared with them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer

from ktbench.report.figures.timeline import timeline_figure
from ktbench.report.speed_table import table_of
from ktbench.report.terminal import row_line
from ktbench.results import Run
from ktbench.results.row import groups_of, roof_rows
from ktbench.results.rows import rows_of
from ktbench.results.speedups import Verdict
from ktbench.spec.record import Agreement, Outcome
from ktbench.spec.sweep import FigureKind
from ktbench.spec.timeline import Span, Timeline
from tests.report.drawn import speed_figure, texts
from tests.report.layers import LayerPart, LayerStore
from tests.report.peer_stores import PEERS
from tests.report.reading import headings, row, table
from tests.report.role_stores import DEFERRAL
from tests.report.simulated_runs import MACHINE, OTHER, simulated
from tests.report.synthetic import NO_CUDA, Arm, Store

# Without noise and drift the first round of a measured arm takes what it is given.
ARMS = (
    Arm(label="base", step_ms=182.0, noise=0.0),
    Arm(label="+v", step_ms=61.0, noise=0.0),
    Arm(label="+m", step_ms=181.0, noise=0.0),
    Arm(label="+v+d", step_ms=62.5, noise=0.0),
    Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why="+n: testbed has one NUMA domain"),
    Arm(label="+v+d+n+c", outcome=Outcome.UNSUPPORTED, why=NO_CUDA),
)
STORE = Store(arms=ARMS, rounds=6, steps=1, drift=0.0)
NOISY = Store(arms=(Arm(label="base"), Arm(label="+v", step_ms=50.0, noise=0.4)), rounds=6)


def said(run: Run) -> str:
    return " ".join((*table(run).conditions, *table(run).methods))


def test_one_step_is_the_whole_truth(tmp_path: Path) -> None:
    run = simulated(NOISY.write(tmp_path))
    assert [row.outcome for row in rows_of(run)] == [Outcome.OK] * 2
    fast = row(run, "+v")
    for value in (fast.step_s, fast.tokens_per_s, fast.speedup, fast.interval("roof_share")):
        assert value is not None and value.low == value.mid == value.high
    assert fast.tokens_per_s and fast.step_s and fast.tokens_per_s.mid == pytest.approx(1 / fast.step_s.mid)


@pytest.mark.parametrize(
    ("label", "ratio", "verdict", "gain"),
    [
        ("+v", 182 / 61, Verdict.FASTER, ("base", Verdict.FASTER)),
        ("+m", 182 / 181, Verdict.SAME, ("base", Verdict.SAME)),
        ("+v+d", 182 / 62.5, Verdict.FASTER, ("+v", Verdict.SLOWER)),
    ],
)
def test_verdicts_follow_from_the_ratio_alone(
    tmp_path: Path, label: str, ratio: float, verdict: Verdict, gain: tuple[str, Verdict]
) -> None:
    found = row(simulated(STORE.write(tmp_path)), label)
    assert found.speedup is not None and found.speedup.mid == pytest.approx(ratio, rel=0.003)
    assert found.verdict is verdict
    assert found.gain is not None and (found.gain.over, found.gain.verdict) == gain


def test_the_share_of_the_roof_is_that_of_the_described_machine(tmp_path: Path) -> None:
    found = row(simulated(STORE.write(tmp_path)), "base")
    assert found.step_s is not None
    assert found.values["roof_share"].mid == pytest.approx(1.1e9 / 440e9 / found.step_s.mid)


def test_nothing_is_written_in_brackets_or_with_a_spread(tmp_path: Path) -> None:
    run = simulated(NOISY.write(tmp_path))
    cells = " ".join(text for cells in table(run).cells for text in cells)
    lines = "\n".join(row_line(row) for row in rows_of(run))
    assert not re.search(r"[\[\]±~]", cells + lines)
    assert lines.splitlines()[1].endswith("simulated") and "round" not in lines
    assert {"rounds", "samples", "error (relative)", "provenance"}.isdisjoint(headings(table(run)))


def test_several_machines_are_all_named_and_have_baselines_of_their_own(tmp_path: Path) -> None:
    run = simulated(STORE.write(tmp_path), MACHINE, OTHER)
    assert all(f"Roofs of {machine.title}, as described" in said(run) for machine in (MACHINE, OTHER))
    assert [group[0].label for group in groups_of(rows_of(run))] == ["base", "base"]


def test_measured_and_simulated_rows_are_never_compared(tmp_path: Path) -> None:
    run = simulated(STORE.write(tmp_path), beside=True)
    for group in groups_of(rows_of(run)):
        assert len({row.provenance for row in group}) == 1
    kept = tuple(cell for cell in run.header.cells if cell.spec.machine or cell.label != "base")
    rows = rows_of(replace(run, header=replace(run.header, cells=kept)))
    alone = next(row for row in rows if row.label == "+v" and not row.simulated)
    assert alone.speedup is None and alone.missing["speedup"] == "no cell base was planned at these settings"


def test_measured_rows_are_what_they_are_without_simulated_ones(tmp_path: Path) -> None:
    measured = STORE.write(tmp_path)
    both = [row for row in rows_of(simulated(measured, beside=True)) if not row.simulated]
    alone = rows_of(measured)
    assert [(row.step_s, row.speedup, row.outcome) for row in both] == [
        (row.step_s, row.speedup, row.outcome) for row in alone
    ]


def test_peers_that_are_not_simulated_cast_no_doubt_on_what_is(tmp_path: Path) -> None:
    why = "llama.cpp is not simulated; its published numbers are shown where there are any"
    peer = next(arm for arm in PEERS if arm.label == "llama.cpp")
    lacking = replace(peer, outcome=Outcome.UNSUPPORTED, why=why, agreement=None)
    run = simulated(Store(arms=(*ARMS[:2], lacking), rounds=6).write(tmp_path))
    assert not any(row.unproven for row in rows_of(run))
    assert "equal" not in said(run).lower() and why in " ".join(table(run).notes)


def test_agreement_of_measured_peers_is_still_told(tmp_path: Path) -> None:
    agreed = Agreement(against="+v", top1=1.0, kl_nats=0.0, positions=4)
    arms = (replace(ARMS[1], agreement=replace(agreed, against="")), Arm(label="llama.cpp", agreement=agreed))
    run = simulated(Store(arms=arms, rounds=6).write(tmp_path), beside=True)
    assert "Logits are compared with those of +v" in said(run)


@pytest.mark.parametrize("kind", ["bars", "roles", "depth"])
@pytest.mark.parametrize("beside", [False, True])
def test_figures_have_no_whiskers_where_there_are_no_intervals(tmp_path: Path, kind: FigureKind, beside: bool) -> None:
    store = replace(DEFERRAL, figure=kind, prompts=(64, 512), engine={"roles": "split"})
    run = simulated(store.write(tmp_path), beside=beside)
    rows = rows_of(run)
    drawn = speed_figure(run)
    whiskers = [
        bars for axes in drawn.axes for bars in axes.containers if isinstance(bars, ErrorbarContainer) and bars.has_yerr
    ]
    assert bool(whiskers) is beside
    assert texts(drawn)
    assert ("whiskers" in table_of(run, rows).figure_caption) is (beside and kind != "roles")


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_layers_are_drawn_against_the_described_roofs(tmp_path: Path, kind: str) -> None:
    part = LayerPart(figure=kind, tokens=(1, 2, 4))
    run = simulated(LayerStore(parts=(part,), rounds=6).write(tmp_path))
    rows = rows_of(run)
    caption = table_of(run, rows).figure_caption
    assert "described" in caption and "sampled" not in caption
    drawn = speed_figure(run)
    assert "roof, described" in {text.get_text() for text in texts(drawn)}


def test_roofs_of_several_machines_are_not_drawn(tmp_path: Path) -> None:
    store = LayerStore(parts=(LayerPart(tokens=(1, 2)),), rounds=6).write(tmp_path)
    assert roof_rows(rows_of(store)) and roof_rows(rows_of(simulated(store)))
    run = simulated(store, MACHINE, OTHER)
    rows = rows_of(run)
    assert roof_rows(rows) == []
    assert "dashed" not in table_of(run, rows).figure_caption
    assert "roof, described" not in {text.get_text() for text in texts(speed_figure(run))}


def test_a_timeline_has_a_lane_for_launches() -> None:
    ends = (("launch", 0.0, 0.2), ("device", 0.2, 1.0), ("host", 1.0, 3.0), ("device", 3.0, 3.0))
    spans = tuple(
        Span(resource=where, name=where, kind="other", begin_s=begin * 1e-3, end_s=end * 1e-3, layer=0)  # type: ignore[arg-type]
        for where, begin, end in ends
    )
    figure = timeline_figure(Timeline(title="Step", spans=spans, step_s=3e-3, provenance="simulated"))
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["host", "device", "launch"]
    caption = " ".join(text.get_text() for text in figure.texts)
    assert "one step of 3.00 ms, simulated" in caption
    assert "host and device at once 0%" in caption and "launch at once" not in caption
