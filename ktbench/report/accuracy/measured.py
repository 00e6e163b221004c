"""What is measured where answers are not graded, as dots of panels: drift and perplexity of each arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.results.accuracy import AccuracyRow
from ktbench.results.answers import KL, LOSSES, PERPLEXITIES, TOP1
from ktbench.results.scores import Estimate

_X_NAMES = {KL: "KL to the baseline, nats", TOP1: "top-1 agreement, %"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A value of line `line`, drawn in the look of `name`."""

    line: int
    name: str
    value: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class DotPanel:
    """Dots at a scale of their own; `zero`: with a rule at 0, from which they are read."""

    x_name: str
    dots: tuple[Dot, ...]
    title: str = ""
    scale: float = 1.0
    zero: bool = False


def measured_panels(rows: Sequence[AccuracyRow]) -> list[DotPanel]:
    """A panel for each metric of each task; the baseline has no drift from itself.

    Of losses the change of perplexity, which is paired, or perplexity where there is nothing to compare with.
    """
    paired = any(one.change for row in rows for one in row.measures)
    found: dict[tuple[str, str], list[Dot]] = {}
    for line, row in enumerate(rows):
        for one in row.measures if not row.is_baseline or len(rows) == 1 else ():
            value = one.change if paired and one.metric in LOSSES else one.value
            if value is not None:
                found.setdefault((one.task, one.metric), []).append(Dot(line=line, name="", value=value))
    panels = [_panel(task, metric, tuple(dots), paired=paired) for (task, metric), dots in found.items()]
    return panels or [DotPanel(x_name="nothing was measured", dots=())]


def _panel(task: str, metric: str, dots: tuple[Dot, ...], *, paired: bool) -> DotPanel:
    if metric not in LOSSES:
        return DotPanel(title=task, x_name=_X_NAMES[metric], dots=dots, scale=100 if metric == TOP1 else 1)
    name = PERPLEXITIES[metric]
    if paired:
        return DotPanel(title=task, x_name=f"change of {name}, %", dots=dots, scale=100, zero=True)
    return DotPanel(title=task, x_name=name, dots=dots)
