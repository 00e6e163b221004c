"""Tables in print: within the page, numbers below each other by their points, no few rows alone on a page."""

from __future__ import annotations

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ktbench.report.paper_pdf import write_pdf
from ktbench.report.typeset import FEWEST_ROWS, TypesetTable, split, typeset
from tests.report.test_paper_pages import papers, suite

HEADINGS = ("arm", "what was done", "speed (tokens/s)")
ROWS = (
    ("base", "one", "1.5"),
    ("+v", "a rather long sentence that needs several lines", "1204"),
    ("+v+d", "—", "20.25"),
)
NUMERIC = (False, False, True)
ROOM_IN = 2.6


def texts_of(table: TypesetTable, rows: range = range(len(ROWS))) -> Figure:
    page = Figure(figsize=(4.0, 4.0), dpi=300)
    FigureCanvasAgg(page)
    table.draw(page, rows, 0.2, 0.3)
    return page


def boxes(page: Figure) -> dict[str, tuple[float, float, float, float]]:
    """Left, lower, right and upper edge of every text, in inches."""
    found = {text.get_text(): text.get_window_extent() for text in page.texts}
    return {text: tuple(float(edge) / page.dpi for edge in box.extents) for text, box in found.items()}  # type: ignore[misc]


def test_a_table_that_fits_is_not_broken() -> None:
    table = typeset(HEADINGS, ROWS, NUMERIC, 7.0)
    assert all(len(lines) == 1 for column in table.columns for lines in column.cells)


@pytest.mark.parametrize("room_in", [1.0, 1.6, ROOM_IN, 7.0])
def test_nothing_is_lost_or_wider_than_the_room(room_in: float) -> None:
    table = typeset(HEADINGS, ROWS, NUMERIC, room_in)
    assert table.width_in <= room_in + 1e-9
    for number, column in enumerate(table.columns):
        assert ["".join("".join(lines).split()) for lines in column.cells] == [
            "".join(row[number].split()) for row in ROWS
        ]
    drawn = boxes(texts_of(table))
    assert min(box[0] for box in drawn.values()) >= 0.2 - 0.01
    assert max(box[2] for box in drawn.values()) <= 0.2 + room_in + 0.01


def test_words_stay_whole_where_there_is_room_for_them() -> None:
    table = typeset(HEADINGS, ROWS, NUMERIC, ROOM_IN)
    words = {word for row in ROWS for cell in row for word in cell.split()}
    assert {
        word for column in table.columns for lines in column.cells for line in lines for word in line.split()
    } == words


def test_points_of_numbers_are_below_each_other() -> None:
    page = texts_of(typeset(HEADINGS, ROWS, NUMERIC, 7.0))
    right = {text: box[2] for text, box in boxes(page).items()}
    digits = right["20.25"] - right["1.5"]  # the width of one
    assert right["20.25"] - right["1204"] > digits > 0  # a point and two digits
    tails = boxes(texts_of(typeset(("n",), [("1.5",), ("20.5",), ("300.5",)], (True,), 7.0)))
    assert max(abs(tails[one][2] - tails["1.5"][2]) for one in ("20.5", "300.5")) < 0.01


def test_lines_of_a_page_do_not_overlap() -> None:
    table = typeset(HEADINGS, ROWS, NUMERIC, ROOM_IN)
    drawn = [box for text, box in boxes(texts_of(table)).items() if text.strip()]
    for number, one in enumerate(drawn):
        for other in drawn[number + 1 :]:
            across = min(one[2], other[2]) - max(one[0], other[0])
            up = min(one[3], other[3]) - max(one[1], other[1])
            assert across <= 0.005 or up <= 0.005


def test_groups_are_those_of_the_column_that_changes_least_before_the_numbers() -> None:
    rows = [(arm, model, "1", "yes" if n < 3 else "") for n, (model, arm) in enumerate(product("ab", "wxyz"))]
    assert typeset(("arm", "model", "n", "fit"), rows, (False, False, True, False), 7.0).begins == {4}
    assert typeset(("arm", "n"), [(arm, "1") for arm in "abcd"], (False, True), 7.0).begins == frozenset()


def test_a_page_holds_its_rows_alone() -> None:
    table = typeset(HEADINGS, ROWS, NUMERIC, 7.0)
    drawn = {text.get_text() for text in texts_of(table, range(1, 2)).texts}
    assert drawn >= {"+v", "arm"} and not drawn & {"base", "+v+d"}


@given(st.lists(st.floats(0.1, 0.5), min_size=1, max_size=120), st.floats(0.0, 9.0))
def test_pages_hold_all_rows_in_order_and_never_few_of_them(heights: list[float], first_in: float) -> None:
    page_in = 9.0
    first, *others = split(heights, first_in, page_in)
    assert [row for rows in (first, *others) for row in rows] == [*range(len(heights))]
    assert all(len(rows) >= min(FEWEST_ROWS, len(heights)) for rows in others)
    assert len(first) >= min(FEWEST_ROWS, len(heights)) or (not first and others)
    for rows, room_in in ((first, first_in), *((rows, page_in) for rows in others)):
        assert sum(heights[row] for row in rows) <= room_in + 1e-9


def test_every_cell_is_in_the_text_of_the_document(tmp_path: Path) -> None:
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext here, which reads the text of a PDF")
    path = write_pdf(tmp_path / "paper.pdf", suite(), papers())
    command = ["pdftotext", "-raw", str(path), "-"]
    text = "".join(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    for paper in papers():
        assert len(paper.table.cells) > FEWEST_ROWS
        for cell in {cell for row in (paper.table.headings, *paper.table.cells) for cell in row}:
            assert "".join(cell.split()) in text, cell
    assert text.count("Table3,continued.") >= 1
