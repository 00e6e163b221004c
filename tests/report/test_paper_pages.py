"""The pages of a suite: whole without anything else, every number on them, and the same bytes again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ktbench.report.documents import Document, documents_of, overview, page_of
from ktbench.report.web.page import paper_html
from ktbench.report.write import write_report
from ktbench.results import Run, read_published
from ktbench.spec.machine import with_constant
from ktbench.spec.record import Part
from ktbench.spec.wire import to_plain
from tests.report.html.whole import assert_whole
from tests.report.paper_cells import KT, cell, record, run_of

FULL = cell(KT)


def suite() -> Run:
    """A part with one simulated cell, and one of published numbers alone."""
    here = replace(FULL, part="decode")
    run = run_of([(here, record(here, 1 / 6.0))])
    parts = (
        Part(name="decode", title="Decode & more", baseline=KT, figure="paper", published=("fig12",)),
        Part(name="accuracy", title="Accuracy", baseline="base", figure="paper", published=("fig13",)),
    )
    header = replace(run.header, parts=parts)
    return replace(run, header=header, published=read_published("fig12", "fig13"))


def papers() -> list[Document]:
    return [document for document in documents_of(suite()) if document.kind == "paper"]


def test_a_part_without_cells_has_its_numbers_alone() -> None:
    assert [document.name for document in documents_of(suite())] == ["table-decode", "paper-decode", "paper-accuracy"]


def test_the_page_is_whole_and_loads_nothing() -> None:
    page = paper_html(suite(), papers())
    assert_whole(page)
    assert "<script" not in page
    assert page.count("<svg") == 2 and "light-dark(" in page


def test_the_page_says_every_number_and_escapes_what_it_says() -> None:
    page = paper_html(suite(), papers())
    assert page.count("<h2>Decode &amp; more</h2>") == 1
    for number in read_published("fig12"):
        assert f">{number.value:.10g}<" in page
    assert "Accuracy is not simulated." in page
    assert page == paper_html(suite(), papers())


def test_the_overview_counts_each_part_and_all_of_them() -> None:
    _, first, second, every = overview(papers())
    assert first == ("Decode & more", "21", "1", "2.2", "2.2", "2.2", "+2.2")
    assert second[:3] == ("Accuracy", "119", "—")
    assert every[:3] == ("all parts", "140", "1")


def test_every_document_is_written_once(tmp_path: Path) -> None:
    run = replace(suite(), folder=tmp_path)
    names = [path.name for path in write_report(run)]
    assert len(names) == len(set(names))
    assert {"table.md", "paper.md", "paper-accuracy.csv", "published-accuracy.svg", "paper.html"} <= set(names)
    assert not {"table-accuracy.md", "figure-decode.png", "paper-decode.json"} & set(names)
    assert "(published-decode.png)" in (tmp_path / "report" / "table-decode.md").read_text()
    assert (tmp_path / "report" / "paper.md").read_text() in page_of(run)


def test_what_measuring_takes_is_said_where_nothing_was_measured() -> None:
    decode, _ = papers()
    (said,) = [one for one in decode.table.conditions if one.startswith("Nothing was measured here")]
    assert "Weights take 1,248 GiB (DeepSeek-V3, bf16)" in said and "machine=paper_a100,here" in said
    alone = run_of([(FULL, record(FULL, 1 / 6.0))], "fig12")
    assert "`ktbench sweep machine=paper_a100,here`" in " ".join(documents_of(alone)[1].table.conditions)


def test_here_is_not_suggested_beside_machines_that_the_request_changes() -> None:
    assert FULL.spec.machine is not None
    machine = replace(FULL.spec.machine, sources=with_constant(to_plain(FULL.spec.machine), "gpus", 2)["sources"])
    changed = replace(FULL, spec=replace(FULL.spec, machine=machine))
    said = " ".join(documents_of(run_of([(changed, record(changed, 1 / 6.0))], "fig12"))[1].table.conditions)
    assert "Nothing was measured here" in said and ",here" not in said


def test_nothing_is_said_of_measuring_where_it_was_done() -> None:
    here = cell(KT, on=None)
    run = run_of([(FULL, record(FULL, 1 / 6.0)), (here, record(here, 1.0))], "fig12")
    assert not any("Nothing was measured" in one for one in documents_of(run)[1].table.conditions)
