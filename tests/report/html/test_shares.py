"""Shares on the page: the waterfall, the interactions, and what a pointer finds on them."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
from ktbench.report.html.plot import WIDE

from ktbench.report.documents import documents_of
from ktbench.report.web.findings import findings_of_shares
from ktbench.report.web.page import page_html
from ktbench.results import Run
from tests.report.attributed import FACTORIAL, LACKING, LEFT_OUT
from tests.report.html.figures import boxes, facts_at, pictures_of, words
from tests.report.html.runs import in_memory
from tests.report.simulated_runs import simulated
from tests.report.synthetic import Arm, Store

STORE = Store(arms=(*FACTORIAL, LACKING), figure="interactions", title="Shares", run="shares")
NASTY = '</script><b>&"quoted"'


@pytest.fixture(scope="module")
def run() -> Run:
    return in_memory(STORE)


def test_numbers_beside_the_bars_are_those_of_the_table(run: Run) -> None:
    document, _, pictures = pictures_of(run, "attribution")
    (waterfall,) = pictures["Shares"].panels
    features, shares, parts = ([cells[n] for cells in document.table.cells] for n in (0, 1, 2))
    assert words(waterfall, "name") == features == ["+v", "+d", "deferral=3", "all together"]
    shown = [f"×{share} · {part} %" for share, part in zip(shares[:-1], parts[:-1], strict=True)]
    assert words(waterfall, "value") == [*shown, f"×{shares[-1]}"]


def test_steps_are_as_long_as_their_logarithms_and_lead_to_the_whole(run: Run) -> None:
    document, _, pictures = pictures_of(run, "attribution")
    (waterfall,) = pictures["Shares"].panels
    steps, (whole,) = boxes(waterfall, "f3"), boxes(waterfall, "f6")
    (one,) = document.attributions
    assert one.total is not None
    for share, (left, right) in zip(one.shares, steps, strict=True):
        assert share.factor is not None
        part = log(share.factor.mid) / log(one.total.mid)
        assert (right - left) / (whole[1] - whole[0]) == pytest.approx(part, abs=1e-3)
    starts, ends = [left for left, _ in steps], [right for _, right in steps]
    assert starts == pytest.approx([whole[0], *ends[:-1]], abs=0.2)
    assert ends[-1] == pytest.approx(whole[1], abs=0.2)


def test_a_pointer_finds_interval_rounds_evidence_and_command(run: Run) -> None:
    document, deck, pictures = pictures_of(run, "attribution")
    (waterfall,), (pairs,) = pictures["Shares"].panels, pictures["Interactions"].panels
    for (name, facts, command), cells in zip(facts_at(waterfall, deck), document.table.cells, strict=True):
        assert (name, facts["share (×)"]) == cells[:2]
        assert facts["rounds"] == "12" and facts["provenance"] == "measured"
        assert "avx512_calls" in facts["evidence of +v+d deferral=3 (counter/step)"]
        assert command == "python -m ktbench sweep +ablation=decode"
    found = {name: facts["together over the product of each (×)"] for name, facts, _ in facts_at(pairs, deck)}
    v, d = document.table.cells[0], document.table.cells[1]
    with_deferral = [column.heading for column in document.table.columns].index("with deferral=3 (×)")
    assert found == {
        "+v with deferral=3": v[with_deferral].partition(" at ")[0],
        "+d with deferral=3": d[with_deferral].partition(" at ")[0],
    }
    assert words(pairs, "value") == [f"{found['+v with deferral=3']} at base", f"{found['+d with deferral=3']} at +v"]


def test_the_command_of_all_cells_stands_once(run: Run) -> None:
    *_, shares = documents_of(run)
    page = page_html(run, [shares])
    command = "python -m ktbench sweep +ablation=decode"
    assert page.count("<dd><code id=") == 1
    assert f'<dt>all cells</dt>\n<dd><code id="command-0">{command}</code></dd>' in page


def test_the_summary_says_whose_the_speedup_is_and_what_gains_together(run: Run) -> None:
    (_, shares) = documents_of(run)
    found = {finding.heading: finding for finding in findings_of_shares(shares.attributions)}
    said = [(one.subject, one.text) for one in found["Whose the speed-up is"].said]
    cells = shares.table.cells[:-1]
    assert said == [(name, f"×{share}, {part} % of the log speed-up") for name, share, part, *_ in cells]
    assert [one.subject for one in found["Gain together, beyond noise"].said] == ["+v with deferral=3"]
    (absent,) = found["Without shares, and why"].said
    assert (absent.subject, absent.text) == ("+m", "UNSUPPORTED: +m: no AMX")


def test_points_have_panels_and_sentences_of_their_own() -> None:
    document, _, pictures = pictures_of(in_memory(replace(STORE, prompts=(64, 512))), "attribution")
    absent = next(one for one in findings_of_shares(document.attributions) if one.kind == "absent")
    assert [one.subject for one in absent.said] == ["+m, prompt 64", "+m, prompt 512"]
    assert [panel.title for panel in pictures["Shares"].panels] == ["prompt 64", "prompt 512"]
    assert [panel.title for panel in pictures["Interactions"].panels] == ["prompt 64", "prompt 512"]


def test_panels_are_broad_where_intervals_leave_no_room_beside_names() -> None:
    two = in_memory(replace(STORE, prompts=(64, 512)))
    for run, roomy in ((two, True), (simulated(two), False)):
        picture = pictures_of(run, "attribution")[2]["Shares"]
        longest = max(
            7.4 * len(name) + 6.6 * len(value)  # pixels of their letters
            for panel in picture.panels
            for name, value in zip(words(panel, "name"), words(panel, "value"), strict=True)
        )
        assert picture.roomy is roomy is (longest > 300)


def test_simulated_shares_have_no_whiskers_and_say_so(run: Run) -> None:
    _, deck, pictures = pictures_of(simulated(run), "attribution")
    (waterfall,) = pictures["Shares"].panels
    assert "whisker" not in str(waterfall.plot.svg())
    assert "simulated" in pictures["Shares"].caption
    assert all("[" not in text for text in words(waterfall, "value"))
    assert {facts["provenance"] for _, facts, _ in facts_at(waterfall, deck)} == {"simulated"}


def test_without_orders_bars_hang_from_the_whole_and_gaps_say_why() -> None:
    store = replace(STORE, arms=(Arm(label="base", step_ms=264.0), *LEFT_OUT), figure="waterfall")
    _, deck, pictures = pictures_of(in_memory(store), "attribution")
    (waterfall,) = pictures["Shares"].panels
    ((_, whole),) = boxes(waterfall, "f6")
    assert [right for _, right in boxes(waterfall, "f3")] == pytest.approx([whole] * 3, abs=0.2)
    assert words(waterfall, "absent") == ["all others were not measured without it"]
    assert "Interactions" not in pictures
    assert dict(facts_at(waterfall, deck)[0][1])["no last"] == "all others were not measured without it"


def test_a_feature_that_costs_speed_leads_back() -> None:
    arms = (Arm(label="base", step_ms=100.0), Arm(label="+v", step_ms=50.0), Arm(label="+v+d", step_ms=62.5))
    _, _, pictures = pictures_of(in_memory(replace(STORE, arms=arms, figure="waterfall")), "attribution")
    (waterfall,) = pictures["Shares"].panels
    ((start, end),) = boxes(waterfall, "lost")
    assert end == pytest.approx(boxes(waterfall, "f3")[0][1], abs=0.2)
    assert 0 < start < end < WIDE


def test_words_of_the_machine_are_text(run: Run) -> None:
    cell = next(cell for cell in run.header.cells if cell.label == "+v+m")
    hostile = [replace(one, why=NASTY) if one.cell == cell.key else one for one in run.records]
    changed = replace(run, records=tuple(hostile))
    page = page_html(changed, documents_of(changed))
    assert NASTY not in page and "<b>&" not in page
    assert page.count("</script>") == 2
