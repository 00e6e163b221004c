"""What curves of published numbers run over, and which of them share a panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ktbench.report.paper_panels import PaperPanel, values_of
from ktbench.results.paper import PaperLine

MOST_CURVES = 4  # that one panel has room for
_NAMES = {"prefill": "tokens of the prompt", "decode": "tokens of context", "layer": "tokens per expert"}


def x_name(panel: PaperPanel, x: Callable[[PaperLine], float]) -> str:
    """What the axis of curves counts."""
    first = panel.lines[0]
    return _NAMES[first.phase] if x(first) == first.tokens else "share of the experts at the device"


def panels_apart(
    panels: Sequence[PaperPanel], name: Callable[[PaperLine], str], x: Callable[[PaperLine], float]
) -> Sequence[PaperPanel]:
    """One panel with more curves than it has room for as a panel for each; what is no curve stands in all of them."""
    if len(panels) > 1:
        return panels
    lines = panels[0].lines
    places: dict[str, set[float]] = {}
    for line in lines:
        places.setdefault(name(line), set()).add(x(line))
    curves = [label for label, found in places.items() if len(found) > 1]
    if len(curves) <= MOST_CURVES:
        return panels
    return [
        replace(panels[0], title=label, lines=tuple(one for one in lines if name(one) not in {*curves} - {label}))
        for label in curves
    ]


def left_out(lines: Sequence[PaperLine], drawn: Sequence[PaperLine]) -> list[str]:
    """How many of `lines` have values but are not among those `drawn`."""
    count = sum(line not in drawn and bool(values_of(line)) for line in lines)
    return [f"Not drawn: {count} number{'' if count == 1 else 's'} without a place on the axis."] if count else []
