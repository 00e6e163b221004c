"""Settings of figures and tables for a paper: size, font, labels, order; and the kit that is made with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import image
from matplotlib.figure import Figure

from ktbench.cli.report import style_of
from ktbench.report.documents import documents_of
from ktbench.report.write import write_report
from ktbench.results import Run
from ktbench.spec.sweep import FigureStyle
from tests.report.drawn import bar_heights, legend, speed_figure, x_names
from tests.report.synthetic import Store

STYLE = FigureStyle(width=3.3, height=2.2, font="DejaVu Serif", size=8.0, labels={"+v": "Fused", "arm": "variant"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Store(rounds=6, prompts=(32, 64)).write(tmp_path_factory.mktemp("runs"))


def test_a_figure_has_the_size_and_font_that_are_asked_for(run: Run) -> None:
    write_report(run, ["kit"], documents_of(run, STYLE))
    height, width, _ = image.imread(run.folder / "report" / "kit" / "figure.png").shape
    assert (width / 300, height / 300) == pytest.approx((3.3, 2.2), abs=0.01)
    drawn = speed_figure(run, STYLE)
    names = [*drawn.axes[0].get_xticklabels(), *drawn.axes[0].get_yticklabels(), *drawn.legends[0].get_texts()]
    assert {name.get_fontname() for name in names} == {"DejaVu Serif"}
    assert drawn.axes[0].yaxis.label.get_fontsize() == 8.0


def test_labels_have_other_words_in_figure_and_table_and_data_keep_theirs(run: Run) -> None:
    (document,) = documents_of(run, STYLE)
    assert legend(document.draw()) == ["base", "Fused", "+m", "+v+d"]
    assert document.table.headings[0] == "variant"
    assert {"Fused"} <= {line[0] for line in document.table.cells}
    csv = next(path for path in write_report(run, ["csv"], (document,))).read_text()
    assert "Fused" not in csv and "+v," in csv


def test_arms_come_in_the_order_that_is_asked_for(run: Run) -> None:
    (document,) = documents_of(run, FigureStyle(order=("+v+d", "base")))
    assert legend(document.draw()) == ["+v+d", "base", "+v", "+m"]
    (plain,) = documents_of(run)
    assert sorted(bar_heights(document.draw().axes[0])) == sorted(bar_heights(plain.draw().axes[0]))
    assert [line[0] for line in document.table.cells][:2] == ["+v+d"] * 2
    assert x_names(document.draw().axes[0]) == ["prompt 32", "prompt 64"]


def test_settings_are_read_as_written() -> None:
    words = ["width=3.3", "size=7", "labels={+v: Fused, base: 'Fiddler, ours'}", "order=[+v,base]"]
    labels = {"+v": "Fused", "base": "Fiddler, ours"}
    assert style_of(words) == FigureStyle(width=3.3, size=7.0, labels=labels, order=("+v", "base"))


def test_the_kit_says_what_its_numbers_are_worth_and_names_settings_in_words(run: Run) -> None:
    write_report(run, ["kit"])
    heading, _, rest = (
        (run.folder / "report" / "kit" / "table.tex").read_text().partition("toprule")[2].partition("midrule")
    )
    names = [name.strip(" \\\n") for name in heading.split("&")]
    assert {"outcome", "verdict", "comparable rounds", "tokens of context"} <= {*names}
    lines = [line.strip(" \\\n").split(" & ") for line in rest.splitlines() if line.startswith(("base", "+v"))]
    assert {line[names.index("comparable rounds")] for line in lines} <= {"6", "---"}


def test_a_figure_is_drawn_once_for_files_page_and_kit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.report.figures import draw as drawing

    counts = []
    original = drawing.draw
    monkeypatch.setattr(drawing, "draw", lambda *words: (counts.append(1), original(*words))[1])
    write_report(run, ["figure", "html", "kit"])
    assert len(counts) == 1


def bar_widths_in(drawn: Figure) -> list[float]:
    """How wide each bar is drawn, in inches."""
    boxes = [bar.get_window_extent() for axes in drawn.axes for bar in axes.patches]
    return [box.width / drawn.dpi for box in boxes]


@pytest.mark.parametrize("width", [3.3, 7.0])
@pytest.mark.parametrize("prompts", [(32,), (32, 64, 128)])
def test_bars_have_one_width_at_any_width_of_the_figure(tmp_path: Path, width: float, prompts: tuple[int, ...]) -> None:
    drawn = speed_figure(Store(rounds=6, prompts=prompts).write(tmp_path), FigureStyle(width=width))
    found = bar_widths_in(drawn)
    assert found == pytest.approx([found[0]] * len(found), rel=1e-3)
    assert max(found) < 0.6
    tops = {axes.get_ylim()[1] for axes in drawn.axes}
    assert len(tops) == 1


def test_a_line_of_few_bars_takes_less_room_than_a_full_one(tmp_path: Path) -> None:
    drawn = speed_figure(Store(rounds=6, prompts=tuple(range(32, 256, 32))).write(tmp_path), FigureStyle(width=3.3))
    first, last = drawn.axes[0], drawn.axes[-1]
    assert len(first.patches) > len(last.patches)
    assert first.get_position().width > 1.5 * last.get_position().width
    assert first.get_position().x0 == last.get_position().x0
