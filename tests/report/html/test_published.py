"""Published numbers on the page, beside simulated and measured ones: each marked by where it is from."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from ktbench.report.html.picture import Picture, in_pages
from ktbench.report.html.plot import Plot

from ktbench.report.documents import documents_of
from ktbench.report.text import number
from ktbench.report.web.page import page_html
from ktbench.results import Run
from tests.report.html.figures import axes_of, boxes, facts_at, pictures_of, points, words
from tests.report.paper_cells import KT, cell, record, run_of

NASTY = '</script><b>&"quoted"'


@pytest.fixture(scope="module")
def decode() -> Run:
    """Fig. 12 beside two simulated cells and one that was measured here."""
    cells = [cell("base"), cell(KT), cell(KT, on=None)]
    return run_of([(one, record(one, seconds)) for one, seconds in zip(cells, (0.4, 0.16, 0.25), strict=True)], "fig12")


def test_bars_are_the_numbers_of_the_table_and_say_where_they_are_from(decode: Run) -> None:
    document, _, pictures = pictures_of(decode, "paper")
    texts = [text for panel in pictures["Published"].panels for text in words(panel, "value")]
    expected = []
    for line in document.lines:
        expected += [] if line.published is None else [f"{number(line.published, 3)} published"]
        if line.simulated is not None:
            error = "" if line.error is None else f", {100 * line.error:+.1f} %"
            expected.append(f"{number(line.simulated, 3)} simulated{error}")
        expected += [] if line.measured is None else [f"{number(line.measured, 3)} measured here"]
    assert sorted(texts) == sorted(expected)
    assert sum("simulated" in text for text in texts) == 2 and sum("measured here" in text for text in texts) == 1
    assert [name for _, name in pictures["Published"].legend] == ["published", "simulated", "measured here"]


def test_bars_are_as_long_as_their_values(decode: Run) -> None:
    _, _, pictures = pictures_of(decode, "paper")
    panel = next(panel for panel in pictures["Published"].panels if boxes(panel, "f4"))
    drawn = sorted(end for look in ("f0", "f4", "f2") for _, end in boxes(panel, look))
    values = sorted(float(text.split()[0]) for text in words(panel, "value"))
    assert [end / drawn[-1] for end in drawn] == pytest.approx([value / values[-1] for value in values], abs=0.01)


def test_a_pointer_finds_source_command_and_why_a_value_is_missing(decode: Run) -> None:
    document, deck, pictures = pictures_of(decode, "paper")
    found = [fact for panel in pictures["Published"].panels for fact in facts_at(panel, deck)]
    lines = {line.source for line in document.lines if line.source}
    assert {facts["published in"] for _, facts, _ in found if "published in" in facts} == lines
    assert any(command for _, _, command in found)
    assert any("not simulated" in facts for _, facts, _ in found)


def test_curves_mark_published_points_as_rings() -> None:
    cells = [cell("+m+d", phase="layer", batch=32 * n) for n in (1, 2, 4)]
    run = run_of([(one, record(one, 0.01)) for one in cells], "fig3")
    document, deck, pictures = pictures_of(run, "paper")
    assert "curve dashed" in str(pictures["Published"].panels[0].plot.svg())
    assert ("ring far", "published") in pictures["Published"].legend
    found = [name for panel in pictures["Published"].panels for name, *_ in facts_at(panel, deck)]
    drawn = [line for line in document.lines if line.published is not None and line.tokens]
    assert set(found) == {line.arm for line in drawn} and len(found) >= len(drawn)


def test_published_and_simulated_points_lie_where_the_ticks_say() -> None:
    cells = [cell("+m+d", phase="layer", batch=32 * n) for n in (1, 2, 4)]
    document, _, pictures = pictures_of(run_of([(one, record(one, 0.01)) for one in cells], "fig3"), "paper")
    (panel,) = pictures["Published"].panels
    x, y = axes_of(panel, log=True)
    rings, dots = points(panel, "hole"), [at for n in range(10) for at in points(panel, f"dot small s{n}")]
    for drawn, name in ((rings, "published"), (dots, "simulated")):
        of = [(line.tokens, getattr(line, name)) for line in document.lines]
        places = sorted((x(tokens), y(value)) for tokens, value in of if tokens and value is not None)
        assert len(places) >= 3
        for at, place in zip(sorted(drawn), places, strict=True):
            assert at == pytest.approx(place, abs=1.5)


@pytest.mark.parametrize("figure", ["fig13", "table2", "quantisation"])
def test_accuracy_as_published_has_a_figure(figure: str) -> None:
    run = run_of([(cell(), None)], figure)
    document, deck, pictures = pictures_of(run, "paper")
    found = [fact for panel in pictures["Published"].panels for fact in facts_at(panel, deck)]
    drawn = [line for line in document.lines if line.published is not None and line.phase == "accuracy"]
    assert {facts.get("published in") for _, facts, _ in found} == {line.source for line in drawn}
    assert all(panel.plot.height < 1000 for panel in pictures["Published"].panels)
    caption = pictures["Published"].caption
    assert caption.startswith(document.table.figure_caption)
    assert "bold" not in caption and "sure" not in str([panel.plot.svg() for panel in pictures["Published"].panels])


def test_a_published_change_of_nothing_has_no_sign() -> None:
    document, _, pictures = pictures_of(run_of([(cell(), None)], "fig13"), "paper")
    texts = [text for panel in pictures["Published"].panels for text in words(panel, "in")]
    nothing = [line for line in document.lines if line.published == 0 and line.metric == "relative %"]
    assert texts.count("0.0") == len(nothing) > 0
    assert not {"+0.0", "-0.0"} & {*texts}


def test_published_scores_in_a_list_are_rings() -> None:
    _, _, pictures = pictures_of(run_of([(cell(), None)], "quantisation"), "paper")
    for panel in pictures["Published"].panels:
        dots, holes = (
            re.findall(rf'<path class="{look}" d="([^"]*)"', str(panel.plot.svg())) for look in ("dot s0", "hole")
        )
        assert holes == dots and len(dots) == len(panel.plot.spots)


@pytest.mark.parametrize("figure", ["fig12", "quantisation"])
def test_words_of_a_source_are_text(figure: str) -> None:
    planned = run_of([(cell(), None)], figure)
    run = replace(planned, published=tuple(replace(one, what=NASTY, source=NASTY) for one in planned.published))
    page = page_html(run, documents_of(run))
    assert NASTY not in page and "<b>&" not in page
    assert page.count("</script>") == 2


def test_items_are_shared_evenly_among_pages() -> None:
    assert [len(some) for some in in_pages(range(50), lambda _: 40.0)] == [17, 17, 16]
    assert [len(some) for some in in_pages(range(3), lambda _: 40.0)] == [3]
    assert in_pages([], lambda _: 40.0) == []


def test_a_figure_longer_than_a_page_breaks_between_its_panels() -> None:
    from ktbench.report.html.picture import Panel

    def picture(count: int) -> Picture:
        panels = tuple(Panel(plot=Plot(height=300.0, label="")) for _ in range(count))
        return Picture(title="", caption="", panels=panels)

    assert not picture(4).is_long and picture(5).is_long
