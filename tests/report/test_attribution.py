"""Shares of a run: rows, table, files and what the figure holds."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from math import isnan, prod
from pathlib import Path

import pytest

from ktbench.report.documents import Document, documents_of
from ktbench.report.figures.shares import bars_of
from ktbench.report.write import write_report
from ktbench.results import Run
from ktbench.results.attribution import Attribution, attributions_of
from ktbench.results.rows import rows_of
from ktbench.spec.record import Outcome
from tests.report.attributed import FACTORIAL, LACKING, LEFT_OUT
from tests.report.comparison_runs import kept
from tests.report.simulated_runs import simulated
from tests.report.synthetic import Arm, Store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = Store(arms=(*FACTORIAL, LACKING), figure="interactions", title="Shares", run="shares")
    return store.write(tmp_path_factory.mktemp("runs"))


def only(run: Run) -> Attribution:
    (found,) = attributions_of(rows_of(run))
    return found


def shares_document(run: Run) -> Document:
    table, shares = documents_of(run)
    assert (table.kind, shares.kind) == ("table", "attribution")
    assert shares.has_figure and not table.has_figure
    return shares


def test_shares_multiply_to_the_speedup_of_the_table(run: Run) -> None:
    found = only(run)
    assert found.features == ("+v", "+d", "deferral=3")
    assert found.whole == "+v+d deferral=3" and found.orders == 3
    whole = next(row for row in rows_of(run) if row.label == found.whole)
    assert whole.speedup is not None and found.total is not None
    assert found.total.mid == pytest.approx(whole.speedup.mid)
    factors = [share.factor for share in found.shares]
    assert prod(factor.mid for factor in factors if factor) == pytest.approx(whole.speedup.mid)
    parts = [share.part for share in found.shares]
    assert sum(part.mid for part in parts if part) == pytest.approx(1.0)


def test_shares_come_from_the_speeds_and_intervals_hold_the_truth(run: Run) -> None:
    v, d, deferral = only(run).shares
    # Orders: v d f, v f d, f v d. Share of v: 2, 2 and 2.4; of d: 1.25 always; of deferral: 1.32, 1.32 and 1.1.
    for share, true in ((v, (2 * 2 * 2.4) ** (1 / 3)), (d, 1.25), (deferral, (1.32 * 1.32 * 1.1) ** (1 / 3))):
        assert share.factor is not None
        assert share.factor.low < true < share.factor.high
        assert share.factor.mid == pytest.approx(true, rel=0.02)
    assert d.first is None and d.missing["first"] == "it was not measured with base alone"
    assert v.last is None and deferral.first is not None and deferral.first.mid == pytest.approx(1.1, rel=0.02)


def test_interactions_have_a_context_or_a_reason(run: Run) -> None:
    pairs = {(pair.one, pair.other): pair for pair in only(run).pairs}
    both = pairs["+v", "deferral=3"]
    assert both.context == () and both.factor is not None
    assert both.factor.mid == pytest.approx(1.2, rel=0.02) and both.factor.low > 1
    assert pairs["+d", "deferral=3"].context == ("+v",)
    assert pairs["+v", "+d"].factor is None and pairs["+v", "+d"].why == "+d was not measured without +v"


def test_the_waterfall_leads_from_the_baseline_to_all(run: Run) -> None:
    found = only(run)
    base, *steps, whole = bars_of(found).itertuples()
    assert (base.base, base.y) == (1.0, 1.0)
    at = 1.0
    for step, share in zip(steps, found.shares, strict=True):
        assert step.base == pytest.approx(at)
        assert share.factor is not None and step.y / step.base == pytest.approx(share.factor.mid)
        assert step.y_low / step.base == pytest.approx(share.factor.low)
        at = step.y
    assert whole.y == pytest.approx(at)


def test_the_figure_has_both_panels_and_names_what_is_missing(run: Run) -> None:
    figure = shares_document(run).draw()
    waterfall, matrix = figure.axes
    assert waterfall.get_yscale() == "log"
    assert [text.get_text() for text in waterfall.get_xticklabels()][1:3] == ["+v", "+d"]
    texts = {text.get_text() for text in matrix.texts}
    assert "—" in texts and "at base" in texts and "at +v" in texts
    said = " ".join(text.get_text() for text in figure.texts)
    assert "order-free shares of the speed-up of +v+d deferral=3 over base" in said and "no AMX" in said


def test_leaving_one_out_gives_what_each_adds_last(tmp_path: Path) -> None:
    run = Store(arms=LEFT_OUT, figure="waterfall").write(tmp_path)
    found = only(run)
    assert found.orders == 0 and {share.factor for share in found.shares} == {None}
    last = {share.feature: share.last.mid for share in found.shares if share.last}
    assert last == pytest.approx({"+d": 1.2, "+l": 1.5, "deferral=3": 1.1}, rel=0.02)
    assert all(y == pytest.approx(2.0, rel=0.02) for y in bars_of(found)["y"][1:])
    document = shares_document(run)
    assert "do not multiply to the whole" in " ".join(document.table.methods)
    assert len(document.draw().axes) == 1


def test_a_ladder_credits_its_steps_in_their_order(tmp_path: Path) -> None:
    arms = (FACTORIAL[0], FACTORIAL[2], FACTORIAL[4], FACTORIAL[5])
    found = only(Store(arms=arms, figure="waterfall").write(tmp_path))
    assert found.features == ("deferral=3", "+v", "+d") and found.orders == 1
    factors = [share.factor.mid for share in found.shares if share.factor]
    assert factors == pytest.approx([1.1, 2.4, 1.25], rel=0.02)


def test_features_that_only_come_together_are_one(tmp_path: Path) -> None:
    found = only(Store(arms=(FACTORIAL[0], FACTORIAL[3]), figure="waterfall").write(tmp_path))
    assert found.features == ("+v+d",) and found.orders == 1


@pytest.mark.parametrize("failed", [0, 5])
def test_without_the_baseline_or_the_whole_there_are_no_shares(failed: int, tmp_path: Path) -> None:
    broken = replace(FACTORIAL[failed], outcome=Outcome.CRASHED, why="the worker died")
    arms = (*FACTORIAL[:failed], broken, *FACTORIAL[failed + 1 :])
    run = Store(arms=arms, figure="interactions").write(tmp_path)
    found = only(run)
    assert found.total is None and not found.shares and "CRASHED: the worker died" in found.why
    document = shares_document(run)
    assert any(note.startswith("no shares: ") for note in document.table.notes)
    document.draw()


def test_an_order_through_a_failed_cell_does_not_count(tmp_path: Path) -> None:
    broken = replace(FACTORIAL[2], outcome=Outcome.CRASHED, why="the worker died")
    found = only(Store(arms=(*FACTORIAL[:2], broken, *FACTORIAL[3:]), figure="interactions").write(tmp_path))
    assert found.orders == 2 and found.left_out == {"deferral=3": "CRASHED: the worker died"}


def test_simulated_shares_are_exact(run: Run) -> None:
    found = only(simulated(run))
    factors = [share.factor for share in found.shares]
    assert found.simulated and all(factor and factor.low == factor.mid == factor.high for factor in factors)
    assert bars_of(found)["y_low"].isna().all()
    assert "[" not in shares_document(simulated(run)).table.cells[0][1]


def test_the_only_order_is_the_one_that_was_measured(tmp_path: Path) -> None:
    """+m and deferral came without +v as well, but nothing leads there from the baseline."""
    arms = (
        *FACTORIAL[:2],
        Arm(label="+v deferral=3", step_ms=110.0),
        Arm(label="+v+m deferral=3", step_ms=50.0),
        Arm(label="+m deferral=3", step_ms=60.0),
    )
    found = only(Store(arms=arms, figure="waterfall").write(tmp_path))
    assert found.orders == 1 and found.features == ("+v", "deferral=3", "+m")
    factors = [share.factor.mid for share in found.shares if share.factor]
    assert factors == pytest.approx([2.0, 1.2, 2.2], rel=0.02)
    ends = list(bars_of(found)["y"][1:])
    assert ends == pytest.approx([264 / 132, 264 / 110, 264 / 50, 264 / 50], rel=0.02)


@pytest.mark.parametrize(("rounds", "said"), [(1, "1 round cannot tell"), (5, "5 rounds cannot tell"), (6, "")])
def test_too_few_rounds_have_no_parts_of_what_may_be_nothing(rounds: int, said: str, tmp_path: Path) -> None:
    run = Store(arms=FACTORIAL, figure="waterfall", rounds=rounds).write(tmp_path)
    found = only(run)
    assert all((share.part is None) == bool(said) for share in found.shares)
    assert all(share.missing.get("part", "").startswith(said) for share in found.shares)
    table = shares_document(run).table
    assert ("share of the log speed-up (%)" in [column.heading for column in table.columns]) == (not said)
    assert any("no share in %: " in note for note in table.notes) == bool(said)
    assert all(share.part for share in only(simulated(run)).shares)


def test_simulated_shares_do_not_ask_which_machine_simulated_them(run: Run) -> None:
    there = simulated(run)
    moved = {cell.key for cell in there.header.cells if cell.label in ("base", "+v+d")}
    records = [replace(r, env_id="another") if r.cell in moved else r for r in there.records]
    assert only(replace(there, records=tuple(records))) == only(there)


def moved(folder: Path, elsewhere: Mapping[str, range], *arms: Arm) -> Run:
    """A run whose arms ran on another machine in the rounds that `elsewhere` says, so that not all are compared."""
    run = Store(arms=arms, figure="interactions").write(folder)
    records = [replace(r, env_id="another") if r.round in elsewhere.get(r.label, ()) else r for r in run.records]
    return replace(run, records=tuple(records))


def test_orders_whose_cells_have_no_round_in_common_have_no_bar_and_say_why(tmp_path: Path) -> None:
    arms = FACTORIAL[0], FACTORIAL[1], FACTORIAL[2], FACTORIAL[4]
    run = moved(tmp_path, {"+v": range(6, 12), "deferral=3": range(6)}, *arms)
    found = only(run)
    assert found.orders == 2 and found.total is not None
    assert all(share.factor is None and share.last is not None for share in found.shares)
    _, *steps, whole = bars_of(found)["y"]
    assert all(map(isnan, steps)) and len(steps) == 2 and whole == pytest.approx(2.64, rel=0.02)
    notes = shares_document(run).table.notes
    apart = "in no round had all cells that it is formed of the cores in the same place"
    assert f"+v with deferral=3 — no interaction: {apart}" in notes
    assert not any("no interactions" in note for note in notes)


def test_features_that_were_never_told_apart_have_no_interactions(tmp_path: Path) -> None:
    run = Store(arms=(FACTORIAL[0], FACTORIAL[1], FACTORIAL[3]), figure="interactions").write(tmp_path)
    said = "no interactions: no two features were both measured, each and neither beside the same others"
    assert said in shares_document(run).table.notes


def without_base(folder: Path, *precisions: str) -> Run:
    """Arms at bf16 and int8; at `precisions` the baseline, and so its control, was not planned."""
    arms = (*FACTORIAL[:2], FACTORIAL[3])
    store = Store(arms=arms, figure="interactions", precisions=("bf16", "int8"), rounds=6, steps=1)
    run = store.write(folder)
    cells = [c for c in run.header.cells if c.spec.precision not in precisions or not c.label.startswith("base")]
    keys = {cell.key for cell in cells}
    records = tuple(record for record in run.records if record.cell in keys)
    return kept(replace(run, header=replace(run.header, cells=tuple(cells)), records=records))


def test_a_group_without_a_baseline_says_so_everywhere(tmp_path: Path) -> None:
    run = without_base(tmp_path, "int8")
    whole, without = attributions_of(rows_of(run))
    assert whole.shares and not whole.why
    assert (without.total, without.shares, without.features) == (None, (), ())
    assert without.why == "no cell base was planned at these settings"
    document = shares_document(run)
    note = f"precision int8: no shares: {without.why}"
    assert note in document.table.notes
    assert note in " ".join(text.get_text().replace("\n", " ") for text in document.draw().texts)
    written = {path.name: path for path in write_report(run, ("md", "csv", "json", "html"))}
    lines = list(csv.DictReader(written["attribution.csv"].read_text(encoding="utf-8").splitlines()))
    assert [line["missing"] for line in lines if line["precision"] == "int8"] == [without.why]
    content = json.loads(written["attribution.json"].read_text(encoding="utf-8"))
    assert [one["why"] for one in content["attributions"]] == ["", without.why]
    assert note in written["page.html"].read_text(encoding="utf-8")


def test_without_any_baseline_there_is_a_figure_and_a_table_of_reasons(tmp_path: Path) -> None:
    run = without_base(tmp_path, "bf16", "int8")
    document = shares_document(run)
    assert [note.partition(": ")[0] for note in document.table.notes] == ["precision bf16", "precision int8"]
    assert "no shares" in document.table.figure_caption
    assert len(document.draw().axes) == 2
    assert "attribution.md" in {path.name for path in write_report(run, ("md", "csv", "json", "tex", "html"))}
