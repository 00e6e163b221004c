"""The figure of a table: its style, its kinds, its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

from ktbench.report.attribution import Attribution
from ktbench.report.figures.attribution import draw_attribution
from ktbench.report.figures.bars import draw_breakdown
from ktbench.report.figures.roles import draw_roles
from ktbench.report.figures.sheet import DPI, without_caption
from ktbench.report.figures.sweeps import draw_depth, draw_latency, draw_throughput
from ktbench.report.paper_figure import draw_paper
from ktbench.report.paper_lines import PaperLine
from ktbench.report.row import Row
from ktbench.report.tables import Table
from ktbench.spec.sweep import FigureKind

# Fixed salt, no dates, fonts inside the file, nobody's own matplotlibrc: the same rows give the same bytes.
_OURS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ktbench",
    "text.parse_math": False,
}
STYLE: Any = ["default", _OURS]
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}
_KINDS: Mapping[FigureKind, Callable[[Sequence[Row], Table], Figure]] = {
    "bars": draw_breakdown,
    "throughput": draw_throughput,
    "latency": draw_latency,
    "roles": draw_roles,
    "depth": draw_depth,
}


def draw(rows: Sequence[Row], table: Table) -> Figure:
    """The figure of a part's rows, of the kind that the part asks for."""
    with style.context(STYLE):
        return _KINDS[table.figure](rows, table)


def draw_published(lines: Sequence[PaperLine], table: Table) -> Figure:
    """The figure of a part's published numbers, with what was simulated and measured of them."""
    with style.context(STYLE):
        return draw_paper(lines, table)


def draw_shares(attributions: Sequence[Attribution], table: Table) -> Figure:
    """The figure of a part's shares of the speed-up."""
    with style.context(STYLE):
        return draw_attribution(attributions, table)


def svg_text(figure: Figure) -> str:
    """A figure as the text of an SVG file."""
    file = StringIO()
    with style.context(STYLE):
        figure.savefig(file, format="svg", metadata=_METADATA["svg"])
    return file.getvalue()


def save(figure: Figure, folder: Path, name: str, *, caption: bool = True) -> list[Path]:
    """Write `<name>.pdf`, `.svg` and `.png` into a folder; for a paper, which sets its captions itself, without."""
    written = []
    box = None if caption else without_caption(figure)
    for suffix, metadata in _METADATA.items():
        path = folder / f"{name}.{suffix}"
        with style.context(STYLE):
            figure.savefig(path, format=suffix, dpi=DPI, metadata=metadata, bbox_inches=box)
        written.append(path)
    return written
