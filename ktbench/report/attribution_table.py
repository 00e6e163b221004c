"""The table of attributions: a line for each feature and one for all, and what features gain or lose together."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from ktbench.report.conditions import conditions_of, headline
from ktbench.report.data import csv_of, json_of_table
from ktbench.report.methods import methods_of
from ktbench.report.table import Column, Table, build_table, columns_for, notes_of, setting_columns
from ktbench.report.template import phrase, sentences
from ktbench.report.text import extremes
from ktbench.results import Run
from ktbench.results.attribution import Attribution, FeatureAttribution, FeaturePair
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.quantities.columns import cells_of_line, ends_of
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.text import DASH, dashed, pairs_text, percent, ratio
from ktbench.results.row import Row
from ktbench.results.run import the_part
from ktbench.results.settings import shown_setting, varying
from ktbench.spec.wire import to_plain


def settings_shown(attributions: Sequence[Attribution]) -> tuple[str, ...]:
    """Settings that tell the groups apart."""
    return tuple(varying([one.settings for one in attributions]))


def group_name(one: Attribution, settings: Sequence[str]) -> str:
    """`batch 4, model deepseek_v3`; empty where there is one group."""
    return ", ".join(f"{key.rpartition('.')[2]} {shown_setting(key, one.settings.get(key))}" for key in settings)


def context_text(one: Attribution, pair: FeaturePair) -> str:
    """What both features of a pair were added to: `base`, `+v`."""
    letters = "".join(name for name in pair.context if name.startswith("+"))
    numbers = (name for name in pair.context if not name.startswith("+"))
    return " ".join(filter(None, [letters, *numbers])) or one.baseline


def absences(one: Attribution, settings: Sequence[str]) -> tuple[str, ...]:
    """Why there are no shares, and which features and cells are not in them."""
    return sentences("attribution_notes.txt.j2", one=one, group=group_name(one, settings), notes=None)


def attribution_notes(one: Attribution, settings: Sequence[str]) -> tuple[str, ...]:
    """What has no share, then why cells of columns that show anything are empty, each reason once."""
    pairs = [pair for pair in one.pairs if pair.factor is None] if any(pair.is_measured for pair in one.pairs) else []
    reasons = ((f"{pair.one} with {pair.other}", f"no interaction: {pair.why}") for pair in pairs)
    notes = notes_of([*_gaps(one), *reasons])
    return sentences("attribution_notes.txt.j2", one=one, group=group_name(one, settings), notes=notes)


def _gaps(one: Attribution) -> Iterator[tuple[str, str]]:
    names = {"part": "share in %", "first": "value added first", "last": "value added last"}
    shown = {name for share in one.shares for name in ("first", "last") if share.missing.get(name) is None}
    for share in one.shares:
        for name, why in share.missing.items():
            if name in shown or (name == "part" and share.factor):
                yield share.feature, f"no {names[name]}: {why}"


def attribution_methods(run: Run, attributions: Sequence[Attribution]) -> tuple[str, ...]:
    """How what the table shows was formed."""
    return sentences(
        "attribution_methods.txt.j2",
        orders=sorted({one.orders for one in attributions if one.orders}),
        unordered=any(not one.orders and one.shares for one in attributions),
        pairs=any(pair.factor for one in attributions for pair in one.pairs),
        measured=any(not one.simulated for one in attributions),
        rounds=_rounds(attributions, run.header.measure.unit),
    )


def _rounds(attributions: Sequence[Attribution], unit: str) -> str:
    """How many rounds, or blocks of them, the shares are formed in; those of the total where there are no shares."""
    found = [share.factor or share.last for one in attributions for share in one.shares if not one.simulated]
    values = [value for value in found if value]
    counts = extremes(value.n for value in values)
    few = "" if all(value.sound for value in values) else ", too few for an interval of 95%,"
    return f"{' to '.join(map(str, counts))} {unit}{'' if counts == [1] else 's'}{few}".lstrip()


def attribution_caption(run: Run, attributions: Sequence[Attribution]) -> str:
    """What the figure shows."""
    return phrase(
        "captions.txt.j2",
        "attribution",
        title=run.header.title,
        is_simulated=all(one.simulated for one in attributions),
        bars=dict.fromkeys(bars_text(one) for one in attributions if one.shares),
        has_matrix=the_part(run).figure == "interactions" and any(one.pairs for one in attributions),
    )


def bars_text(one: Attribution) -> str:
    """What the bars of a waterfall stand for."""
    return phrase("captions.txt.j2", "bars", one=one)


TOTAL = "all together"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttributionLine:
    """One line of the table: a feature of a group, or all of them where `share` is None."""

    of: Attribution
    share: FeatureAttribution | None = None

    @property
    def counted(self) -> Interval | None:
        """The factor whose rounds count; where a feature has none, that of adding it last."""
        return self.share.factor or self.share.last if self.share else self.of.total

    def pair(self, other: str) -> FeaturePair | None:
        """The interaction with another feature; None for itself and for all together."""
        names = {other, self.share.feature if self.share else other}
        return next((pair for pair in self.of.pairs if {pair.one, pair.other} == names), None)


def lines_of(attributions: Sequence[Attribution]) -> tuple[AttributionLine, ...]:
    """Lines of all groups in order."""
    shares = ((one, share) for one in attributions for share in (*one.shares, None))
    return tuple(AttributionLine(of=one, share=share) for one, share in shares)


def attribution_table(run: Run, rows: Sequence[Row], attributions: Sequence[Attribution]) -> Table:
    """The table of `attributions`, which are those of `rows`, the rows of a run of one part."""
    settings = settings_shown(attributions)
    return build_table(
        run,
        _columns(attributions, settings),
        lines_of(attributions),
        title=f"{run.header.title}: attribution of the speed-up",
        conditions=conditions_of(run, rows),
        methods=(*attribution_methods(run, attributions), *methods_of(run, rows)),
        notes=tuple(dict.fromkeys(note for one in attributions for note in attribution_notes(one, settings))),
        headline=headline(run, rows),
        figure_caption=attribution_caption(run, attributions),
        commands=(("all cells", shlex.join(run.header.command)),),
    )


def _columns(attributions: Sequence[Attribution], settings: Sequence[str]) -> Iterator[Column[AttributionLine]]:
    yield Column("feature", lambda line: line.share.feature if line.share else TOTAL, numeric=False)
    yield from setting_columns(settings, lambda line: line.of.settings)
    yield from columns_for(_LINE, lines_of(attributions))
    for feature in dict.fromkeys(feature for one in attributions for feature in one.features):
        yield Column(f"with {feature} (×)", _interaction(feature))


def _interaction(feature: str) -> Callable[[AttributionLine], str]:
    def write(line: AttributionLine) -> str:
        pair = line.pair(feature)
        if pair is None or pair.factor is None:
            return DASH
        return f"{ratio(pair.factor)}{f' at {context_text(line.of, pair)}' if pair.context else ''}"

    return write


def _percent(line: AttributionLine) -> str:
    if line.share is None:
        return "100" if line.of.orders and any(share.part for share in line.of.shares) else DASH
    return dashed(line.share.part, percent)


def _factor(line: AttributionLine) -> Interval | None:
    return line.share.factor if line.share else line.of.total


def _of_share(name: str) -> Callable[[AttributionLine], Any]:
    return lambda line: line.share and getattr(line.share, name)


# What files have of features alone, and of all together as well.
_feature = partial(Quantity, has=attrgetter("share"))
_LINE: tuple[Quantity[AttributionLine], ...] = (
    Quantity("kind", derive=lambda line: "share" if line.share else "total"),
    Quantity("feature", derive=lambda line: line.share.feature if line.share else line.of.whole),
    *(_feature(name, derive=lambda _: None) for name in ("other", "context")),
    Quantity("factor", "share (×)", derive=_factor, is_interval=True, show=ratio),
    Quantity("rounds", derive=lambda line: _rounds_of(line.counted)),
    _feature("part", "share of the log speed-up (%)", derive=_of_share("part"), is_interval=True, write=_percent),
    _feature("first", "added first (×)", derive=_of_share("first"), is_interval=True, show=ratio),
    _feature("last", "added last (×)", derive=_of_share("last"), is_interval=True, show=ratio),
    Quantity("missing", derive=lambda line: pairs_text(line.share.missing) if line.share else line.of.why),
)


def attribution_csv_text(run: Run, attributions: Sequence[Attribution]) -> str:
    """A line for each share, each pair and each total; empty where a value is missing, `missing` says why."""
    lines = [{**one.settings, **line, **_origin(run, one)} for one in attributions for line in _lines(one)]
    return csv_of(lines)


def _lines(one: Attribution) -> Iterator[dict[str, Any]]:
    yield from (cells_of_line(_LINE, line) for line in lines_of([one]))
    for pair in one.pairs:
        names = {"feature": pair.one, "other": pair.other, "context": " ".join(pair.context)}
        factor = {**ends_of("factor", pair.factor), "rounds": _rounds_of(pair.factor)}
        yield {"kind": "interaction", **names, **factor, "missing": pair.why}


def _rounds_of(value: Interval | None) -> int | None:
    """The rounds that a factor was formed in."""
    return None if value is None or is_exact(value) else value.n


def _origin(run: Run, one: Attribution) -> dict[str, Any]:
    return {
        "baseline": one.baseline,
        "orders": one.orders,
        "provenance": "simulated" if one.simulated else "measured",
        "run": run.header.run,
        "code_id": run.header.code_id,
        "env_id": None if one.simulated else run.header.env_id,
        "command": shlex.join(run.header.command),
    }


def attribution_json_text(run: Run, attributions: Sequence[Attribution], table: Table) -> str:
    """The texts of the table, and all fields of each group's shares and pairs."""
    return json_of_table(run, table, attributions=[to_plain(one) for one in attributions])
