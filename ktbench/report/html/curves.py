"""Curves over the setting that a part varies: speed, time of a layer or arithmetic, with intervals as bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ktbench.report.curves import TOKENS_AXIS, Curve, CurvePanel, Value, absences, axis_of, names_of, panels_of
from ktbench.report.html.picture import Panel, Picture, looks_of
from ktbench.report.html.plot import WIDE, XY, Plot, Spot
from ktbench.report.html.scale import scale_around
from ktbench.results.intervals import Interval
from ktbench.results.row import Row
from ktbench.results.usage import Spread

_HEIGHT = 260.0
_Place = Callable[[float, float], XY]
KINDS = ("depth", "latency", "throughput")
_SAID = {"depth": "Speed", "latency": "Time of one layer", "throughput": "Arithmetic done"}
_Y_NAMES = {"depth": "tokens/s", "latency": "ms per layer", "throughput": "10¹² operations/s"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown(Spread):
    """What is drawn of a row, which a pointer finds there."""

    cell: str


def curves_picture(rows: Sequence[Row], kind: str, cards: Mapping[str, int]) -> Picture:
    """A panel for each precision, a curve for each arm. `kind` is one of KINDS."""
    value, axis = _VALUES[kind], axis_of(rows) if kind == "depth" else TOKENS_AXIS
    panels = panels_of(rows, value, axis)
    looks = looks_of(names_of(panels))
    drawn = tuple(
        Panel(
            plot=_plot(panel, looks, cards),
            title=f"{panel.precision} weights" if len(panels) > 1 else "",
            x_name=axis.name,
            y_name=_Y_NAMES[kind],
        )
        for panel in panels
    )
    legend = tuple((look, name) for name, look in looks.items())
    text = " ".join(
        [f"{_SAID[kind]} over {axis.name}; bands: intervals.", *_rims(panels), *absences(rows, value, axis)]
    )
    return Picture(title="Curves", caption=text, panels=drawn, legend=legend, wide=len(drawn) == 1)


def _rims(panels: Sequence[CurvePanel]) -> tuple[str, ...]:
    ringed = any(point.noisy for panel in panels for point in panel.points)
    return ("A ringed point is NOISY.",) if ringed else ()


def _plot(panel: CurvePanel, looks: Mapping[str, str], cards: Mapping[str, int]) -> Plot:
    plot = Plot(height=_HEIGHT, label=f"curves of {panel.precision} weights; arrow keys go from point to point")
    xs = sorted({point.x for point in panel.points})
    x = scale_around(xs, 0.0, WIDE)
    y = scale_around([end for point in panel.points for end in (point.y.low, point.y.high)], _HEIGHT, 0.0, zero=True)
    plot.levels(y)
    plot.names_below(x, xs)
    for curve in panel.references:
        plot.lines("reference", [[(x(point.x), y(point.y.mid)) for point in curve.points]])
    for curve in panel.curves:
        _draw(plot, curve, looks[curve.name], lambda at, value: (x(at), y(value)), cards)
    return plot


def _draw(plot: Plot, curve: Curve, look: str, at: _Place, cards: Mapping[str, int]) -> None:
    upper = [at(point.x, point.y.high) for point in curve.points]
    lower = [at(point.x, point.y.low) for point in curve.points]
    middle = [at(point.x, point.y.mid) for point in curve.points]
    plot.area(f"band {look}", [*upper, *reversed(lower)])
    plot.lines(f"curve {look}", [middle])
    plot.lines(f"reach {look}", [[low, high] for low, high in zip(lower, upper, strict=True)])
    plot.dots("rim", [where for where, point in zip(middle, curve.points, strict=True) if point.noisy])
    plot.dots(f"dot {look}", middle)
    for (left, top), point in zip(middle, curve.points, strict=True):
        assert isinstance(point.y, _Shown)
        plot.spots.append(Spot(x=left, y=top, card=cards[point.y.cell]))


def _shown(row: Row, value: Interval | None, scale: float = 1.0) -> _Shown | None:
    if value is None:
        return None
    return _Shown(low=value.low * scale, mid=value.mid * scale, high=value.high * scale, cell=row.cell)


def _arithmetic(row: Row) -> _Shown | None:
    done = None if row.step_s is None or row.work is None else row.step_s.per(row.work.flops / 1e12)
    return _shown(row, done)


_VALUES: Mapping[str, Value] = {
    "depth": lambda row: _shown(row, row.tokens_per_s),
    "latency": lambda row: _shown(row, row.step_s, 1e3),
    "throughput": _arithmetic,
}
