"""Published beside simulated and measured values as bars, and benchmark scores with and without deferral."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ktbench.report.html.picture import Panel, Picture, in_pages
from ktbench.report.html.plot import WIDE, Plot, Spot
from ktbench.report.html.scale import Scale, tick_name
from ktbench.report.paper_panels import SCORED, PaperPanel, bar_namer, by_benchmark, panels_of, values_of
from ktbench.report.text import number
from ktbench.results.paper import PaperLine

_NAME, _BAR, _GAP, _BETWEEN = 17.0, 15.0, 2.0, 8.0
_SHARE = 0.55  # of the canvas for the longest bar: its number stands behind it
_FILLS = {"published": "f0", "simulated": "f4", "measured here": "f2"}
_SCORE_FILLS = dict(zip(SCORED, ("f0", "f3"), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    fill: str
    value: float
    text: str
    card: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Bars below each other and the name above them."""

    name: str
    bars: tuple[_Bar, ...]

    @property
    def tall(self) -> float:
        return _NAME + len(self.bars) * (_BAR + _GAP) + _BETWEEN


def bars_beside(lines: Sequence[PaperLine], caption: str, card: Callable[[PaperLine], int]) -> Picture:
    """A panel for each model, machine and unit; for each arm what was published, simulated and measured."""
    drawn = [line for line in lines if values_of(line)]
    name = bar_namer(drawn)
    panels = [
        one
        for panel in panels_of(drawn)
        for one in _panels(panel, [_of_line(line, name(line) or line.what, card(line)) for line in panel.lines])
    ]
    shown = {provenance for line in drawn for provenance in values_of(line)}
    return _picture(panels, caption, {name: fill for name, fill in _FILLS.items() if name in shown})


def scores_beside(lines: Sequence[PaperLine], caption: str, card: Callable[[PaperLine], int]) -> Picture:
    """A panel for each model, a group for each benchmark: with all experts on time and with deferred ones."""
    panels = [
        one
        for panel in panels_of([line for line in lines if line.published is not None])
        for one in _panels(panel, [_of_benchmark(name, found, card) for name, found in by_benchmark(panel).items()])
    ]
    return _picture(panels, caption, _SCORE_FILLS)


def _panels(panel: PaperPanel, groups: Sequence[_Group]) -> Iterator[Panel]:
    """A panel, or several of one scale where it is longer than a page."""
    values = [bar.value for group in groups for bar in group.bars]
    x = Scale(low=min(0.0, *values), high=max([0.0, *values]) or 1.0, start=0.0, end=_SHARE * WIDE)
    for some in in_pages(groups, lambda group: group.tall):
        yield Panel(plot=_plot(some, x), title=panel.title, x_name=panel.metric)


def _picture(panels: Sequence[Panel], caption: str, fills: Mapping[str, str]) -> Picture:
    legend = tuple((f"box {fill}", name) for name, fill in fills.items())
    return Picture(title="Published", caption=caption, panels=tuple(panels), legend=legend, wide=len(panels) == 1)


def _of_line(line: PaperLine, name: str, card: int) -> _Group:
    bars = [
        _Bar(fill=_FILLS[provenance], value=value, text=_text(line, provenance, value), card=card)
        for provenance, value in values_of(line).items()
    ]
    return _Group(name=name, bars=tuple(bars))


def _text(line: PaperLine, provenance: str, value: float) -> str:
    """`7.80 simulated, +0.1 %`."""
    error = f", {100 * line.error:+.1f} %" if provenance == "simulated" and line.error is not None else ""
    return f"{number(value, 3)} {provenance}{error}"


def _of_benchmark(name: str, found: Mapping[str, PaperLine], card: Callable[[PaperLine], int]) -> _Group:
    bars = [
        _Bar(fill=_SCORE_FILLS[which], value=value, text=number(value, 3), card=card(line))
        for which, line in found.items()
        if (value := line.published) is not None
    ]
    return _Group(name=name, bars=tuple(bars))


def _plot(groups: Sequence[_Group], x: Scale) -> Plot:
    plot = Plot(
        height=sum(group.tall for group in groups), label="bars; arrow keys go from one to the next", find="rows"
    )
    for tick in x.ticks(4):
        plot.lines("grid", [[(x(tick), 0.0), (x(tick), plot.height)]])
        plot.below(x(tick), tick_name(tick))
    top = 0.0
    for group in groups:
        plot.text("name", (0.0, top + 12), group.name)
        for n, bar in enumerate(group.bars):
            _draw(plot, bar, top + _NAME + n * (_BAR + _GAP), x)
        top += group.tall
    return plot


def _draw(plot: Plot, bar: _Bar, top: float, x: Scale) -> None:
    left, right = sorted((x(0.0), x(bar.value)))
    plot.box(f"bar {bar.fill}", (left, top), right - left, _BAR)
    plot.text("value", (right, top + _BAR - 3), bar.text, "start", 6.0)
    plot.spots.append(Spot(x=x(bar.value), y=top + _BAR / 2, card=bar.card))
