"""The summary of a run in words: what helped, what did not, what could not run. Every sentence is made from rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ktbench.report.text import number, ratio
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.row import Row, groups_of, place
from ktbench.results.settings import varying
from ktbench.results.speedups import Verdict
from ktbench.spec.record import Provenance


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """A sentence about an arm, with where its numbers are from; None where it has none."""

    subject: str
    text: str
    provenance: Provenance | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Sentences below one heading. `kind` decides how it looks."""

    kind: str
    heading: str
    said: tuple[Said, ...]


def findings_of(rows: Sequence[Row]) -> tuple[Finding, ...]:
    """What the rows of a part say; headings without a sentence are left out."""
    arms = _by_arm([row for row in rows if row.role == "arm" and not row.is_baseline])
    found = (
        Finding(kind="faster", heading="What helped", said=_told(arms, Verdict.FASTER)),
        Finding(kind="slower", heading="What was slower", said=_told(arms, Verdict.SLOWER)),
        Finding(kind="same", heading="What made no difference", said=_told(arms, Verdict.SAME)),
        Finding(kind="unsure", heading="What could not be told from noise", said=_told(arms, Verdict.UNSURE)),
        Finding(kind="absent", heading="What could not run, and why", said=tuple(_absent(rows))),
    )
    return tuple(finding for finding in found if finding.said)


def best_sentence(rows: Sequence[Row]) -> Said | None:
    """The largest speed-up that is one; None where nothing was faster."""
    faster = [row for row in rows if row.role == "arm" and row.verdict is Verdict.FASTER]
    found = [(row, row.speedup) for row in faster if row.speedup is not None]
    if not found:
        return None
    row, speedup = max(found, key=lambda pair: pair[1].mid)
    text = f"{_times(speedup)} the speed of {row.baseline}, {_speed(row)}"
    settings = varying([group[0].settings for group in groups_of(rows)])
    return Said(subject=place(row, settings), text=text, provenance=row.provenance)


def _by_arm(rows: Sequence[Row]) -> dict[tuple[str, Provenance | None], list[Row]]:
    """Measured and simulated rows of an arm are apart."""
    found: dict[tuple[str, Provenance | None], list[Row]] = {}
    for row in rows:
        found.setdefault((row.shown, row.provenance), []).append(row)
    return found


def _told(arms: dict[tuple[str, Provenance | None], list[Row]], verdict: Verdict) -> tuple[Said, ...]:
    """A sentence for each arm that has the verdict anywhere."""
    said = []
    for (name, provenance), rows in arms.items():
        compared = [(row, row.speedup) for row in rows if row.speedup is not None]
        mine = [(row, speedup) for row, speedup in compared if row.verdict is verdict]
        if len(mine) == 1 and len(compared) == 1:
            said.append(Said(subject=name, text=_one(*mine[0]), provenance=provenance))
        elif mine:
            said.append(Said(subject=name, text=_several(mine, len(compared)), provenance=provenance))
    return tuple(said)


def _one(row: Row, speedup: Interval) -> str:
    return f"{_times(speedup)} the speed of {row.baseline} ({_speed(row)}){_gain(row)}"


def _several(found: Sequence[tuple[Row, Interval]], of: int) -> str:
    """How often, and from the least to the most, each with its interval."""
    ordered = sorted((speedup for _, speedup in found), key=lambda speedup: speedup.mid)
    where = f"at all {of} points" if len(found) == of else f"at {len(found)} of {of} points"
    if len(ordered) == 1:
        return f"{where}, {_times(ordered[0])} the speed of {found[0][0].baseline}"
    return f"{where}, {_times(ordered[0])} to {_times(ordered[-1])} the speed of {found[0][0].baseline}"


def _times(value: Interval) -> str:
    """`2.98× [2.95, 3.02]`."""
    middle, _, ends = ratio(value).partition(" ")
    return f"{middle}×{'' if is_exact(value) else f' {ends}'}"


def _speed(row: Row) -> str:
    if row.is_layer and row.step_s is not None:
        return f"{number(row.step_s.mid * 1e3)} ms a layer"
    return "" if row.tokens_per_s is None else f"{number(row.tokens_per_s.mid)} tokens/s"


def _gain(row: Row) -> str:
    """What the last feature alone adds, unless that is the whole of it."""
    gain = row.gain
    if gain is None or gain.over == row.baseline:
        return ""
    return f"; {_times(gain.ratio)} that of {gain.over}, {gain.verdict}"


def _absent(rows: Sequence[Row]) -> Iterator[Said]:
    """For each reason the arms that have no speed; where it is some of their points, how many."""
    planned: dict[str, int] = {}
    holders: dict[tuple[str, str], dict[str, int]] = {}
    for row in (row for row in rows if row.role == "arm"):
        planned[row.shown] = planned.get(row.shown, 0) + 1
        if not row.timed:
            names = holders.setdefault((str(row.outcome or "not measured"), row.why), {})
            names[row.shown] = names.get(row.shown, 0) + 1
    for (outcome, why), names in holders.items():
        listed = (name if n == planned[name] else f"{name} ({n} of {planned[name]})" for name, n in names.items())
        yield Said(subject=", ".join(listed), text=f"{outcome}: {why}")
