"""Whose the speed-up is: a waterfall of shares on an axis of factors, and what features gain or lose together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ktbench.report.attribution_bars import Bar, bars_of
from ktbench.report.attribution_table import bars_text, context_text, group_name, settings_shown
from ktbench.report.html.cards import Dealt
from ktbench.report.html.forest import Mark, forest
from ktbench.report.html.picture import Panel, Picture
from ktbench.report.html.plot import WIDE, Plot, Spot, fits, shortened
from ktbench.report.html.scale import Scale, tick_name
from ktbench.report.text import percent, ratio
from ktbench.results.attribution import Attribution, FeaturePair
from ktbench.results.intervals import is_exact

_PITCH, _TOP, _BAR = 42.0, 18.0, 14.0
_FILLS = {"base": "", "gain": "f3", "loss": "lost", "whole": "f6"}
_LEAST_SPAN = 1.1  # of an axis, so that equal cells do not look far apart


def shares_pictures(attributions: Sequence[Attribution], dealt: Dealt) -> Iterator[Picture]:
    """The waterfalls, and the pairs where any was measured; a panel for each group that has them."""
    settings = settings_shown(attributions)
    lines = iter(dealt.lines)
    cards = [[next(lines) for _ in (*one.shares, one)] for one in attributions]
    found = [
        Panel(
            plot=_waterfall(one, numbers),
            title=group_name(one, settings),
            x_name=f"speed-up over {one.baseline} (×), logarithmic",
        )
        for one, numbers in zip(attributions, cards, strict=True)
        if one.shares
    ]
    if found:
        caption, wide, roomy = _caption(attributions), len(found) == 1, not all(map(_is_narrow, attributions))
        yield Picture(title="Shares", caption=caption, panels=tuple(found), wide=wide, roomy=roomy)
    pairs = [_pairs(n, one, settings, dealt) for n, one in enumerate(attributions) if _known(one)]
    if pairs:
        caption = _pairs_caption(attributions)
        yield Picture(title="Interactions", caption=caption, panels=tuple(pairs), wide=len(pairs) == 1)


def _is_narrow(one: Attribution) -> bool:
    """Whether all names and numbers stand side by side in the narrowest panel."""
    return all(bar.end is None or fits(bar.name, _text(bar)) for bar in _bars(one))


def _caption(attributions: Sequence[Attribution]) -> str:
    what = "; ".join(dict.fromkeys(bars_text(one) for one in attributions if one.shares))
    if all(one.simulated for one in attributions):
        return f"{what[0].upper()}{what[1:]}, simulated: one step that is always the same, so there are no intervals."
    return f"{what[0].upper()}{what[1:]}; whiskers: interval of the values inside rounds, drawn where the step ends."


def _pairs_caption(attributions: Sequence[Attribution]) -> str:
    sure = "" if all(one.simulated for one in attributions) else " Dark: the interval does not hold 1."
    return (
        "By which factor the speed-up of two features together differs from the product of each alone, beside the "
        f"features that follow the word at; above 1 they gain together.{sure}"
    )


def _waterfall(one: Attribution, cards: Sequence[int]) -> Plot:
    bars = _bars(one)
    x = _log([end for bar in bars for end in (bar.bottom, bar.top)])
    plot = Plot(height=_PITCH * len(bars), label="shares; arrow keys go from one to the next", find="rows")
    strips = [(_PITCH * n + _TOP, _PITCH * (n + 1)) for n in range(len(bars))]
    for tick in x.ticks():
        plot.lines("grid", [[(x(tick), top), (x(tick), foot)] for top, foot in strips])
        plot.below(x(tick), tick_name(tick))
    plot.lines("reference", [[(x(1.0), top), (x(1.0), foot)] for top, foot in strips])
    for n, (bar, following) in enumerate(pairwise(bars)):
        if one.orders and bar.end is not None and following.end is not None:
            plot.lines("link", [[(x(bar.end), _PITCH * n + _TOP), (x(bar.end), _PITCH * (n + 1) + _TOP)]])
    for n, (bar, card) in enumerate(zip(bars, cards, strict=True)):
        _draw(plot, bar, n * _PITCH, x, card)
    return plot


def _log(ends: Sequence[float]) -> Scale:
    low, high = min(ends, default=1.0), max([*ends, _LEAST_SPAN])
    room = (high / min(low, 1.0)) ** 0.03
    return Scale(low=min(low, 1.0) / room, high=high * room, start=0.0, end=WIDE, log=True)


def _draw(plot: Plot, bar: Bar, y: float, x: Scale, card: int) -> None:
    top, middle = y + _TOP, y + _TOP + _BAR / 2
    plot.text("name", (0.0, y + _TOP - 5), bar.name)
    plot.spots.append(Spot(x=x(bar.end or bar.start), y=middle, card=card))
    if bar.end is None:
        plot.text("absent", (0.0, top + _BAR - 2), bar.text)
        return
    plot.text("value", (WIDE, y + _TOP - 5), _text(bar), "end")
    left, right = sorted((x(bar.start), x(bar.end)))
    plot.box(f"bar {_FILLS[bar.kind]}", (left, top), right - left, _BAR)
    if bar.whisker is not None:
        low, high, reach = x(bar.whisker.low), x(bar.whisker.high), _BAR / 3
        caps = [[(end, middle - reach), (end, middle + reach)] for end in (low, high)]
        plot.lines("whisker", [[(low, middle), (high, middle)], *caps])


def _bars(one: Attribution) -> list[Bar]:
    """Those of features and of the whole: the axis is read from the baseline."""
    return [_explained(bar, one) for bar in bars_of(one)[1:]]


def _explained(bar: Bar, one: Attribution) -> Bar:
    """A bar without an end with the reason."""
    share = next((share for share in one.shares if share.feature == bar.name), None)
    if share is None or bar.end is not None:
        return bar
    return replace(bar, text=shortened(share.missing["factor" if one.orders else "last"]))


def _text(bar: Bar) -> str:
    """`×2.13 [2.09, 2.15] · 63 [62, 65] %`."""
    assert bar.factor is not None
    return f"×{ratio(bar.factor)}{f' · {percent(bar.part)} %' if bar.part else ''}"


def _known(one: Attribution) -> list[FeaturePair]:
    return [pair for pair in one.pairs if pair.factor]


def _pairs(number: int, one: Attribution, settings: Sequence[str], dealt: Dealt) -> Panel:
    marks = [_mark(one, pair, dealt.finer[str(number), pair.one, pair.other]) for pair in _known(one)]
    x = _log([*(end for mark in marks for end in (mark.low, mark.high)), 1 / _LEAST_SPAN])
    plot = forest(marks, x, "interactions", 1.0)
    return Panel(plot=plot, title=group_name(one, settings), x_name="interaction (×), logarithmic")


def _mark(one: Attribution, pair: FeaturePair, card: int) -> Mark:
    assert pair.factor is not None
    low, mid, high = pair.factor.low, pair.factor.mid, pair.factor.high
    if is_exact(pair.factor):
        low, high = mid, mid
    look = "s1" if pair.is_sure or one.simulated else "s0"
    text = f"{ratio(pair.factor)} at {context_text(one, pair)}"
    return Mark(name=f"{pair.one} with {pair.other}", text=text, card=card, look=look, mid=mid, low=low, high=high)
