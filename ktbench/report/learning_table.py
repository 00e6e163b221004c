"""The table of what trainings learned: a line for each arm, over seeds, with the paired differences to the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from ktbench.report.conditions import conditions_of, headline
from ktbench.report.data import csv_of, json_of_table
from ktbench.report.health import controls_sentence
from ktbench.report.table import Column, Table, build_table, columns_for, columns_within, notes_of, setting_columns
from ktbench.report.template import phrase, sentences
from ktbench.report.text import SURE_MARK, extremes, spread_text
from ktbench.results import Run
from ktbench.results.quantities.columns import cells_of_line
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.text import DASH, number
from ktbench.results.row import Row
from ktbench.results.run import the_part
from ktbench.results.scores import Estimate
from ktbench.results.settings import setting_text, varying
from ktbench.results.training.learning import METRICS, Learned, Metric, Score, seeds_of, values_of
from ktbench.spec.wire import to_plain

_DIGITS = 3


def settings_shown(learned: Sequence[Learned]) -> tuple[str, ...]:
    """Settings that tell lines of one arm apart."""
    return tuple(varying([one.settings for one in learned]))


def learned_name(one: Learned, settings: Sequence[str]) -> str:
    """`+v+d int8, adapters both`."""
    return ", ".join([one.shown, *(f"{k.rpartition('.')[2]} {setting_text(one.settings.get(k))}" for k in settings)])


def learning_table(run: Run, rows: Sequence[Row], learned: Sequence[Learned]) -> Table:
    """The table of `learned`, which is what `rows` learned, the rows of a run of one part."""
    settings = settings_shown(learned)
    return build_table(
        run,
        learning_columns(settings),
        learned,
        conditions=[one for one in conditions_of(run, rows) if one != controls_sentence(rows)],  # that is of times
        methods=sentences("learning_methods.txt.j2", base=the_part(run).baseline, held_out=_held_out(learned)),
        notes=notes_of((learned_name(one, settings), one.why) for one in learned if one.why),
        headline=headline(run, rows),
        figure_caption=learning_caption(run, learned),
        commands=tuple((learned_name(one, settings), one.rows[0].command) for one in learned),
    )


def learning_columns(settings: Sequence[str]) -> tuple[Column[Learned], ...]:
    """All columns, with one for each setting that varies beside the seed."""
    return (
        Column("arm", lambda one: one.shown, numeric=False, key=True),
        *setting_columns(settings, lambda one: one.settings, key=True),
        Column("seeds", lambda one: str(len(one.trainings) or DASH), movable=True),
        *(column for metric in METRICS for column in _columns_of(metric)),
    )


def _columns_of(metric: Metric) -> Iterator[Column[Learned]]:
    return columns_within(lambda one: one.scores.get(metric), columns_for(_QUANTITIES[metric], ()))


def difference_text(score: Score, scale: float) -> str:
    """`-0.012 [-0.030, +0.006]`, marked where it is beyond what seeds differ by."""
    if score.difference is None:
        return DASH
    mark = SURE_MARK if score.is_apart else ""
    return f"{_signed(score.difference, scale)}{mark}"


def _signed(value: Estimate, scale: float) -> str:
    """To the places that show so many digits of the largest of the three numbers."""
    ends = [value.mid] if value.low is None or value.high is None else [value.mid, value.low, value.high]
    largest = number(max(abs(end) for end in ends) * scale, _DIGITS)
    mid, *interval = (_with_sign(end * scale, len(largest.partition(".")[2])) for end in ends)
    return f"{mid} [{', '.join(interval)}]" if interval else mid


def _with_sign(value: float, places: int) -> str:
    """Nothing has none."""
    text = f"{value:+.{places}f}"
    return text if float(text) else text[1:]


def _values(name: str, scale: float = 1.0, unit: str = "", points: str = "") -> tuple[Quantity[Score], ...]:
    """What files and tables have of a metric: tables `scale` times as large, in `unit`, and differences in `points`."""
    shown, apart = partial(spread_text, scale=scale), partial(difference_text, scale=scale)
    return (
        Quantity("before", f"{name} before{unit}", scale=scale, digits=_DIGITS, is_movable=True),
        Quantity("value", name + unit, derive=attrgetter("after"), is_interval=True, show=shown, is_key=True),
        Quantity("difference", f"{name}, difference{points}", is_interval=True, write=apart, is_key=True),
        Quantity("paired", derive=lambda score: score.difference and score.difference.n),
        Quantity("apart", derive=attrgetter("is_apart")),
    )


_QUANTITIES: Mapping[Metric, tuple[Quantity[Score], ...]] = {
    "last_loss": _values("loss of the last step"),
    "held_out_loss": _values("held-out loss"),
    "exact": _values("exact", 100.0, " (%)", " (points)"),
}


def _held_out(learned: Sequence[Learned]) -> str:
    """How many examples were held out."""
    counts = (record.learning.after.examples for one in learned for record in one.trainings.values() if record.learning)
    return " or ".join(map(str, extremes(counts)))


def learning_caption(run: Run, learned: Sequence[Learned]) -> str:
    """What the figure shows."""
    return phrase(
        "captions.txt.j2",
        "learning",
        title=run.header.title,
        base=the_part(run).baseline,
        seeds=len([*seeds_of(learned)]),
        is_compared=any(one.apart for one in learned),
    )


def learning_csv_text(run: Run, learned: Sequence[Learned]) -> str:
    """For each arm and metric a line over all seeds, and one for each seed; empty where a value is missing."""
    return csv_of([line | _origin(run, one) for one in learned for line in _lines(one)])


def _lines(one: Learned) -> Iterator[dict[str, Any]]:
    names = {"label": one.shown, **one.settings}
    for metric, score in one.scores.items():
        of = {**names, "metric": metric}
        yield {**of, "seed": None, **cells_of_line(_QUANTITIES[metric], score)}
        for seed, value in values_of(metric, one.trainings).items():
            yield {**of, "seed": seed, "value": value}
    if not one.scores:
        yield {**names, "missing": one.why}


def _origin(run: Run, one: Learned) -> dict[str, Any]:
    facts = one.trainings.values()
    return {
        "provenance": "measured",
        "run": run.header.run,
        "code_id": " ".join(dict.fromkeys(fact.code_id for fact in facts)),
        "env_id": " ".join(dict.fromkeys(fact.env_id for fact in facts)),
        "command": one.rows[0].command,
    }


def learning_json_text(run: Run, learned: Sequence[Learned], table: Table) -> str:
    """The texts of the table, and of each arm its scores and its losses by step, all of them and over seeds."""
    return json_of_table(run, table, learned=[_plain(one) for one in learned])


def _plain(one: Learned) -> dict[str, Any]:
    return {
        "label": one.shown,
        "settings": dict(one.settings),
        "scores": {metric: to_plain(score) | {"apart": score.is_apart} for metric, score in one.scores.items()},
        "losses": to_plain(one.losses),
        "apart": to_plain(one.apart),
        "trainings": [
            {"seed": seed, "learning": to_plain(record.learning), "losses": record.parts and record.parts.losses}
            for seed, record in one.trainings.items()
        ],
        "missing": one.why,
    }
