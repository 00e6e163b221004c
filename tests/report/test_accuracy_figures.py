"""Figures of answers: what they show is what rows hold, nothing lies over another, the same bytes again."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ktbench.report.documents import documents_of
from ktbench.results import Run
from ktbench.results.accuracy import accuracy_rows
from ktbench.spec.record import Outcome
from tests.report.accuracy_stores import (
    BASE,
    FIG13,
    FORMATS,
    FOUR,
    FRONTIER,
    NANO,
    PRECISION,
    SHARED_TABLE2,
    AnswerStore,
    DriftStore,
    deferring,
    skipping,
)
from tests.report.drawn import (
    assert_readable,
    caption,
    legend,
    titles,
    x_names,
    y_names,
)

BROKEN = replace(BASE, label="+v+d deferral=3", ends={"math_1": (Outcome.CRASHED, "signal 9")})
NOTHING = replace(BASE, ends={"": (Outcome.UNSUPPORTED, "no memory for it")})
STORES: dict[str, AnswerStore] = {
    "heat": AnswerStore(arms=(BASE, deferring(2), BROKEN, skipping(8)), questions=6, published=("fig13",)),
    "formats of heat": AnswerStore(
        arms=(BASE, deferring(6)), suite=FOUR, questions=6, formats=(("bf16", "bf16"), ("int4_g32", "int4_g32"))
    ),
    "no score": AnswerStore(arms=(deferring(2), deferring(3)), suite=FOUR, questions=6, baseline="+v+d deferral=2"),
    "dots": replace(SHARED_TABLE2, questions=6, published=()),
    "alone": AnswerStore(arms=(BASE,), questions=6, figure="bars"),
    "many": AnswerStore(arms=(*FIG13, replace(BASE, label="+v")), suite=FOUR, questions=3, figure="accuracy"),
    "formats": replace(PRECISION, suite=FOUR, questions=6),
    "frontier": replace(FRONTIER, suite=FOUR, questions=6),
    "drift": DriftStore(arms=(BASE, deferring(2), skipping(6)), figure="deferral_accuracy"),
    "nothing": AnswerStore(arms=(NOTHING,), questions=1),
    "formats of weights": FORMATS,
    "no speeds": replace(FRONTIER, suite=FOUR, arms=FRONTIER.arms[:2], questions=2, timed=0),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: replace(store, run=name).write(folder) for name, store in STORES.items()}


@pytest.fixture(scope="module")
def figures(runs: dict[str, Run]) -> dict[str, Figure]:
    return {name: documents_of(run)[0].draw() for name, run in runs.items()}


def test_the_heat_map_holds_scores_and_changes(runs: dict[str, Run], figures: dict[str, Figure]) -> None:
    figure, rows = figures["heat"], accuracy_rows(runs["heat"])
    assert titles(figure)[:4] == [
        "Deferral, measured (ktbench nano): relative change, %",
        "Skipping, measured (ktbench nano): relative change, %",
        "Deferral, published (DeepSeek-V3): relative change, %",
        "Skipping, published (DeepSeek-V3): relative change, %",
    ]
    deferral, skipped = figure.axes[:2]
    average = rows[0].result()
    assert average is not None and average.score is not None
    assert deferral.texts[6].get_text() == f"{100 * average.score.mid:.1f}"
    assert x_names(deferral) == ["score", "2", "3"]
    assert x_names(skipped) == ["score", "8"]
    assert deferral.texts[-1].get_text() == "—"  # its average lacks a task
    lost = skipped.texts[-1]
    assert float(lost.get_text()) < -50 and lost.get_fontweight() == "bold"
    assert deferral.texts[7].get_fontweight() == "normal"


def test_the_curves_show_ours_and_the_published(figures: dict[str, Figure]) -> None:
    figure = figures["heat"]
    assert legend(figure) == [
        "deferral", "skipping", "deferral, published (DeepSeek-V3)", "skipping, published (DeepSeek-V3)",
    ]  # fmt: skip
    assert "and as published of DeepSeek-V3; below" in caption(figure)
    whole, near, divergence = figure.axes[4:]
    assert whole.get_ylim()[0] < -80 < near.get_ylim()[0]
    published = next(line for line in whole.lines if list(line.get_xdata()) == list(range(9)))
    assert published.get_ydata()[-1] == -6.7  # of eight deferred experts
    assert divergence.get_yscale() == "log"


def test_the_kl_of_the_average_is_drawn_for_all_but_the_baseline(
    runs: dict[str, Run], figures: dict[str, Figure]
) -> None:
    divergence, rows = figures["heat"].axes[-1], accuracy_rows(runs["heat"])
    averages = [one.kl for row in rows if (one := row.result()) and one.kl and not row.is_baseline]
    drawn = [(*curve.lines[0].get_xdata(), *curve.lines[0].get_ydata()) for curve in divergence.containers]
    assert drawn == [(2, averages[0].mid), (8, averages[1].mid)]
    assert averages[1].mid > averages[0].mid > 0


def test_answers_without_a_kl_are_drawn_without_its_panel(tmp_path: Path) -> None:
    tasks = tuple(replace(task, source="gsm8k") for task in NANO.tasks)
    figure = documents_of(AnswerStore(suite=replace(NANO, tasks=tasks), questions=6).write(tmp_path))[0].draw()
    assert [axes.get_title() for axes in figure.axes[2:]] == ["change, whole", "change, at the scale of deferral"]


def test_dots_stand_at_scores_and_differences(runs: dict[str, Run], figures: dict[str, Figure]) -> None:
    figure, rows = figures["dots"], accuracy_rows(runs["dots"])
    scores, differences = figure.axes
    assert scores.get_xlabel() == "score, %" and differences.get_xlabel() == "difference, points"
    assert y_names(scores) == [
        "humaneval", "mbpp", "gsm8k", "strategyqa", "average",
    ]  # fmt: skip
    assert len(scores.containers) == 10 and len(differences.containers) == 5
    expected = [100 * one.change.difference.mid for one in rows[1].results if one.change and one.kind == "average"]
    assert differences.containers[-1].lines[0].get_xdata()[0] == pytest.approx(expected[0])


def test_pareto_points_are_filled_and_all_are_numbered(figures: dict[str, Figure]) -> None:
    (axes,) = (figure := figures["frontier"]).axes
    filled = [one for one in axes.containers if one.lines[0].get_markerfacecolor() != "white"]
    assert len(axes.containers) == 27 and 0 < len(filled) < 27
    assert sorted(text.get_text() for text in axes.texts) == sorted([*"012345678"] * 3)
    assert legend(figure) == ["bf16", "int8", "int4_g32", "Pareto by the middles, filled", "numbers: deferral"]


def test_formats_lie_at_their_speed_and_divergence(runs: dict[str, Run], figures: dict[str, Figure]) -> None:
    figure, rows = figures["formats of weights"], accuracy_rows(runs["formats of weights"])
    assert titles(figure) == ["prefill of 64 tokens", "decode after 64 tokens"]
    for axes, phase in zip(figure.axes, ("prefill", "decode"), strict=True):
        assert axes.get_yscale() == "log" and "nats" in axes.get_ylabel() and axes.get_xlabel() == "tokens/s"
        mine = {row.row.spec.precision: row for row in rows if row.row.spec.workload.phase == phase}
        assert {text.get_text() for text in axes.texts} == set(mine)
        places = [(one.lines[0].get_xdata()[0], one.lines[0].get_ydata()[0]) for one in axes.containers]
        expected = []
        for name in ("int8", "q8_0", "int4_g32", "q4_0"):  # bf16 diverges nowhere: a line at its speed
            (kl,) = (one.value.mid for one in mine[name].measures if (one.task, one.metric) == (phase, "kl_nats"))
            expected.append((mine[name].row.tokens_per_s.mid, kl))  # type: ignore[union-attr]
        assert places == expected
        (line,) = (one for one in axes.lines if one.get_linestyle() == "--" and len(set(one.get_xdata())) == 1)
        assert line.get_xdata()[0] == mine["bf16"].row.tokens_per_s.mid  # type: ignore[union-attr]
    assert_readable(figure)


def test_the_table_of_formats_says_what_they_take(runs: dict[str, Run]) -> None:
    table = documents_of(runs["formats of weights"])[0].table
    lines = [dict(zip(table.headings, cells, strict=True)) for cells in table.cells]
    assert len(lines) == 10
    assert [line["bits a weight"] for line in lines[:5]] == ["16.0", "8.05", "8.52", "4.30", "4.52"]
    # 4 layers of 128 experts, each three matrices of 2048 by 768
    assert lines[0]["experts (GiB)"] == f"{4 * 128 * 3 * 2048 * 768 * 2 / 2**30:.2f}"
    assert {"speed (tokens/s)", "decode: KL (nats ± SE)", "prefill: KL (nats ± SE)", "Pareto"} <= set(table.headings)
    assert lines[0]["decode: KL (nats ± SE)"] == "reference"


def test_the_same_run_gives_the_same_bytes(runs: dict[str, Run], figures: dict[str, Figure]) -> None:
    files = BytesIO(), BytesIO()
    for figure, file in zip((figures["frontier"], documents_of(runs["frontier"])[0].draw()), files, strict=True):
        figure.savefig(file, format="png", dpi=50, metadata={"Software": None})
    assert files[0].getvalue() == files[1].getvalue()
