"""The table of shares: a line for each feature and one for all, and what features gain or lose together."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ktbench.report.attribution_text import (
    attribution_caption,
    attribution_methods,
    attribution_notes,
    context_text,
    settings_shown,
)
from ktbench.report.columns import Column
from ktbench.report.conditions import conditions_of
from ktbench.report.methods import methods_of
from ktbench.report.tables import Table
from ktbench.report.text import DASH, percent, ratio
from ktbench.results import Run
from ktbench.results.attribution import Attribution, Pair, Share
from ktbench.results.intervals import Interval
from ktbench.results.row import Row
from ktbench.results.run import the_part
from ktbench.results.settings import setting_text

TOTAL = "all together"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the table: a feature of a group, or all of them where `share` is None."""

    of: Attribution
    share: Share | None = None

    def value(self, name: Literal["factor", "first", "last"]) -> Interval | None:
        """A factor of the feature; of all together the speed-up."""
        if self.share is None:
            return self.of.total if name == "factor" else None
        return {"factor": self.share.factor, "first": self.share.first, "last": self.share.last}[name]

    def pair(self, other: str) -> Pair | None:
        """The interaction with another feature; None for itself and for all together."""
        names = {other, self.share.feature if self.share else other}
        return next((pair for pair in self.of.pairs if {pair.one, pair.other} == names), None)


def lines_of(attributions: Sequence[Attribution]) -> tuple[Line, ...]:
    """Lines of all groups in order."""
    return tuple(line for one in attributions for line in _lines(one))


def _lines(one: Attribution) -> Iterator[Line]:
    yield from (Line(of=one, share=share) for share in one.shares)
    yield Line(of=one)


@dataclass(frozen=True, kw_only=True, slots=True)
class _LineColumn:
    heading: str
    write: Callable[[Line], str]
    numeric: bool = True


def attribution_table(run: Run, rows: Sequence[Row], attributions: Sequence[Attribution]) -> Table:
    """The table of `attributions`, which are those of `rows`, the rows of a run of one part."""
    settings = settings_shown(attributions)
    lines = lines_of(attributions)
    shown = [column for column in _columns(attributions, settings) if {*map(column.write, lines)} - {DASH}]
    part = the_part(run)
    return Table(
        part=part.name,
        figure=part.figure,
        title=f"{run.header.title}: whose the speed-up is",
        conditions=conditions_of(run, rows),
        methods=(*attribution_methods(attributions), *methods_of(run, rows)),
        columns=tuple(Column(heading=c.heading, write=lambda _: DASH, numeric=c.numeric) for c in shown),
        cells=tuple(tuple(column.write(line) for column in shown) for line in lines),
        control_cells=(),
        notes=tuple(dict.fromkeys(note for one in attributions for note in attribution_notes(one, settings))),
        remarks=(),
        figure_caption=attribution_caption(run, attributions),
        commands=(("all cells", shlex.join(run.header.command)),),
    )


def _columns(attributions: Sequence[Attribution], settings: Sequence[str]) -> Iterator[_LineColumn]:
    yield _LineColumn(heading="feature", write=lambda line: line.share.feature if line.share else TOTAL, numeric=False)
    for key in settings:
        yield _LineColumn(heading=key, write=_setting(key))
    yield _LineColumn(heading="share (×)", write=lambda line: _factor(line.value("factor")))
    yield _LineColumn(heading="share of the log speed-up (%)", write=_percent)
    yield _LineColumn(heading="added first (×)", write=lambda line: _factor(line.value("first")))
    yield _LineColumn(heading="added last (×)", write=lambda line: _factor(line.value("last")))
    for feature in dict.fromkeys(feature for one in attributions for feature in one.features):
        yield _LineColumn(heading=f"with {feature} (×)", write=_interaction(feature))


def _setting(key: str) -> Callable[[Line], str]:
    return lambda line: setting_text(line.of.settings.get(key))


def _interaction(feature: str) -> Callable[[Line], str]:
    def write(line: Line) -> str:
        pair = line.pair(feature)
        if pair is None or pair.factor is None:
            return DASH
        return f"{ratio(pair.factor)}{f' at {context_text(line.of, pair)}' if pair.context else ''}"

    return write


def _factor(value: Interval | None) -> str:
    return DASH if value is None else ratio(value)


def _percent(line: Line) -> str:
    if line.share is None:
        return "100" if line.of.orders and any(share.part for share in line.of.shares) else DASH
    return DASH if line.share.part is None else percent(line.share.part)
