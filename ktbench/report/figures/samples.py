"""Every trial over the time at which it ran, with the read roofs beside it, so that drift can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.figures.curves import REFERENCE, looks
from ktbench.report.figures.sheet import LEFT_IN, PAGE_IN, RIGHT_IN, Mark, Sheet, mark
from ktbench.results.row import Row
from ktbench.results.settings import group_by
from ktbench.spec.record import Record, time_of

_TALL_IN, _ROOF_IN, _BETWEEN_IN, _BELOW_IN = 1.6, 0.8, 0.1, 0.34
_LEAST = 0.02  # an axis that shows less would show noise alone
_MOST_OF = 0.98  # of the trials decide about the axis, so that one outlier does not hide the others
_MINUTE_S = 60.0
_ROOF = "#4d4d4d"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A trial `at` seconds, or trials, after the first; `off` is its median step over that of its cell, less 1.

    `read` are the read roofs before and after it, in GB/s.
    """

    row: Row
    record: Record
    at: float
    step_s: float
    off: float
    read: tuple[float, ...]

    @property
    def mark(self) -> Mark:
        """Its cell, and which of its rounds this one is."""
        low, high = (f"{1e3 * step:.5g}" for step in (min(self.record.samples_s), max(self.record.samples_s)))
        span = "" if low == high else f" ({low} to {high})"
        roof = f", read roof {median(self.read):.4g} GB/s" if self.read else ""
        return Mark(key=(self.row.cell,), note=f"round {self.record.round}: {1e3 * self.step_s:.5g} ms{span}{roof}")


def draw_samples(rows: Sequence[Row]) -> Sheet | None:
    """How far trials are from the median of their cell, over time, above the read roofs; None without two trials.

    Where all trials began in the same second the axis counts them.
    """
    timed = [row for row in rows if row.timed and not row.simulated]
    by_clock = len({record.started for row in timed for record in row.records}) > 1
    trials = _trials(timed, by_clock)
    if len(trials) < 2:
        return None
    names = list(dict.fromkeys(row.shown for row in timed if row.role == "arm"))
    look_of = {name: look | {"linestyle": "", "markersize": 2.4} for name, look in looks(names).items()}
    legend = [Line2D([], [], label=name, **look) for name, look in look_of.items()]
    roofs_in = _BETWEEN_IN + _ROOF_IN if any(trial.read for trial in trials) else 0.0
    limit = _limit([trial.off for trial in trials])
    figure = Sheet(PAGE_IN, _TALL_IN + roofs_in + _BELOW_IN, _caption(trials, limit), legend)
    width = PAGE_IN - LEFT_IN - RIGHT_IN
    minutes = by_clock and trials[-1].at > 3 * _MINUTE_S
    unit = _MINUTE_S if minutes else 1.0
    lowest = figure.axes_at(LEFT_IN, 0.0, width, _TALL_IN)
    lowest.axhline(0, color=REFERENCE, linewidth=0.6, zorder=1)
    for name in dict.fromkeys(trial.row.shown for trial in trials):
        _draw_trials(lowest, [trial for trial in trials if trial.row.shown == name], unit, limit, look_of.get(name, {}))
    _finish(lowest, trials, unit, (-100 * limit, 100 * limit), "% off the cell's median")
    if roofs_in:
        lowest.tick_params(labelbottom=False)
        lowest = figure.axes_at(LEFT_IN, _TALL_IN + _BETWEEN_IN, width, _ROOF_IN)
        _draw_roofs(lowest, trials, unit)
    lowest.set_xlabel(f"{'minutes' if minutes else 'seconds'} since the first trial" if by_clock else "trial")
    return figure


def _trials(rows: Sequence[Row], by_clock: bool) -> list[_Trial]:
    """In the order in which they began; within one second in that of rounds and of the table."""
    found = [(row, record) for row in rows for record in row.records if record.samples_s]
    found.sort(key=lambda pair: (_second(pair[1]), pair[1].round))
    first = _second(found[0][1]) if found else 0.0
    middles = {row.cell: row.step_s.mid for row in rows if row.step_s}
    trials = []
    for n, (row, record) in enumerate(found):
        step_s = median(record.samples_s)
        trials.append(
            _Trial(
                row=row,
                record=record,
                at=_second(record) - first if by_clock else float(n),
                step_s=step_s,
                off=step_s / middles[row.cell] - 1,
                read=tuple(roof.read_bytes_per_s / 1e9 for roof in record.roofs),
            )
        )
    return trials


def _second(record: Record) -> float:
    return time_of(record.started).timestamp() if record.started else 0.0


def _limit(values: Sequence[float]) -> float:
    """What nearly all trials stay within."""
    sizes = sorted(map(abs, values))
    return max(_LEAST, 1.15 * sizes[int(_MOST_OF * (len(sizes) - 1))])


def _caption(trials: Sequence[_Trial], limit: float) -> list[str]:
    beyond = sum(abs(trial.off) > limit for trial in trials)
    edge = [f"{beyond} of {len(trials)} trials lie beyond the axis and are drawn at its edge."] if beyond else []
    return [
        "The median step of each trial against the median of its cell, at the time when the trial began; a line joins "
        "the trials of a cell. Drift of the whole machine moves all cells alike.",
        *edge,
    ]


def _draw_trials(axes: Axes, trials: Sequence[_Trial], unit: float, limit: float, look: dict[str, Any]) -> None:
    """All trials of an arm: a marker for each, a thin line for each cell."""
    style: dict[str, Any] = {"color": REFERENCE, "marker": ".", "linestyle": "", "markersize": 2.4} | look
    heights = [100 * min(max(trial.off, -limit), limit) for trial in trials]
    points = zip([trial.at / unit for trial in trials], heights, strict=True)
    cells = group_by(zip([trial.row.cell for trial in trials], points, strict=True))
    joined = [point for points in cells.values() for point in (*points, (float("nan"),) * 2)]
    axes.plot(*zip(*joined, strict=True), color=style["color"], linewidth=0.4, alpha=0.4, zorder=2)
    (drawn,) = axes.plot([trial.at / unit for trial in trials], heights, zorder=3, clip_on=False, **style)
    mark(drawn, *(trial.mark for trial in trials))


def _draw_roofs(axes: Axes, trials: Sequence[_Trial], unit: float) -> None:
    """The read roofs next to each trial."""
    found = [trial for trial in trials if trial.read]
    places = [(trial.at / unit, read) for trial in found for read in trial.read]
    (drawn,) = axes.plot(*zip(*places, strict=True), color=_ROOF, linestyle="", marker=".", markersize=2.4, alpha=0.7)
    mark(drawn, *(trial.mark for trial in found for _ in trial.read))
    _finish(axes, trials, unit, (0.0, 1.08 * max(read for _, read in places)), "read roof, GB/s")


def _finish(axes: Axes, trials: Sequence[_Trial], unit: float, y: tuple[float, float], name: str) -> None:
    last = max(trials[-1].at, 1.0) / unit
    axes.set_xlim(-0.01 * last, 1.01 * last)
    axes.set_ylim(*y)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_ylabel(name)
