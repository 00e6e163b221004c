"""The page without a browser: what it says, that it is safe, whole and the same every time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from ktbench.report.documents import Document, documents_of
from ktbench.report.figures.draw import draw, further_figures
from ktbench.report.web.findings import best_sentence, findings_of
from ktbench.report.web.origin import facts_by_machine, origin_of
from ktbench.report.web.page import page_html
from ktbench.report.web.section import Figures, section_of
from ktbench.report.web.tooltips import TooltipIndex, cards_of
from ktbench.report.web.warnings import warnings_of, warnings_of_run
from ktbench.report.write import write_report
from ktbench.resources import data_folder
from ktbench.results import Run, read_run
from ktbench.results.rows import rows_of
from ktbench.spec.record import Outcome, Work
from tests.report.accuracy_stores import FRONTIER, SHARED_TABLE2, SMALL
from tests.report.attributed import FACTORIAL, LACKING
from tests.report.html.runs import DECODE, in_memory
from tests.report.html.whole import assert_whole
from tests.report.paper_cells import KT, cell, record, run_of
from tests.report.role_stores import DEFERRAL, DEPTH
from tests.report.simulated_runs import simulated
from tests.report.synthetic import MACHINE, NO_NUMA, Arm, Store

NASTY = '</script><b>&"quoted"'


def page_of(run: Run) -> str:
    return page_html(run, documents_of(run))


def runs(folder: Path) -> dict[str, Run]:
    """A run of every kind."""
    recorded = data_folder("reports") / "recorded"
    return {
        "decode": in_memory(DECODE),
        "roles": in_memory(DEFERRAL),
        "depth": in_memory(DEPTH),
        "simulated": simulated(in_memory(DECODE)),
        "empty": replace(in_memory(DECODE), records=(), environments=()),
        "answers": replace(FRONTIER, timed=2, questions=4).write(folder),
        "published": replace(SHARED_TABLE2, questions=4).write(folder),
        "shares": in_memory(Store(arms=(*FACTORIAL, LACKING), figure="interactions", run="shares")),
        "counts": replace(SMALL, published=("fig13",), run="counts").write(folder),
        "bars": run_of([(one, record(one, 0.2)) for one in (cell("base"), cell(KT))], "fig12"),
        "parts": read_run(recorded / "granite_rapids_2_cores" / "kernels"),
    }


Pages = dict[str, tuple[Run, Sequence[Document], str]]
NAMES = ("decode", "roles", "depth", "simulated", "empty", "answers", "published", "shares", "counts", "bars", "parts")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    found = {}
    for name, run in runs(tmp_path_factory.mktemp("runs")).items():
        documents = documents_of(run)
        found[name] = (run, documents, page_html(run, documents))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_is_balanced_and_refers_to_nothing_outside(pages: Pages, name: str) -> None:
    assert_whole(pages[name][2])


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_its_cells_and_its_command(pages: Pages, name: str) -> None:
    _, documents, text = pages[name]
    shown = unescape(text).replace("\u00a0", " ")  # which holds an interval on one line
    for document in documents:
        for _, command in document.table.commands:
            assert command in shown
        for cells in (*document.table.cells, *document.table.control_cells):
            assert all(f">{cell}</t" in shown for cell in cells)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_script_reads_points_at_cards(pages: Pages, name: str) -> None:
    *_, text = pages[name]
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    for figure, marks in data["marks"].items():
        assert f'id="{figure}"' in text
        for mark, cards in marks.items():
            assert text.count(f'id="{figure}-{mark}"') == 1
            numbers = [card if isinstance(card, int) else card[0] for card in cards]
            assert all(0 <= card < len(data["cards"]) for card in numbers)
    cards = [int(card) for card in re.findall(r'data-card="(\d+)"', text)]
    assert all(card < len(data["cards"]) for card in cards)


@pytest.mark.parametrize("name", ["decode", "answers"])
def test_the_same_store_gives_the_same_bytes(pages: Pages, name: str) -> None:
    run, _, text = pages[name]
    assert page_of(run) == text


def test_words_of_a_run_are_text_and_never_markup() -> None:
    run = in_memory(replace(DECODE, title=f"Decode {NASTY}"))
    failed = replace(run.records[-1], why=f"lacks {NASTY}")
    environment = replace(run.environments[0], facts={**run.environments[0].facts, "cpu_model": NASTY})
    text = page_of(replace(run, records=(*run.records[:-1], failed), environments=(environment,)))
    assert NASTY not in text and "<b>&" not in text
    assert text.count("&lt;/script&gt;&lt;b&gt;&amp;&#34;quoted&#34;") >= 4
    assert text.count("</script>") == 2


def test_the_summary_says_what_helped_what_did_not_and_what_could_not_run() -> None:
    store = Store(
        arms=(
            Arm(label="base", step_ms=100.0, noise=0.002),
            Arm(label="+v", step_ms=50.0, noise=0.002),
            Arm(label="+m", step_ms=150.0, noise=0.002),
            Arm(label="+v+d", step_ms=100.1, noise=0.001),
            Arm(label="+m+d", step_ms=99.0, noise=0.2),
            Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why=NO_NUMA),
        ),
        rounds=12,
    )
    found = {finding.kind: finding for finding in findings_of(rows_of(in_memory(store)))}
    said = {kind: [(one.subject, one.provenance) for one in finding.statements] for kind, finding in found.items()}
    assert said == {
        "faster": [("+v", "measured")],
        "slower": [("+m", "measured")],
        "same": [("+v+d", "measured")],
        "unsure": [("+m+d", "measured")],
        "absent": [("+v+d+n", None)],
    }
    assert re.fullmatch(
        r"2\.0\d× \[[\d.]+, [\d.]+\] the speed of base \([\d.]+ tokens/s of 4 of 48 layers\)",
        found["faster"].statements[0].text,
    )
    assert found["absent"].statements[0].text == f"UNSUPPORTED: {NO_NUMA}"


def test_arms_of_many_points_are_one_sentence() -> None:
    run = in_memory(replace(DECODE, prompts=(64, 512, 2048)))
    (helped, *_) = findings_of(rows_of(run))
    assert [one.subject for one in helped.statements] == ["+v", "+v+d"]
    assert all(one.text.startswith("at all 3 points, ") for one in helped.statements)


def test_simulated_numbers_say_so_and_have_no_interval() -> None:
    rows = rows_of(simulated(in_memory(DECODE)))
    best = best_sentence(rows)
    assert best is not None and best.provenance == "simulated"
    assert "[" not in best.text
    assert warnings_of(rows) == ()


def test_the_best_names_those_that_may_be_as_fast() -> None:
    def best(*arms: Arm) -> str:
        found = best_sentence(rows_of(in_memory(Store(arms=(Arm(label="base", step_ms=100.0), *arms), rounds=12))))
        assert found is not None
        return f"{found.subject}: {found.text}"

    first = Arm(label="+v", step_ms=50.0, noise=0.002)
    close = Arm(label="+v+d", step_ms=50.1, noise=0.02)
    assert re.fullmatch(r"\+v.*not to be told from \+v(\+d)?", best(first, close))
    assert "not to be told" not in best(first, replace(close, step_ms=60.0))


def test_nothing_faster_has_no_best() -> None:
    slow = (Arm(label="base", step_ms=100.0), Arm(label="+v", step_ms=150.0))
    assert best_sentence(rows_of(in_memory(replace(DECODE, arms=slow)))) is None


def test_doubts_name_noise_a_lacking_control_and_code_that_no_commit_holds() -> None:
    noisy = replace(DECODE, arms=(Arm(label="base", step_ms=182.0), Arm(label="+v", step_ms=61.0, noise=0.5)))
    assert any("NOISY (+v" in doubt for doubt in warnings_of(rows_of(in_memory(noisy))))
    alone = warnings_of(rows_of(in_memory(replace(DECODE, control=False))))
    assert "There is no control: nothing shows what noise alone does." in alone
    run = in_memory(DECODE)
    dirty = replace(run.environments[0], facts={**run.environments[0].facts, "dirty": True})
    assert "The code had changes that no commit holds." in warnings_of_run(replace(run, environments=(dirty,)))


def test_only_the_baseline_again_shows_what_its_noise_is() -> None:
    """Copies of other arms are as much faster as these are, which is no noise."""
    store = replace(DECODE, arms=DECODE.arms[:2], control=False, copies=3)
    assert not any("against itself" in doubt for doubt in warnings_of(rows_of(in_memory(store))))
    assert any("There is no control" in doubt for doubt in warnings_of(rows_of(in_memory(replace(store, copies=0)))))


@pytest.mark.parametrize(("noise", "rounds", "doubt"), [(0.5, 12, "noise"), (0.5, 4, "six"), (0.004, 12, "equal")])
def test_what_is_uncertain_says_why(noise: float, rounds: int, doubt: str) -> None:
    """Within the noise, in too few rounds, or not beyond what counts as equal."""
    arms = (Arm(label="base", step_ms=100.0, noise=noise), Arm(label="+v", step_ms=98.0, noise=noise))
    found = findings_of(rows_of(in_memory(Store(arms=arms, rounds=rounds, control=False, drift=0.0))))
    (unsure,) = [finding for finding in found if finding.kind == "unsure"]
    assert doubt in unsure.statements[0].text


@pytest.mark.parametrize("rounds", [1, 3])
def test_rounds_too_few_for_an_interval_have_no_spread(rounds: int) -> None:
    (few,) = [doubt for doubt in warnings_of(rows_of(in_memory(replace(DECODE, rounds=rounds)))) if "NOISY" in doubt]
    assert few.endswith("or of too few rounds.") and "±" not in few


def test_cards_have_what_the_table_moved_to_its_caption() -> None:
    (document,) = documents_of(in_memory(DECODE))
    facts = dict(cards_of(document)[document.rows[1].cell,].facts)
    assert facts["provenance"] == "measured"
    assert all(column.heading != "provenance" for column in document.table.columns)


@pytest.mark.parametrize("name", NAMES)
def test_every_mark_of_a_figure_has_a_card_and_every_timed_cell_a_mark(pages: Pages, name: str) -> None:
    _, documents, _ = pages[name]
    for document in documents:
        cards = cards_of(document)
        figure = draw(document)
        marked = {mark.key for marks in figure.marks.values() for mark in marks}
        assert marked <= cards.keys()
        if document.kind == "table" and document.table.figure in ("bars", "roles", "depth"):
            assert {(row.cell,) for row in document.rows if row.role == "arm" and row.timed} <= marked
        for _, further in further_figures(document):
            assert {mark.key for marks in further.marks.values() for mark in marks} <= cards.keys()


def test_marked_bars_are_as_high_as_the_speed_ups_that_their_cards_show() -> None:
    (document,) = documents_of(in_memory(DECODE))
    cards, figure = cards_of(document), draw(document)
    heights = {}
    for patch in figure.axes[0].patches:
        ((mark,)) = figure.marks[patch.get_gid() or ""]
        heights[cards[mark.key].name] = (patch.get_height(), dict(cards[mark.key].facts)["speed-up (×)"])  # type: ignore[attr-defined]
    assert heights.keys() == {"base", "+v", "+v+d"} and heights["base"][0] == 1
    for name in ("+v", "+v+d"):
        height, shown = heights[name]
        assert float(shown.partition(" ")[0]) == pytest.approx(height, rel=5e-3)


def test_colours_of_figures_follow_the_page(pages: Pages) -> None:
    *_, text = pages["decode"]
    figures = Figures()
    (document,) = documents_of(in_memory(DECODE))
    section_of(document, TooltipIndex(), figures, "")
    for colour in figures.styles.colours:
        assert f"--c-{colour}:light-dark(#{colour},oklab(from #{colour} " in text
    for svg in re.findall(r"<svg viewBox.*?</svg>", text, re.DOTALL):
        assert not re.search(r"#[0-9a-f]{6}\b|style=|DejaVu", svg)


def test_every_run_has_a_page_among_its_files(tmp_path: Path) -> None:
    run = replace(DECODE, rounds=2, steps=1).write(tmp_path)
    (path,) = write_report(run, ["html"])
    assert path.name == "page.html"
    assert path.read_text() == page_of(read_run(run.folder))


def test_a_step_that_reads_no_weights_has_no_place_in_a_roofline() -> None:
    run = in_memory(DECODE)
    label = next(cell.key for cell in run.header.cells if cell.label == "+v")
    idle = Work(weight_bytes=0, flops=0, tokens=1)
    records = tuple(replace(one, work=idle) if one.cell == label else one for one in run.records)
    page = page_html(replace(run, records=records), documents_of(replace(run, records=records)))
    assert "1 timed cells report no work" in page


def test_the_cpus_of_each_numa_node_stand_together() -> None:
    run = in_memory(DECODE)
    facts = run.environments[0].facts | {"numa_nodes": [[0, 1], [2, 3]], "gpus": []}
    described = replace(run, environments=(replace(run.environments[0], facts=facts),))
    assert {("numa_nodes", "[0, 1], [2, 3]"), ("gpus", "none")} <= set(facts_by_machine(described)[MACHINE.env_id])


def test_machines_of_a_spread_run_are_told_apart() -> None:
    run = in_memory(replace(DECODE, rounds=2))
    other = replace(MACHINE, env_id="abcdefabcdef", facts=MACHINE.facts | {"memory_total_gib": 96, "dirty": True})
    records = tuple(replace(one, env_id=other.env_id) if one.round else one for one in run.records)
    spread = replace(run, environments=(MACHINE, other), records=records)
    found = facts_by_machine(spread)
    assert [dict(facts)["memory_total_gib"] for facts in found.values()] == ["24", "96"]
    origin = dict(origin_of(spread))
    assert origin["uncommitted changes"] == f"no on {MACHINE.env_id}; yes on {other.env_id}"
    assert origin["commit"] == MACHINE.facts["commit"] and origin["versions: numpy"] == "2.4.6"
    page = page_html(spread, documents_of(spread))
    blocks = page.partition("<h3>Machines</h3>")[2].partition("</section>")[0]
    assert re.findall("<h4>(.*?)</h4>", blocks) == [MACHINE.env_id, other.env_id]
    assert page.count("<dt>memory_total_gib</dt>") == 2


def test_a_machine_that_nobody_described_is_said() -> None:
    run = replace(in_memory(replace(DECODE, rounds=1)), environments=())
    assert facts_by_machine(run) == {} and dict(origin_of(run))["commit"] == "—"
    assert "No session described the machine." in page_html(run, documents_of(run))
