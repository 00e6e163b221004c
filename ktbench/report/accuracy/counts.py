"""Answers over how many experts are deferred or skipped: rows and published lines by that number, and the averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.report.accuracy_table import settings_shown
from ktbench.results.accuracy import AccuracyRow
from ktbench.results.paper import PaperLine
from ktbench.results.row import groups_of
from ktbench.spec.arms import arm_features

FEATURES = {"deferral": "deferred", "skipping": "skipped"}
AVERAGE_NAME = "Average"

# Number of experts, change in percent, the ends of its interval or None.
SequelPoint = tuple[int, float, float | None, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequel:
    """Points in order of the number of experts; `ids` are of each the key of its cell, or the id of its number."""

    name: str
    feature: str
    points: tuple[SequelPoint, ...]
    ids: tuple[str, ...]
    published: bool = False


def groups_by_name(rows: Sequence[AccuracyRow]) -> dict[str, tuple[AccuracyRow, ...]]:
    """Rows that differ in their arms alone, by what the group is called: the model where there is one group."""
    settings, by_cell = settings_shown(rows), {row.row.cell: row for row in rows}
    found: dict[str, tuple[AccuracyRow, ...]] = {}
    for group in groups_of([row.row for row in rows]):
        words = [f"{key.rpartition('.')[2]} {group[0].settings.get(key)}" for key in settings]
        name = ", ".join(words) or f"{rows[0].provenance or 'here'} ({group[0].spec.model.name})"
        found[name] = tuple(by_cell[row.cell] for row in group)
    return found


def subject_title(name: str) -> str:
    """`Data analysis`."""
    return name.replace("_", " ").capitalize()


def count_of(line: PaperLine, feature: str) -> int:
    """How many experts the arm of a line defers or skips."""
    value = arm_features(line.arm)[feature]
    assert isinstance(value, int), f"{line.arm}: {feature}={value} is no number"
    return value


def rows_by_count(rows: Sequence[AccuracyRow], feature: str) -> dict[int, AccuracyRow]:
    """Rows by how many experts they defer or skip; those that do the other, or leave the number open, left out."""
    (other,) = FEATURES.keys() - {feature}
    found: dict[int, AccuracyRow] = {}
    for row in rows:
        count = row.row.features[feature]
        if not row.row.features[other] and isinstance(count, int):
            found.setdefault(count, row)
    return found


def sequels_of(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> list[Sequel]:
    """The change of the average over the number of experts, for each feature: of each group, and as published."""
    groups = groups_by_name(rows)
    ours = [
        _ours(group, feature, f", {name}" if len(groups) > 1 else "")
        for name, group in groups.items()
        for feature in FEATURES
    ]
    theirs = [_theirs(lines, feature) for feature in FEATURES] if lines else []
    return [sequel for sequel in (*ours, *theirs) if len(sequel.points) > 1]


def _ours(rows: Sequence[AccuracyRow], feature: str, suffix: str) -> Sequel:
    found: list[tuple[SequelPoint, str]] = []
    for count, row in sorted(rows_by_count(rows, feature).items()):
        result = row.result()
        if row.is_baseline:
            found.append(((count, 0.0, None, None), row.row.cell))
        elif result and result.change and result.change.relative:
            change = result.change.relative
            found.append(((count, 100 * change.mid, _percent(change.low), _percent(change.high)), row.row.cell))
    return _sequel(f"{feature}{suffix}", feature, found)


def _sequel(name: str, feature: str, found: Sequence[tuple[SequelPoint, str]], *, published: bool = False) -> Sequel:
    points, ids = tuple(point for point, _ in found), tuple(id_ for _, id_ in found)
    return Sequel(name=name, feature=feature, points=points, ids=ids, published=published)


def _percent(end: float | None) -> float | None:
    return None if end is None else 100 * end


def _theirs(lines: Sequence[PaperLine], feature: str) -> Sequel:
    (other,) = FEATURES.keys() - {feature}
    average = [line for line in lines if f" {AVERAGE_NAME}" in line.what and count_of(line, other) == 0]
    values = [
        (count_of(line, feature), line.published if line.metric == "relative %" else 0.0, line.id) for line in average
    ]
    kept: list[tuple[SequelPoint, str]] = sorted(
        ((count, value, None, None), id_) for count, value, id_ in values if value is not None
    )
    return _sequel(f"{feature}, published ({lines[0].model})", feature, kept, published=True)
