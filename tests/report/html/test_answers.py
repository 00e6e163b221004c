"""Answers on the page: heat maps, differences with their intervals, speed against score, drift."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.report.accuracy.rows import parts_of_average
from ktbench.report.accuracy.subjects import AVERAGE
from ktbench.report.accuracy.table import grids_below
from ktbench.report.accuracy.text import SURE_MARK, change_text
from ktbench.report.documents import documents_of
from ktbench.report.html.page import page_html
from ktbench.report.html.picture import Panel
from tests.report.accuracy_stores import (
    BASE,
    FOUR,
    FRONTIER,
    PRECISION,
    AnswerStore,
    DriftStore,
    deferring,
    skipping,
)
from tests.report.html.figures import facts_at, pictures_of, words

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


def test_averages_stand_beside_published_ones(tmp_path: Path) -> None:
    _, deck, pictures = pictures_of(COUNTS.write(tmp_path), "accuracy")
    legend = [name for _, name in pictures["Averages"].legend]
    assert legend == ["deferral", "skipping", "deferral, published (deepseek_v3)", "skipping, published (deepseek_v3)"]
    found = facts_at(pictures["Averages"].panels[0], deck)
    assert any("SOSP" in facts.get("published in", "") for _, facts, _ in found)
    assert "Change of the score" not in pictures


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


def test_many_arms_are_panels_of_one_scale_that_fit_a_page(tmp_path: Path) -> None:
    run = replace(FRONTIER, questions=4, timed=1).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    panels = pictures["Change of the score"].panels
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


def test_without_a_baseline_scores_are_shown(tmp_path: Path) -> None:
    run = replace(COUNTS, arms=(deferring(2),), figure="accuracy", published=()).write(tmp_path)
    document, _, pictures = pictures_of(run, "accuracy")
    result = document.answers[0].result(AVERAGE)
    assert result is not None and result.score is not None
    (text,) = words(pictures["Scores"].panels[0], "value")
    assert text == document.table.cells[0][1]


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
    from ktbench.report.html.heat import HeatCell, heat_plot

    svg = str(heat_plot(["a"], ["1"], {(0, 0): HeatCell(text="x", card=0, change=change)}, "heat").svg())
    expected = "f6" if change == -100 else "f1" if change == -0.5 else "f0"
    assert f'class="cell {expected}"' in svg
