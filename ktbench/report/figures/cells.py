"""The frame of cells that recipes draw from, and the curves through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from ktbench.report.conditions import arm_namer, ringed_outcome
from ktbench.report.figures.marks import ends
from ktbench.report.figures.sheet import Mark
from ktbench.report.text import not_drawn, setting_name
from ktbench.results.row import Row, groups_of
from ktbench.results.settings import TOKENS, group_by, shown_setting, varying, without_precision
from ktbench.spec.record import Outcome
from ktbench.spec.sweep import PRECISIONS
from ktbench.spec.weights import Precision

# Beside times and speeds, by the names that the CSV has for them.
_SHOWN = (
    "host_busy", "device_busy", "overlap", "output_per_s", "user_per_s",
    "ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s",
)  # fmt: skip


def cells_of(rows: Sequence[Row]) -> pd.DataFrame:
    """A row for each cell: its keys, what distinguishes it, and its values in SI units with the ends of intervals.

    `name` is how figures call the arm, `group` counts the rows with equal settings, `ring` is set where an outcome is
    shown by a ring, `why` says why there is no speed; `row` is the row of the run.
    """
    named, ringed = arm_namer(rows), ringed_outcome(rows)
    groups = {row.cell: n for n, group in enumerate(groups_of(rows)) for row in group}
    return pd.DataFrame(
        [_cell(row, groups[row.cell]) | {"name": named(row), "ring": _ring(row, ringed)} for row in rows]
    )


def _ring(row: Row, ringed: Outcome | None) -> Outcome | None:
    return ringed if row.outcome is ringed else None


def _cell(row: Row, group: int) -> dict[str, Any]:
    flops = row.work.flops / 1e12 if row.step_s and row.work else None
    return {
        "cell": row.cell,
        "mark": Mark(key=(row.cell,)),
        "role": row.role,
        "label": row.label,
        "group": group,
        "precision": row.spec.precision,
        "settings": row.settings,
        "spec": row.spec,
        "is_baseline": row.is_baseline,
        "timed": row.timed,
        "noisy": row.outcome is Outcome.NOISY,
        "why": _why(row),
        "row": row,
        **ends("step_s", row.step_s),
        **ends("tokens_per_s", row.tokens_per_s),
        **ends("speedup", row.speedup),
        **ends("tflops", row.step_s.per(flops) if row.step_s and flops is not None else None),
        **{key: value for name in _SHOWN for key, value in ends(name, row.interval(name)).items()},
    }


def _why(row: Row) -> str:
    """Why a row is not drawn."""
    return (
        "; ".join(dict.fromkeys(row.missing.values())) if row.timed else f"{row.outcome or 'not measured'}, {row.why}"
    )


def shown_as(cells: pd.DataFrame, quantity: str, factor: float = 1.0) -> pd.DataFrame:
    """The cells with a quantity as `y`, those without a value left out."""
    if quantity not in cells:
        return cells[:0].assign(y=[], y_low=[], y_high=[])
    columns = {f"y{end}": factor * cells[f"{quantity}{end}"].astype(float) for end in ("", "_low", "_high")}
    found = cells.assign(**columns)
    return found[found["y"].notna()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What `x` is: the setting `key`, with the name that stands below the panels."""

    key: str
    name: str

    def of(self, settings: Mapping[str, Any]) -> float:
        """The setting's value."""
        value = settings[self.key]
        assert isinstance(value, int | float), f"{self.key}={value} is no number to draw a curve over"
        return value


TOKENS_AXIS = Axis(key=TOKENS, name=TOKENS)


def axis_of(cells: pd.DataFrame) -> Axis:
    """The varying setting with the most numbers, the first of equals; the context where none varies."""
    groups = _settings(cells)
    counts = {key: len({settings.get(key) for settings in groups}) for key in varying(groups)}
    numeric = [key for key in counts if all(_is_number(settings.get(key)) for settings in groups)]
    key = max(numeric, key=lambda key: counts[key], default="workload.prompt")
    if key == "workload.prompt" and cells["spec"].iloc[0].workload.phase == "prefill":
        return Axis(key=key, name="tokens of the prompt")
    return Axis(key=key, name=setting_name(key))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _settings(cells: pd.DataFrame) -> list[Mapping[str, Any]]:
    """The settings of each group."""
    return list(cells.groupby("group", sort=False)["settings"].first())


def setting_words(cells: pd.DataFrame, keys: Sequence[str] | None = None) -> list[str]:
    """Of each group of cells the settings that tell it from the others, in words: `batch 4`."""
    groups = _settings(cells)
    chosen = varying(groups) if keys is None else keys
    return [", ".join(_words(key, settings.get(key)) for key in chosen) for settings in groups]


def _words(key: str, value: object) -> str:
    return shown_setting(key, value) if key in ("model", "machine") else f"{key.rpartition('.')[2]} {value}"


class Panel(NamedTuple):
    """The arms of one precision: their points, and their rows, drawn or not."""

    title: str
    precision: Precision
    points: pd.DataFrame
    rows: tuple[Row, ...]


class Curves:
    """Curves of arms over an axis, by precision.

    Their names have the arm, unless there is only one, and the settings that vary beside the axis. A precision that
    varies is named only where no panel names it, and so are settings that vary with it alone.
    """

    def __init__(self, cells: pd.DataFrame, axis: Axis = TOKENS_AXIS) -> None:
        self._arms, self.axis = cells[cells["role"] == "arm"], axis
        by_precision = dict(list(self._arms.groupby("precision", sort=False)))
        self._by_precision = [(one, by_precision[one]) for one in PRECISIONS if one in by_precision]
        keys = varying(_settings(cells))
        others = [key for key in keys if key not in (axis.key, "precision")]
        self._titled = [key for key in others if self._goes_with_the_precision(cells, key)]
        self._free = [key for key in others if key not in self._titled]
        arms = {row.shown for row in self._arms["row"]}
        self._worded, self._precise = len(arms) > 1 or not self._free, "precision" in keys

    @staticmethod
    def _goes_with_the_precision(cells: pd.DataFrame, key: str) -> bool:
        """Whether rows of one precision agree on a setting."""
        values = {(row.spec.precision, row.settings.get(key)) for row in cells["row"]}
        return len(values) == len({*cells["precision"]})

    def of(self, quantity: str, factor: float = 1.0) -> list[Panel]:
        """Panels with the points of all curves; those without one are left out, but never all.

        The baseline is a `reference` in panels of other precisions.
        """
        drawn = shown_as(self._arms, quantity, factor)
        drawn = drawn.assign(x=[self.axis.of(one) for one in drawn["settings"]], arm=drawn["name"], reference=False)
        drawn["name"] = [self._joined(without_precision(c.arm), self._free, c.settings) for c in drawn.itertuples()]
        drawn = drawn.sort_values("x", kind="stable")
        baseline = drawn[drawn["is_baseline"].astype(bool)].assign(reference=True)
        baseline["name"] = [f"{cell.name}, {cell.precision}" for cell in baseline.itertuples(index=False)]
        panels = []
        for precision, every in self._by_precision:
            own = self._in_order(drawn[drawn["precision"] == precision])
            others = baseline[:0] if every["is_baseline"].any() else baseline
            titled = [_words(key, every["settings"].iloc[0].get(key)) for key in self._titled]
            points = pd.concat([own, others]) if len(others) else own
            panels.append(Panel(", ".join([*titled, f"{precision} weights"]), precision, points, tuple(every["row"])))
        return [panel for panel in panels if not panel.points["reference"].all()] or panels[:1]

    def _in_order(self, points: pd.DataFrame) -> pd.DataFrame:
        """Curves in the order of the table."""
        places = {name: n for n, name in enumerate(dict.fromkeys(points.sort_index()["name"]))}
        return points.sort_values("name", key=lambda names: names.map(places), kind="stable")

    def absences(self, quantity: str) -> tuple[str, ...]:
        """For each reason the arms that are not drawn for it, with the places where others of theirs are drawn."""
        drawn = {*shown_as(self._arms, quantity)["cell"]}
        names = {cell.cell: self._whole(cell) for cell in self._arms.itertuples()}
        seen = {names[cell] for cell in drawn}
        missing = [cell for cell in self._arms.itertuples() if cell.cell not in drawn]
        holders = group_by((cell.why, (names[cell.cell], self.axis.of(cell.settings))) for cell in missing)
        return not_drawn(
            (f"{name} at {', '.join(f'{x:g}' for x in at)}" if name in seen else name, reason)
            for reason, held in holders.items()
            for name, at in group_by(held).items()
        )

    def _whole(self, cell: Any) -> str:
        name = self._joined(cell.name, [*self._titled, *self._free], cell.settings)
        return f"{name} in {cell.precision}" if self._precise else name

    def _joined(self, label: str, keys: Sequence[str], settings: Mapping[str, Any]) -> str:
        words = [_words(key, settings.get(key)) for key in keys]
        return ", ".join([label, *words] if self._worded else words)


def series_in(panels: Iterable[Panel]) -> list[str]:
    """Names of the curves of all panels in order of appearance, without references."""
    return list(dict.fromkeys(name for one in panels for name in one.points.loc[~one.points["reference"], "name"]))
