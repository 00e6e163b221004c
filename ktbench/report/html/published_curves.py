"""Published, simulated and measured values over tokens or the share of experts at the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from ktbench.report.html.picture import Panel, Picture, looks_of
from ktbench.report.html.plot import WIDE, XY, Plot, Spot
from ktbench.report.html.scale import scale_around
from ktbench.report.paper_axes import left_out, panels_apart, x_name
from ktbench.report.paper_panels import RATIO, PaperPanel, namer, panels_of, values_of, x_of
from ktbench.results.paper import PaperLine

_HEIGHT = 240.0
_LEGEND = {"published": "ring far", "simulated": "far", "measured here": "square far"}
_Place = Callable[[PaperLine], float]


def curves_beside(lines: Sequence[PaperLine], caption: str, card: Callable[[PaperLine], int]) -> Picture:
    """A panel for each model and machine; arms by colour, published as rings, simulated filled, measured square."""
    x = x_of(lines)
    assert x is not None
    drawn = [line for line in lines if isfinite(x(line)) and values_of(line)]
    name = namer(drawn, skip=(RATIO,))
    found = panels_apart(panels_of(drawn), name, x)
    looks = looks_of([name(line) for panel in found for line in panel.lines])
    panels = tuple(
        Panel(
            plot=_plot(panel, x, name, looks, card),
            title=panel.title,
            x_name=x_name(panel, x),
            y_name=panel.metric,
        )
        for panel in found
    )
    shown = {provenance for line in drawn for provenance in values_of(line)}
    arms = tuple((look, name) for name, look in looks.items()) if len(looks) > 1 else ()
    legend = (*arms, *((look, name) for name, look in _LEGEND.items() if name in shown))
    said = " ".join([caption, *left_out(lines, drawn)])
    return Picture(title="Published", caption=said, panels=panels, legend=legend, wide=len(panels) == 1)


def _plot(
    panel: PaperPanel,
    x_at: _Place,
    name: Callable[[PaperLine], str],
    looks: Mapping[str, str],
    card: Callable[[PaperLine], int],
) -> Plot:
    plot = Plot(height=_HEIGHT, label=f"curves of {panel.title or panel.metric}; arrow keys go from point to point")
    xs = sorted({x_at(line) for line in panel.lines})
    x = scale_around(xs, 0.0, WIDE)
    y = scale_around([v for line in panel.lines for v in values_of(line).values()], _HEIGHT, 0.0, zero=True)
    plot.levels(y)
    plot.names_below(x, xs)
    for label, look in looks.items():
        mine = [line for line in panel.lines if name(line) == label]
        for provenance in _LEGEND:
            points = sorted({(x_at(line), v) for line in mine if (v := values_of(line).get(provenance)) is not None})
            _draw(plot, [(x(at), y(v)) for at, v in points], provenance, look)
    for line in panel.lines:
        places = dict.fromkeys((x(x_at(line)), y(value)) for value in values_of(line).values())
        plot.spots += [Spot(x=left, y=top, card=card(line)) for left, top in places]
    return plot


def _draw(plot: Plot, points: Sequence[XY], provenance: str, look: str) -> None:
    if provenance == "published":
        plot.lines(f"curve dashed {look}", [points] if len(points) > 1 else [])
        plot.dots(f"dot wide {look}", points)
        plot.dots("hole", points)
    elif provenance == "simulated":
        plot.lines(f"curve {look}", [points] if len(points) > 1 else [])
        plot.dots(f"dot small {look}", points)
    else:
        plot.dots(f"dot square {look}", points)
