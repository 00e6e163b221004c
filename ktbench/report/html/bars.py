"""Bars with the interval of the median and the rounds as dots, arm below arm, a panel for each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ktbench.report.html.picture import Panel, Picture, in_pages
from ktbench.report.html.plot import WIDE, Plot, Spot, fits, shortened
from ktbench.report.html.scale import Scale, tick_name
from ktbench.report.text import number, ratio
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.row import Row, groups_of, measured, shows_speeds
from ktbench.results.rows import judged_values
from ktbench.results.settings import varying
from ktbench.spec.record import Outcome

_PITCH, _BAR, _TOP = 42.0, 12.0, 18.0  # of a strip: its height, that of its bar, and where the bar begins
_FILLS = 7
_ROOM = 1.04


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """One arm: a bar up to `value` with its interval and `rounds`, or `text` alone. A `faint` one has no bar."""

    name: str
    text: str
    card: int
    fill: str
    value: float | None = None
    interval: Interval | None = None
    rounds: tuple[float, ...] = ()
    noisy: bool = False
    faint: bool = False

    @property
    def highest(self) -> float:
        """Where all of it ends."""
        ends = [self.value or 0.0, *self.rounds]
        return max([*ends, self.interval.high] if self.interval else ends)


def bars_picture(rows: Sequence[Row], cards: Mapping[str, int]) -> Picture:
    """Speed-ups over the baseline, or speeds where systems are compared and where roles share a step."""
    speeds = shows_speeds(rows) or rows[0].spec.engine.apart
    groups = groups_of(rows)
    free = varying([group[0].settings for group in groups])
    arms = list(dict.fromkeys(row.shown for row in rows if row.role == "arm"))
    show: Callable[[Row, Sequence[Row]], tuple[float | None, Interval | None, tuple[float, ...]]]
    show = _speed if speeds else _speedup
    strips = [[_strip(row, group, cards, arms, show) for row in group] for group in groups]
    top = max((strip.highest for group in strips for strip in group), default=1.0) or 1.0
    roomy = not all(strip.value is None or fits(strip.name, strip.text) for group in strips for strip in group)
    name = "tokens/s" if speeds else f"speed-up over {rows[0].baseline} (×)"
    panels = [
        Panel(plot=_plot(some, top * _ROOM, None if speeds else 1.0), title=_title(group[0], free), x_name=name)
        for group, drawn in zip(groups, strips, strict=True)
        for some in in_pages(drawn, lambda _: _PITCH)
    ]
    return Picture(
        title="Comparison", caption=_caption(rows, name), panels=tuple(panels), wide=len(panels) == 1, roomy=roomy
    )


def _caption(rows: Sequence[Row], name: str) -> str:
    """What the bars are, and what stands on them."""
    opening = f"{name[0].upper()}{name[1:]}"
    if not measured(rows):
        return f"{opening}, simulated: one step that is always the same, so there are no intervals."
    noisy = " A dashed outline and ~: NOISY." if any(row.outcome is Outcome.NOISY for row in rows) else ""
    control = " The control, the baseline once more, shows what noise alone does." if _has_control(rows) else ""
    return (
        f"{opening}: median over rounds; whiskers: its interval of at least 95 %; dots: single rounds.{noisy}{control}"
    )


def _has_control(rows: Sequence[Row]) -> bool:
    return any(row.role == "control" for row in rows)


def _strip(
    row: Row,
    group: Sequence[Row],
    cards: Mapping[str, int],
    arms: Sequence[str],
    show: Callable[[Row, Sequence[Row]], tuple[float | None, Interval | None, tuple[float, ...]]],
) -> Strip:
    control = row.role == "control"
    fill = "" if control else f"f{arms.index(row.shown) % _FILLS}"
    value, interval, rounds = show(row, group)
    if value is None:
        reason = row.missing.get("speedup", row.why) if row.timed else row.why
        return Strip(name=row.shown, text=shortened(f"{_ending(row)}: {reason}"), card=cards[row.cell], fill=fill)
    shown = None if row.simulated or interval is None or is_exact(interval) else interval
    return Strip(
        name=row.shown,
        text=_value_text(row, value),
        card=cards[row.cell],
        fill=fill,
        value=value,
        interval=shown,
        rounds=rounds,
        noisy=row.outcome is Outcome.NOISY,
        faint=control,
    )


def _speedup(row: Row, group: Sequence[Row]) -> tuple[float | None, Interval | None, tuple[float, ...]]:
    """The baseline is 1 and has no interval; the control shows what noise alone does."""
    if row.is_baseline:
        return (1.0 if row.timed else None), None, ()
    if row.speedup is None:
        return None, None, ()
    found = [] if row.simulated else list(judged_values(row, group).values())
    return row.speedup.mid, row.speedup, tuple(value for value in found if value is not None)


def _speed(row: Row, group: Sequence[Row]) -> tuple[float | None, Interval | None, tuple[float, ...]]:
    if row.tokens_per_s is None:
        return None, None, ()
    rounds = () if row.simulated else tuple(row.spec.workload.tokens_per_step / s for s in row.round_s.values())
    return row.tokens_per_s.mid, row.tokens_per_s, rounds


def _value_text(row: Row, value: float) -> str:
    mark = "~" if row.outcome is Outcome.NOISY else ""
    speed = "" if row.tokens_per_s is None else f"{number(row.tokens_per_s.mid, 3)} tokens/s"
    if row.is_layer and row.step_s is not None:
        speed = f"{number(row.step_s.mid * 1e3, 3)} ms"
    times = "" if row.speedup is None else f"{mark}{ratio(row.speedup).partition(' ')[0]}×"
    return " · ".join(filter(None, [times, speed])) if times else f"{mark}{speed}"


def _ending(row: Row) -> str:
    return "no speed-up" if row.timed else str(row.outcome or "not measured")


def _title(row: Row, free: Sequence[str]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {row.settings.get(key)}" for key in free)


def _plot(strips: Sequence[Strip], highest: float, reference: float | None) -> Plot:
    plot = Plot(height=_PITCH * len(strips), label="bars; arrow keys go from one to the next", find="rows")
    scale = Scale(low=0.0, high=highest, start=0.0, end=WIDE)
    bands = [(_PITCH * n + _TOP - 2, _PITCH * (n + 1) - 6) for n in range(len(strips))]
    for tick in scale.ticks(5):
        plot.lines("grid", [[(scale(tick), top), (scale(tick), foot)] for top, foot in bands])
        plot.below(scale(tick), tick_name(tick))
    for n, strip in enumerate(strips):
        _draw(plot, strip, n * _PITCH, scale)
    if reference is not None:
        plot.lines("reference", [[(scale(reference), top), (scale(reference), foot)] for top, foot in bands])
    return plot


def _draw(plot: Plot, strip: Strip, y: float, scale: Scale) -> None:
    middle = y + _TOP + _BAR / 2
    plot.text("name faint" if strip.faint else "name", (0.0, y + _TOP - 5), strip.name)
    plot.spots.append(Spot(x=scale(strip.value or 0.0), y=middle, card=strip.card))
    if strip.value is None:
        plot.text("absent", (0.0, y + _TOP + _BAR - 2), strip.text)
        return
    plot.text("value", (WIDE, y + _TOP - 5), strip.text, "end")
    if not strip.faint:
        plot.box(f"bar {strip.fill}{' noisy' if strip.noisy else ''}", (0.0, y + _TOP), scale(strip.value), _BAR)
    plot.dots("round", [(scale(value), middle) for value in strip.rounds])
    if strip.interval is not None:
        low, high, reach = scale(strip.interval.low), scale(strip.interval.high), _BAR / 3
        ends = [[(x, middle - reach), (x, middle + reach)] for x in (low, high)]
        plot.lines("whisker", [[(low, middle), (high, middle)], *ends])
