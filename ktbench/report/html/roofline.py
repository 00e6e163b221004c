"""The roofline plot: arithmetic that cells did over what they did for each byte of weights, against the roofs.

Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ktbench.report.html.picture import Panel, Picture, looks_of
from ktbench.report.html.plot import WIDE, Plot, Spot
from ktbench.report.html.scale import Scale
from ktbench.report.text import number
from ktbench.results.row import Row
from ktbench.results.usage import Spread, peak_spreads, read_spread

_HEIGHT = 280.0
_ROOM = 2.0  # as a factor around the outermost points and roofs
_STEPS = 60  # a band bends where slope and peak meet

Peaks = Mapping[tuple[str, str], Spread]


def roofline_picture(rows: Sequence[Row], cards: Mapping[str, int]) -> Picture | None:
    """A panel for each machine, a point for each cell; None where no cell says its work next to sampled roofs."""
    found = [row for row in rows if row.role == "arm" and row.step_s and row.roof and _has_intensity(row)]
    if not found:
        return None
    machines = dict.fromkeys(_machine(row) for row in found)
    looks = looks_of([row.shown for row in found])
    panels = tuple(_panel(name, [row for row in found if _machine(row) == name], looks, cards) for name in machines)
    return Picture(
        title="Roofline",
        caption=_caption(rows, found),
        panels=panels,
        legend=tuple((look, name) for name, look in looks.items()),
        wide=len(panels) == 1,
    )


def _has_intensity(row: Row) -> bool:
    """Steps whose host role reads no weights, as where all experts live with the device, have no place on the axis."""
    return row.work is not None and row.work.flops > 0 and row.work.weight_bytes > 0


def _machine(row: Row) -> str:
    return "this machine" if row.spec.machine is None else row.spec.machine.name


def _caption(rows: Sequence[Row], found: Sequence[Row]) -> str:
    without = sum(row.role == "arm" and row.timed for row in rows) - len(found)
    left_out = f" {without} timed cells say no work or have no roof and are not drawn." if without else ""
    kinds = {row.provenance for row in found}
    how = "sampled next to the turns: median, and shaded from least to most" if "measured" in kinds else "as described"
    return (
        f"Operations per second over operations per byte of weights, a point for each cell; dashed: roofs, {how}."
        f"{left_out}"
    )


def _panel(name: str, rows: Sequence[Row], looks: Mapping[str, str], cards: Mapping[str, int]) -> Panel:
    records = [record for row in rows for record in row.records]
    read, peaks = read_spread(records), peak_spreads(records)
    assert read is not None, "a share of a roof needs a roof"
    points = [(row, _intensity(row), (row.flops_per_s or 0.0) / 1e12) for row in rows]
    ridges = [peak.mid / read.mid for peak in peaks.values()]
    x = _log([*(at for _, at, _ in points), *ridges], 0.0, WIDE)
    tops = [peak.mid / 1e12 for peak in peaks.values()] or [read.mid * x.high / 1e12]
    y = _log([*(done for _, _, done in points), *tops], _HEIGHT, 0.0)
    plot = Plot(height=_HEIGHT, label=f"roofline of {name}; arrow keys go from point to point")
    plot.levels(y)
    plot.names_below(x, x.ticks())
    _draw_roofs(plot, read, peaks, x, y)
    for arm, look in looks.items():
        plot.dots(f"dot {look}", [(x(at), y(done)) for row, at, done in points if row.shown == arm])
    plot.spots += [Spot(x=x(at), y=y(done), card=cards[row.cell]) for row, at, done in points]
    return Panel(
        plot=plot,
        title=name if name != "this machine" else "",
        x_name="operations per byte of weights",
        y_name="10¹² operations/s",
    )


def _intensity(row: Row) -> float:
    assert row.work is not None
    return row.work.flops / row.work.weight_bytes


def _log(values: Sequence[float], start: float, end: float) -> Scale:
    return Scale(low=min(values) / _ROOM, high=max(values) * _ROOM, start=start, end=end, log=True)


def _draw_roofs(plot: Plot, read: Spread, peaks: Peaks, x: Scale, y: Scale) -> None:
    """The band of each roofline with its middle dashed; the peaks by name at their right ends."""
    xs = [x.low * (x.high / x.low) ** (n / _STEPS) for n in range(_STEPS + 1)]
    slope_only = Spread(low=float("inf"), mid=float("inf"), high=float("inf"))
    for peak in peaks.values() or [slope_only]:
        lows = [(x(at), y(min(read.low * at, peak.low) / 1e12)) for at in xs]
        highs = [(x(at), y(min(read.high * at, peak.high) / 1e12)) for at in xs]
        plot.area("roofs", [*highs, *reversed(lows)])
        inside = [at for at in xs if min(read.mid * at, peak.mid) / 1e12 >= y.low]
        plot.lines("roof", [[(x(at), y(min(read.mid * at, peak.mid) / 1e12)) for at in inside]])
    for (isa, dtype), peak in peaks.items():
        if peak.mid / read.mid < x.high:
            plot.text("roof-name", (WIDE, y(peak.mid / 1e12) - 5), f"{isa} {dtype} {number(peak.mid / 1e12, 2)}", "end")
    seen = [at for at in xs if y.low <= read.mid * at / 1e12 <= y.high]
    if seen:
        at = seen[len(seen) // 2]
        name = f"read {number(read.mid / 1e9, 2)} GB/s"
        plot.text("roof-name", (x(at) - 8, y(read.mid * at / 1e12) - 6), name, "end")
