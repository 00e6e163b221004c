"""Every turn over the time at which it took place, with the roofs beside it, so that drift can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from ktbench.report.html.picture import Panel, Picture, looks_of
from ktbench.report.html.plot import WIDE, XY, Plot, Spot
from ktbench.report.html.scale import Scale
from ktbench.results.row import Row
from ktbench.spec.record import Record

_HEIGHT, _ROOF_HEIGHT = 220.0, 110.0
_LEAST = 0.02  # an axis that shows less would show noise alone
_MOST_OF = 0.98  # of the turns decide about the axis, so that one stray turn does not hide the others
_MINUTE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    """A turn `at` seconds, or turns, after the first, `off` its cell's median as a share; `read` before and after."""

    row: Row
    record: Record
    at: float
    step_s: float
    off: float
    read: tuple[float, ...]


def samples_picture(rows: Sequence[Row], cards: Mapping[str, int]) -> Picture | None:
    """How far turns are from the median of their cell, over time, above the read roofs; None where none was measured.

    Where all turns began in the same second the axis counts turns.
    """
    timed = [row for row in rows if row.timed and not row.simulated]
    by_clock = len({record.started for row in timed for record in row.records}) > 1
    turns = _turns(timed, by_clock)
    if len(turns) < 2:
        return None
    looks = looks_of([row.shown for row in timed if row.role == "arm"])
    minutes = by_clock and turns[-1].at > 3 * _MINUTE_S
    unit, name = (_MINUTE_S, "minutes") if minutes else (1.0, "seconds")
    x = Scale(low=0.0, high=max(turns[-1].at, 1.0), start=4.0, end=WIDE - 4.0)
    x_name = f"{name} since the first turn" if by_clock else "turn"
    limit = _limit([turn.off for turn in turns])
    panels = [
        Panel(plot=_plot(turns, x, limit, unit, looks, cards), x_name=x_name, y_name="% off the median of the cell")
    ]
    if any(turn.read for turn in turns):
        panels.append(Panel(plot=_roof_plot(turns, x, unit, cards), x_name=x_name, y_name="read roof (GB/s)"))
    return Picture(
        title="Samples over time",
        caption=_caption(turns, limit),
        panels=tuple(panels),
        legend=tuple((look, name) for name, look in looks.items()),
        wide=True,
    )


def _turns(rows: Sequence[Row], by_clock: bool) -> list[_Turn]:
    """In the order in which they began; within one second in that of rounds and of the table."""
    found = [(row, record) for row in rows for record in row.records if record.samples_s]
    found.sort(key=lambda pair: (_second(pair[1]), pair[1].round))
    first = _second(found[0][1]) if found else 0.0
    middles = {row.cell: row.step_s.mid for row in rows if row.step_s}
    turns = []
    for n, (row, record) in enumerate(found):
        step_s = median(record.samples_s)
        turns.append(
            _Turn(
                row=row,
                record=record,
                at=_second(record) - first if by_clock else float(n),
                step_s=step_s,
                off=step_s / middles[row.cell] - 1,
                read=tuple(roof.read_bytes_per_s / 1e9 for roof in record.roofs),
            )
        )
    return turns


def _second(record: Record) -> float:
    return datetime.fromisoformat(record.started).timestamp()


def _limit(values: Sequence[float]) -> float:
    """What nearly all turns stay within."""
    sizes = sorted(map(abs, values))
    return max(_LEAST, 1.15 * sizes[int(_MOST_OF * (len(sizes) - 1))])


def _caption(turns: Sequence[_Turn], limit: float) -> str:
    beyond = sum(abs(turn.off) > limit for turn in turns)
    edge = f" {beyond} of {len(turns)} turns lie beyond the axis and are drawn at its edge." if beyond else ""
    return (
        "Each turn's median step against the median of its cell, at the time when the turn began; a line joins the "
        f"turns of a cell. A drift of the whole machine moves all cells alike.{edge}"
    )


def _plot(
    turns: Sequence[_Turn],
    x: Scale,
    limit: float,
    unit: float,
    looks: Mapping[str, str],
    cards: Mapping[str, int],
) -> Plot:
    plot = Plot(height=_HEIGHT, label="turns over time; arrow keys go from turn to turn")
    y = Scale(low=-100 * limit, high=100 * limit, start=_HEIGHT - 4, end=4.0)
    _draw_ticks(plot, x, y, unit)
    lines: dict[str, dict[str, list[XY]]] = {}
    for turn in turns:
        where = x(turn.at), y(100 * turn.off)
        lines.setdefault(looks.get(turn.row.shown, "s0"), {}).setdefault(turn.row.cell, []).append(where)
        plot.spots.append(_spot(turn, where, cards))
    for look, cells in lines.items():
        plot.lines(f"thread {look}", list(cells.values()))
        plot.dots(f"turn {look}", [where for points in cells.values() for where in points])
    return plot


def _roof_plot(turns: Sequence[_Turn], x: Scale, unit: float, cards: Mapping[str, int]) -> Plot:
    plot = Plot(height=_ROOF_HEIGHT, label="read bandwidth over time; arrow keys go from turn to turn")
    y = Scale(low=0.0, high=1.08 * max(read for turn in turns for read in turn.read), start=_ROOF_HEIGHT, end=0.0)
    _draw_ticks(plot, x, y, unit, 3)
    for turn in (turn for turn in turns if turn.read):
        plot.spots.append(_spot(turn, (x(turn.at), y(turn.read[0])), cards))
    plot.dots("turn roofs", [(x(turn.at), y(read)) for turn in turns for read in turn.read])
    return plot


def _draw_ticks(plot: Plot, x: Scale, y: Scale, unit: float, count: int = 5) -> None:
    plot.levels(y, count=count, zero="axis")
    named = Scale(low=0.0, high=x.high / unit, start=x.start, end=x.end)
    plot.names_below(named, named.ticks(6))


def _spot(turn: _Turn, where: XY, cards: Mapping[str, int]) -> Spot:
    """Round, ms, least and most ms of the turn, read roof in GB/s."""
    ends = [1e3 * step for step in (turn.step_s, min(turn.record.samples_s), max(turn.record.samples_s))]
    read = median(turn.read) if turn.read else None
    numbers = (*(float(f"{value:.5g}") for value in ends), None if read is None else float(f"{read:.4g}"))
    return Spot(x=where[0], y=where[1], card=cards[turn.row.cell], turn=(turn.record.round, *numbers))
