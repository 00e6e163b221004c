"""Answers on the page: heat maps, differences with their intervals, speed against score, drift."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from ktbench.report.accuracy.cells import HeatCell
from ktbench.report.accuracy_table import grids_below
from ktbench.report.documents import documents_of
from ktbench.report.html.heat import heat_plot
from ktbench.report.html.page import page_html
from ktbench.report.html.picture import Panel
from ktbench.report.text import SURE_MARK, change_text
from ktbench.results import Run
from ktbench.results.accuracy import parts_of_average
from ktbench.results.answers import AVERAGE, NLL
from ktbench.spec.record import Outcome
from ktbench.spec.suite import TaskSpec
from ktbench.spec.sweep import FigureKind
from tests.report.accuracy_stores import (
    BASE,
    FOUR,
    FRONTIER,
    PRECISION,
    Answering,
    AnswerStore,
    DriftStore,
    deferring,
    skipping,
)
from tests.report.html.figures import axes_of, facts_at, pictures_of, points, words

NASTY = "<b>&'x'"
COUNTS = AnswerStore(
    arms=(BASE, deferring(2), deferring(6), skipping(6)), suite=FOUR, questions=30, published=("fig13",), run="counts"
)


def cells_of(panel: Panel) -> list[tuple[str, bool]]:
    """Texts of a heat map line by line, and whether they are bold."""
    found = re.findall(r'<text class="in ([^"]*)"[^>]*>(.*?)</text>', str(panel.plot.svg()))
    return [(text, "sure" in look.split()) for look, text in found]


def test_heat_maps_hold_the_grid_of_the_report(tmp_path: Path) -> None:
    run = COUNTS.write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    ours, skipped, theirs, _ = pictures["Scores and their relative change"].panels
    assert [panel.title for panel in (ours, skipped)] == ["Deferral, measured (nano)", "Skipping, measured (nano)"]
    assert theirs.title == "Deferral, published (deepseek_v3)"
    assert pictures["Scores and their relative change"].caption.endswith("; bold: beyond noise.")
    _, grid = grids_below(run, document.answers)
    lines = {line[0]: dict(zip(grid.headings, line, strict=True)) for line in grid.lines}
    shown = cells_of(ours)
    wide = len(shown) // len(words(ours, "name"))
    for n, name in enumerate(words(ours, "name")):
        _, *changes = shown[n * wide : (n + 1) * wide]
        for (text, sure), arm in zip(changes, ("+v+d deferral=2", "+v+d deferral=6"), strict=True):
            assert lines[arm][name.lower().replace(" ", "_")] == f"{text}{SURE_MARK if sure else ''}"


def test_a_pointer_over_a_heat_map_finds_the_interval_of_that_task(tmp_path: Path) -> None:
    run = COUNTS.write(tmp_path)
    document, deck, pictures = pictures_of(run, "accuracy")
    ours = pictures["Scores and their relative change"].panels[0]
    kind, (first, *_) = parts_of_average(document.answers)
    row = next(row for row in document.answers if row.row.label == "+v+d deferral=2")
    result = row.result(first, kind)
    assert result is not None and result.change is not None
    name, facts, command = facts_at(ours, deck)[1]
    assert name == f"+v+d deferral=2: {first}"
    assert facts["difference (points)"] == change_text(result.change.difference)
    assert facts["relative change (%)"] == change_text(result.change.relative)
    assert facts["provenance"] == "measured" and "deferred_experts" in facts["evidence (counter)"]
    assert command == row.command


def test_where_all_heat_maps_are_published_nothing_is_said_of_bold(tmp_path: Path) -> None:
    run = replace(COUNTS, arms=(BASE,), questions=4).write(tmp_path)
    _, _, pictures = pictures_of(run, "accuracy")
    picture = pictures["Scores and their relative change"]
    assert all("published" in panel.title for panel in picture.panels) and "bold" not in picture.caption


def test_averages_stand_beside_published_ones(tmp_path: Path) -> None:
    _, deck, pictures = pictures_of(COUNTS.write(tmp_path), "accuracy")
    legend = [name for _, name in pictures["Averages"].legend]
    assert legend == ["deferral", "skipping", "deferral, published (deepseek_v3)", "skipping, published (deepseek_v3)"]
    found = facts_at(pictures["Averages"].panels[0], deck)
    assert any("SOSP" in facts.get("published in", "") for _, facts, _ in found)
    assert "Change of the score" not in pictures


def test_averages_lie_where_the_ticks_say(tmp_path: Path) -> None:
    document, _, pictures = pictures_of(COUNTS.write(tmp_path), "accuracy")
    picture = pictures["Averages"]
    x, y = axes_of(picture.panels[0])
    looks = {name: look.partition(" ")[0] for look, name in picture.legend}
    ours = points(picture.panels[0], f"dot {looks['deferral']}")
    results = [next(row for row in document.answers if row.row.label == f"+v+d deferral={n}").result() for n in (2, 6)]
    changes = [one.change.relative for one in results if one and one.change and one.change.relative]
    expected = [(x(0), y(0)), *((x(n), y(100 * change.mid)) for n, change in zip((2, 6), changes, strict=True))]
    for at, place in zip(ours, expected, strict=True):
        assert at == pytest.approx(place, abs=1.0)
    theirs = points(picture.panels[0], f"dot {looks['skipping, published (deepseek_v3)']}")
    assert (x(8), y(-88.7)) == pytest.approx(theirs[-1], abs=1.0)


def test_an_arm_without_a_number_of_experts_is_drawn_all_the_same(tmp_path: Path) -> None:
    auto = replace(deferring(2), label="+v+d deferral=auto")
    run = replace(COUNTS, arms=(*COUNTS.arms, auto), published=()).write(tmp_path)
    _, _, pictures = pictures_of(run, "accuracy")
    assert "+v+d deferral=auto" in words(pictures["Change of the score"].panels[0], "name")


def test_differences_are_those_of_the_table_by_task_and_arm(tmp_path: Path) -> None:
    run = replace(COUNTS, figure="accuracy", published=()).write(tmp_path)
    document, deck, pictures = pictures_of(run, "accuracy")
    average, *parts = pictures["Change of the score"].panels
    headings = [column.heading for column in document.table.columns]
    changes = [cells[headings.index("difference (points)")] for cells in document.table.cells]
    assert words(average, "value") == changes[1:]
    kind, names = parts_of_average(document.answers)
    assert len(parts) == len(names)
    for panel, subject in zip(parts, names, strict=True):
        results = [row.result(subject, kind) for row in document.answers[1:]]
        assert words(panel, "value") == [change_text(one.change.difference) for one in results if one and one.change]
        assert [facts["difference (points)"] for _, facts, _ in facts_at(panel, deck)] == words(panel, "value")


def test_intervals_of_differences_lie_where_the_ticks_say(tmp_path: Path) -> None:
    run = replace(COUNTS, figure="accuracy", published=()).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    average = pictures["Change of the score"].panels[0]
    x, _ = axes_of(average)
    found = [
        average_of.change.difference for row in document.answers if (average_of := row.result()) and average_of.change
    ]
    reaches = sorted(at for look in ("s0", "s4", "s6") for at, _ in points(average, f"reach {look}"))
    dots = sorted(at for look in ("s0", "s4", "s6") for at, _ in points(average, f"dot {look}"))
    ends = [x(100 * end) for one in found for end in (one.low, one.high) if end is not None]
    assert len(found) == 3 and reaches == pytest.approx(sorted(ends), abs=1.5)
    assert dots == pytest.approx(sorted(x(100 * one.mid) for one in found), abs=1.5)


def test_many_arms_are_panels_of_one_scale_that_fit_a_page(tmp_path: Path) -> None:
    run = replace(FRONTIER, questions=4, timed=1).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    panels = pictures["Change of the score"].panels
    assert pictures["Change of the score"].caption == "Paired change of the average score, with its 95 % interval."
    assert len(panels) > 1 and all(panel.plot.height < 900 for panel in panels)
    changed = [row for row in document.answers if (result := row.result()) and result.change]
    assert sum(len(panel.plot.spots) for panel in panels) == len(changed)
    ticks = [re.findall(r'<text class="tick" x="([^"]*)"', str(panel.plot.svg())) for panel in panels]
    assert ticks[0] == ticks[1]


def test_the_frontier_has_a_point_for_each_cell_with_speed_and_score(tmp_path: Path) -> None:
    run = replace(FRONTIER, questions=4, timed=1).write(tmp_path)
    document, deck, pictures = pictures_of(run, "accuracy")
    (panel,) = pictures["Speed against score"].panels
    found = facts_at(panel, deck)
    assert len(found) == len(document.answers)
    headings = [column.heading for column in document.table.columns]
    best = [cells for cells in document.table.cells if cells[headings.index("Pareto")] == "yes"]
    assert len(words(panel, "near")) == len(best)
    named = re.findall(r'<text class="near" x="([^"]*)%"[^>]*text-anchor="(\w+)"', str(panel.plot.svg()))
    assert {anchor for _, anchor in named} == {"start", "end"}  # the slow run to the right, the fast to the left
    assert all((anchor == "end") == (float(x) > 60) for x, anchor in named)


def test_points_of_the_frontier_lie_where_the_ticks_say(tmp_path: Path) -> None:
    run = replace(FRONTIER, arms=FRONTIER.arms[::4], questions=20).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    (panel,) = pictures["Speed against score"].panels
    x, y = axes_of(panel)
    for row, spot in zip(document.answers, panel.plot.spots, strict=True):
        speed = median(1 / sample for one in run.records if one.cell == row.row.cell for sample in one.samples_s)
        result = row.result()
        assert result is not None and result.score is not None
        assert (spot.x, spot.y) == pytest.approx((x(speed), y(100 * result.score.mid)), abs=2.0)


def test_formats_are_a_grid(tmp_path: Path) -> None:
    run = replace(PRECISION, questions=4).write(tmp_path)
    document, deck, pictures = pictures_of(run, "accuracy")
    scores, changes = pictures["Formats"].panels
    grid, *_ = grids_below(run, document.answers)
    for panel in (scores, changes):
        texts = iter(cells_of(panel))
        for line in grid.lines:
            for cell in line[1:]:
                text, sure = next(texts)
                assert text == "baseline" or f"{text}{SURE_MARK if sure else ''}" in cell
    assert len(facts_at(changes, deck)) == len(document.answers)


def test_drift_has_a_panel_for_each_metric_and_task(tmp_path: Path) -> None:
    run = DriftStore(arms=(BASE, deferring(2), skipping(6)), figure="accuracy", questions=6).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    found = {(panel.title, panel.x_name): words(panel, "value") for panel in pictures["Drift"].panels}
    assert set(found) == {
        (task, name)
        for task in ("decode", "prefill")
        for name in ("change of perplexity, %", "KL to the baseline, nats", "top-1 agreement, %")
    }
    assert all(len(texts) == 2 for texts in found.values())
    assert list(pictures) == ["Drift"] and len(document.answers) == 3


def test_drift_has_a_caption_of_its_own_beside_scores(tmp_path: Path) -> None:
    run = replace(COUNTS, figure="accuracy", published=(), questions=4, suite=replace(FOUR, tasks=(*FOUR.tasks, WORDS)))
    _, _, pictures = pictures_of(_with_losses(run.write(tmp_path)), "accuracy")
    said = "How far predictions are from the baseline's; whiskers: 95 % intervals over texts, or windows of them."
    assert pictures["Drift"].caption == said and "score" in pictures["Change of the score"].caption


def test_perplexity_of_one_arm_is_called_so(tmp_path: Path) -> None:
    run = replace(COUNTS, arms=(BASE,), figure="accuracy", published=(), suite=replace(FOUR, tasks=(WORDS,)))
    _, _, pictures = pictures_of(_with_losses(run.write(tmp_path)), "accuracy")
    assert pictures["Drift"].caption.startswith("Perplexity; whiskers: ")


WORDS = TaskSpec(name="wikitext2", source="wikitext2")


def _with_losses(run: Run) -> Run:
    """The scores of WORDS as losses in place of them."""
    scored = [replace(one, metric=NLL, weight=10.0) if one.task == WORDS.name else one for one in run.scored]
    return replace(run, scored=tuple(scored))


def test_without_a_baseline_scores_are_shown(tmp_path: Path) -> None:
    run = replace(COUNTS, arms=(deferring(2),), figure="accuracy", published=()).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    result = document.answers[0].result(AVERAGE)
    assert result is not None and result.score is not None
    (text,) = words(pictures["Scores"].panels[0], "value")
    assert text == document.table.cells[0][1]


LAST = FOUR.tasks[-1].name
CRASHED = {LAST: (Outcome.CRASHED, "the worker died")}


@pytest.mark.parametrize(
    "arms",
    [
        (replace(BASE, ends=CRASHED),),
        (replace(BASE, open=(LAST,)),),
        (replace(BASE, ends=CRASHED), replace(deferring(2), label="+v+d deferral=auto", ends=CRASHED)),
    ],
)
def test_without_any_average_there_is_a_page_without_scores(tmp_path: Path, arms: tuple[Answering, ...]) -> None:
    run = AnswerStore(arms=arms, suite=FOUR, questions=6).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    assert not {"Scores", "Change of the score"} & {*pictures}
    said = "the worker died" if CRASHED in [arm.ends for arm in arms] else "tasks evaluated so far"
    assert any(said in note for note in document.table.notes)
    page_html(run, documents_of(run))


def _lacking(figure: FigureKind, *complete: Answering) -> AnswerStore:
    """Arms of which two lack a task and so an average, beside those that are complete."""
    arms = (BASE, replace(deferring(2), ends=CRASHED), replace(skipping(6), ends=CRASHED), *complete)
    return replace(COUNTS, arms=arms, figure=figure, published=(), timed=1)


@pytest.mark.parametrize("figure", ["frontier", "precision_accuracy"])
def test_a_picture_of_averages_that_nothing_has_is_none(tmp_path: Path, figure: FigureKind) -> None:
    _, _, pictures = pictures_of(_lacking(figure).write(tmp_path), "accuracy")
    assert "Change of the score" not in pictures and "Scores" not in pictures


def test_parts_without_an_average_are_called_so(tmp_path: Path) -> None:
    _, _, pictures = pictures_of(_lacking("accuracy").write(tmp_path), "accuracy")
    picture = pictures["Change of the score"]
    assert [panel.title for panel in picture.panels] == ["Coding"]
    assert picture.caption.startswith("Paired change of the scores by category")
    lacking = "(average, data_analysis)"
    said = f"Without a change: +v+d deferral=2 {lacking}; +v+d skipping=6 {lacking}; the notes say why."
    assert picture.caption.endswith(said)


def test_an_arm_without_an_average_is_named_beside_those_that_have_one(tmp_path: Path) -> None:
    _, _, pictures = pictures_of(_lacking("frontier", deferring(4)).write(tmp_path), "accuracy")
    picture = pictures["Change of the score"]
    assert [words(panel, "name") for panel in picture.panels] == [["+v+d deferral=4"]]
    assert picture.caption.endswith("Without a change: +v+d deferral=2; +v+d skipping=6; the notes say why.")


def test_the_grids_of_the_report_are_tables_of_the_page(tmp_path: Path) -> None:
    run = COUNTS.write(tmp_path)
    (document, *_) = documents_of(run)
    page = page_html(run, documents_of(run))
    for grid in grids_below(run, document.answers):
        assert f"<caption>{grid.title}</caption>" in page
        for line in grid.lines:
            assert all(f">{cell}</t" in page for cell in line)


def test_names_of_categories_are_text(tmp_path: Path) -> None:
    tasks = tuple(replace(task, category=f"{NASTY}{n // 2}") for n, task in enumerate(FOUR.tasks))
    store = replace(COUNTS, suite=replace(FOUR, tasks=tasks), published=(), questions=6)
    for run in (store.write(tmp_path), replace(store, figure="accuracy", run="differences").write(tmp_path)):
        page = page_html(run, documents_of(run))
        assert "<b>" not in page.replace("<b>Numbers", "").partition('id="reading"')[0]
        assert "&lt;b&gt;&amp;&#39;x&#39;" in page


@pytest.mark.parametrize("change", [-0.4, 0.0, 3.0, -0.5, -100.0])
def test_shades_say_what_is_lost(change: float) -> None:
    svg = str(heat_plot(["a"], ["1"], {(0, 0): (HeatCell(text="x", change=change), 0)}, "heat").svg())
    expected = "f6" if change == -100 else "f1" if change == -0.5 else "f0"
    assert f'class="cell {expected}"' in svg
