"""The legend above the panels of a figure, in as many lines as its width asks for."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from ktbench.report.lettering import LABEL_PT, width_in

LEGEND_LINE_IN = 0.16
_HANDLE_IN = 0.36  # a handle with the space around it


def legend_lines(entries: Sequence[Artist], width: float) -> list[list[Artist]]:
    """Labelled artists in lines that fit into `width` inches."""
    lines: list[list[Artist]] = [[]]
    for entry in entries:
        if lines[-1] and sum(map(_entry_in, [*lines[-1], entry])) > width:
            lines.append([])
        lines[-1].append(entry)
    return lines if entries else []


def draw_legend(figure: Figure, lines: Sequence[Sequence[Artist]], top_in: float) -> None:
    """Legend lines, the first `top_in` inches below the top edge."""
    height = figure.get_figheight()
    for number, line in enumerate(lines):
        figure.legend(
            handles=list(line),
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - (top_in + number * LEGEND_LINE_IN) / height),
            ncols=len(line),
            fontsize=LABEL_PT,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.6,
            handletextpad=0.4,
            columnspacing=1.0,
        )


def _entry_in(entry: Artist) -> float:
    return width_in(str(entry.get_label()), LABEL_PT) + _HANDLE_IN
