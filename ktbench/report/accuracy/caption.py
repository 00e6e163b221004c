"""What the figure of a run that asks a suite shows, in one or two sentences."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.accuracy.formats import arm_of_formats
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, parts_of_average
from ktbench.results.answers import LOSSES
from ktbench.results.run import the_part
from ktbench.spec.sweep import FigureKind

# Of more arms and categories the figure shows the average alone.
MOST_DOTS = 50
_BOLD = "bold: beyond noise"


def accuracy_caption(run: Run, rows: Sequence[AccuracyRow]) -> str:
    """What the figure shows."""
    return f"{run.header.title}: {_shows(drawn_kind(run, rows), run, rows)}."


def drawn_kind(run: Run, rows: Sequence[AccuracyRow]) -> FigureKind:
    """The kind of figure that a part asks for; where nothing is graded, or it asks for one of speeds, `accuracy`."""
    figure = the_part(run).figure
    return figure if figure in _KINDS and any(row.results for row in rows) else "accuracy"


_KINDS: tuple[FigureKind, ...] = ("accuracy", "deferral_accuracy", "precision_accuracy", "frontier")


def _shows(kind: FigureKind, run: Run, rows: Sequence[AccuracyRow]) -> str:
    if not any(row.results for row in rows):
        return measured_text(rows)
    if kind == "deferral_accuracy":
        models = " and ".join(dict.fromkeys(one.model for one in run.published))
        published = f", and as published of {models}" if models else ""
        return (
            f"scores in % and their change relative to {_base(rows)} in %, {_BOLD}{published}; below, the "
            "change of the average with its paired 95 % interval"
        )
    if kind == "precision_accuracy":
        return f"average score in %{arm_of_formats(rows)}, and its change relative to {_base(rows)} in %, {_BOLD}"
    if kind == "frontier":
        return (
            "decode speed against average score; whiskers: 95 % intervals; filled: no other arm is both as fast and as "
            "good, by the middles of the intervals"
        )
    by, names = parts_of_average(rows)
    over = "" if not names else f" by {by}" if len(rows) * (len(names) + 1) <= MOST_DOTS else " on average"
    compared = any(one.change for row in rows for one in row.results)
    beside = f", and their paired difference to {_base(rows)}" if compared else ""
    return f"scores{over}{beside}; whiskers: 95 % intervals"


def measured_text(rows: Sequence[AccuracyRow]) -> str:
    """What dots of measures show: drift from the baseline, or perplexity where nothing is compared with one."""
    of_arms = [one for row in rows for one in row.measures if not row.is_baseline]
    compared = any(one.change or one.metric not in LOSSES for one in of_arms)
    what = "how far predictions are from the baseline's" if compared else "perplexity"
    return f"{what}; whiskers: 95 % intervals over texts, or windows of them"


def _base(rows: Sequence[AccuracyRow]) -> str:
    base = next((row.row for row in rows if row.is_baseline), None)
    if base is None:
        return "the baseline"
    formats = {(row.row.spec.precision, row.row.spec.device_precision) for row in rows}
    with_formats = f" ({base.spec.precision}, device role {base.spec.device_precision})" if len(formats) > 1 else ""
    return base.shown + with_formats
