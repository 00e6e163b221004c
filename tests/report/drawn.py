"""What a drawn figure says, and whether all of it can be read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import combinations, permutations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import BboxBase
from numpy.typing import NDArray

from ktbench.report.documents import Document
from ktbench.report.figures.draw import draw
from ktbench.report.speed_table import table_of
from ktbench.results import Run
from ktbench.results.rows import rows_of
from ktbench.spec.sweep import NO_STYLE, FigureStyle

Ink = NDArray[np.uint8]  # how opaque each pixel of a page is; its first row is the highest
_OVERHANG_PX = 4  # how far letters reach beyond their box at most


def speed_figure(run: Run, style: FigureStyle = NO_STYLE) -> Figure:
    """The first figure of the speeds of a run of one part."""
    rows = rows_of(run)
    return draw(Document(kind="table", run=run, rows=rows, table=table_of(run, rows)), style)


def texts(drawn: Figure) -> list[Text]:
    """All texts that are seen, names of ticks among them."""
    found = [*drawn.texts, *(text for legend in drawn.legends for text in legend.get_texts())]
    for axes in (axes for axes in drawn.axes if axes.axison):
        found += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in found if text.get_text()]


def assert_readable(drawn: Figure) -> None:
    """No text lies over another or leaves the page, by the boxes of texts."""
    found = _boxes_on_the_page(drawn)
    corners = [(text, tuple(map(float, box.extents))) for text, box in found]
    for (one, (x0, y0, x1, y1)), (other, (left, low, right, high)) in combinations(corners, 2):
        width, height = min(x1, right) - max(x0, left), min(y1, high) - max(y0, low)
        # A box has the height of its tallest possible letters: a pixel or two in common is still white.
        assert width < 3 or height < 3, f"{one.get_text()!r} lies over {other.get_text()!r}"


def assert_inks_apart(drawn: Figure) -> None:
    """The same by pixels, for labels of curves, which may be turned: the boxes of those hold much that is white."""
    found = _boxes_on_the_page(drawn)
    wider = [(text, box, box.padded(2)) for text, box in found]
    near = {text for (text, _, wide), (_, other, _) in permutations(wider, 2) if wide.overlaps(other)}
    (together,) = inks([[text for text, _ in found if text not in near]], drawn)
    close = [(text, box) for text, box in found if text in near]
    alone = inks([[text] for text, _ in close], drawn)
    pixels = [_pixels(box.padded(_OVERHANG_PX), ink) for (_, box), ink in zip(close, alone, strict=True)]
    for text, box in found:
        assert text in near or _inside(box, together).any(), f"{text.get_text()!r} is not drawn"
    for (text, _), covered in zip(close, pixels, strict=True):
        assert covered.size, f"{text.get_text()!r} is not drawn"
    for ((one, box), above), ((other, below), under) in combinations(zip(close, pixels, strict=True), 2):
        shared = box.overlaps(below) and np.isin(above, under).any()
        assert not shared, f"{one.get_text()!r} lies over {other.get_text()!r}"


def _inside(box: BboxBase, ink: Ink) -> Ink:
    """The part of a page in a box."""
    return ink[_slices(box, len(ink))]


def _pixels(box: BboxBase, ink: Ink) -> NDArray[np.intp]:
    """Which pixels of a page are covered, of those in a box: to look through all of it for a few letters takes long."""
    rows, columns = _slices(box, len(ink))
    found_rows, found_columns = np.nonzero(ink[rows, columns])
    return (found_rows + rows.start) * ink.shape[1] + found_columns + columns.start


def _slices(box: BboxBase, height: int) -> tuple[slice, slice]:
    rows = slice(max(0, int(height - box.y1)), max(0, math.ceil(height - box.y0)))
    return rows, slice(max(0, int(box.x0)), max(0, math.ceil(box.x1)))


def _boxes_on_the_page(drawn: Figure) -> list[tuple[Text, BboxBase]]:
    drawn.draw_without_rendering()  # lays everything out, which is all that boxes need
    found = [(text, text.get_window_extent()) for text in texts(drawn)]
    page = drawn.bbox
    for text, box in found:
        assert box.x0 >= 0 and box.x1 <= page.x1 and box.y0 >= 0 and box.y1 <= page.y1, text.get_text()
    return found


def inks(found: Iterable[Iterable[Text]], drawn: Figure) -> Iterator[Ink]:
    """The pixels that some texts cover, drawn without others and without their halo or background.

    The next ones are drawn in their place.
    """
    width, height = drawn.canvas.get_width_height()
    renderer = RendererAgg(width, height, drawn.dpi)  # type: ignore[no-untyped-call]
    for together in found:
        renderer.clear()  # type: ignore[no-untyped-call]
        for text in together:
            text.set_path_effects([])
            text.set_bbox(None)  # type: ignore[arg-type]
            text.draw(renderer)
        yield np.asarray(renderer.buffer_rgba())[:, :, 3]  # type: ignore[no-untyped-call]


def caption(drawn: Figure) -> str:
    return " ".join(text.get_text() for text in drawn.texts)


def legend(drawn: Figure) -> list[str]:
    return [text.get_text() for one in drawn.legends for text in one.get_texts()]


def titles(drawn: Figure) -> list[str]:
    return [axes.get_title() for axes in drawn.axes]


def texts_by_place(drawn: Figure) -> dict[str, list[str]]:
    """All texts that are seen, by the part of the figure that they are of.

    Without what differs by matplotlib's version: where lines of the caption break, and which numbers have a tick.
    """
    found = {"caption": [" ".join(text.get_text() for text in drawn.texts)], "legend": legend(drawn)}
    for n, axes in enumerate(axes for axes in drawn.axes if axes.axison):
        found[f"axes {n}"] = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
        for side, names in (("x", x_names(axes)), ("y", y_names(axes))):
            found[f"{side} {n}"] = [] if all(map(_is_number, names)) else names
        found[f"inside {n}"] = [text.get_text() for text in axes.texts]
    return found


def _is_number(name: str) -> bool:
    return re.fullmatch(r"[-−+$\d.,%×^{} ]*|[\d.]+e[-+]\d+", name.replace(r"\mathdefault", "")) is not None


def x_names(axes: Axes) -> list[str]:
    """Names of the ticks below axes."""
    return [label.get_text() for label in axes.get_xticklabels()]


def y_names(axes: Axes) -> list[str]:
    """Names of the ticks beside axes."""
    return [label.get_text() for label in axes.get_yticklabels()]


def bar_heights(axes: Axes) -> list[float]:
    return [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]


def curve(axes: Axes, number: int) -> Line2D:
    """A line with markers, in the order of drawing."""
    return axes.containers[number].lines[0]  # type: ignore[attr-defined,no-any-return]
