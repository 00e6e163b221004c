"""The findings of a part in sentences: which arms gained, which lost, which did not differ or could not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ktbench.report.attribution_table import context_text, group_name, settings_shown
from ktbench.report.learning_table import difference_text, learned_name
from ktbench.report.learning_table import settings_shown as settings_of_arms
from ktbench.report.text import SURE_MARK, change_text, counted, score_interval_text, some, spread_text
from ktbench.results.accuracy import AccuracyRow
from ktbench.results.attribution import Attribution
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.quantities.text import number, percent, ratio
from ktbench.results.row import Row, groups_of, place
from ktbench.results.rows import equals_of
from ktbench.results.scores import ScoreVerdict
from ktbench.results.settings import group_by, varying
from ktbench.results.speedups import MARGIN, Verdict
from ktbench.results.training.learning import Learned
from ktbench.spec.record import Provenance


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A sentence about an arm, with where its numbers are from; None where it has none."""

    subject: str
    text: str
    provenance: Provenance | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingGroup:
    """Sentences below one heading. `kind` decides how it looks."""

    kind: str
    heading: str
    statements: tuple[Statement, ...]


def findings_of(rows: Sequence[Row]) -> tuple[FindingGroup, ...]:
    """Findings about speeds; headings without a sentence are left out."""
    # Measured and simulated rows of an arm are separate.
    arms = group_by(((row.shown, row.provenance), row) for row in rows if row.role == "arm" and not row.is_baseline)
    return _stated(
        ("faster", "What helped", _judged(arms, Verdict.FASTER)),
        ("slower", "What was slower", _judged(arms, Verdict.SLOWER)),
        ("same", "What made no difference", _judged(arms, Verdict.SAME)),
        ("unsure", "What is uncertain, and why", _judged(arms, Verdict.UNSURE)),
        ("absent", "What could not run, and why", _absent(rows)),
    )


def _stated(*found: tuple[str, str, Iterator[Statement]]) -> tuple[FindingGroup, ...]:
    """Findings of a kind, a heading and statements, without those that state nothing."""
    every = (FindingGroup(kind=kind, heading=heading, statements=tuple(each)) for kind, heading, each in found)
    return tuple(finding for finding in every if finding.statements)


def best_sentence(rows: Sequence[Row]) -> Statement | None:
    """The largest speed-up that is one, with the arms that may be as fast; None where nothing was faster."""
    row = best_row(rows)
    if row is None or row.speedup is None:
        return None
    groups = groups_of(rows)
    equals = (other.shown for other in equals_of(row, next(group for group in groups if row in group)))
    text = f"{_times(row.speedup)} the speed of {row.baseline}, {_speed(row)}"
    if names := " and ".join(dict.fromkeys(equals)):
        text = f"{text}; not to be told from {names}"
    settings = varying([group[0].settings for group in groups])
    return Statement(subject=place(row, settings), text=text, provenance=row.provenance)


def best_row(rows: Sequence[Row]) -> Row | None:
    """The arm with the largest speed-up that is one; None where nothing was faster."""
    faster = [row for row in rows if row.role == "arm" and row.verdict is Verdict.FASTER]
    return max(faster, key=lambda row: row.speedup.mid if row.speedup else 0.0, default=None)


def _judged(arms: dict[tuple[str, Provenance | None], list[Row]], verdict: Verdict) -> Iterator[Statement]:
    """A sentence for each arm that has the verdict anywhere."""
    for (name, provenance), rows in arms.items():
        compared = [(row, row.speedup) for row in rows if row.speedup is not None]
        mine = [(row, speedup) for row, speedup in compared if row.verdict is verdict]
        if len(mine) == 1 and len(compared) == 1:
            yield Statement(subject=name, text=_one(*mine[0]), provenance=provenance)
        elif mine:
            yield Statement(subject=name, text=_several(mine, len(compared)), provenance=provenance)


def _one(row: Row, speedup: Interval) -> str:
    doubt = f": {_doubt(speedup)}" if row.verdict is Verdict.UNSURE else ""
    return f"{_times(speedup)} the speed of {row.baseline} ({_speed(row)}){_gain(row)}{doubt}"


def _doubt(speedup: Interval) -> str:
    """Why an interval allows no verdict."""
    if not speedup.sound:
        return f"{counted(speedup.n, 'comparable round')} of the six that an interval needs"
    if speedup.low <= 1 <= speedup.high:
        return "within the noise"
    return f"the interval reaches into the ±{MARGIN:.0%} that count as equal"


def _several(found: Sequence[tuple[Row, Interval]], of: int) -> str:
    """How often, and from the least to the most, each with its interval."""
    ordered = sorted((speedup for _, speedup in found), key=lambda speedup: speedup.mid)
    where = f"at all {of} points" if len(found) == of else f"at {len(found)} of {of} points"
    ends = " to ".join(map(_times, dict.fromkeys((ordered[0], ordered[-1]))))
    unsure = (speedup for row, speedup in found if row.verdict is Verdict.UNSURE)
    doubts = "; ".join(dict.fromkeys(map(_doubt, unsure)))
    return f"{where}, {ends} the speed of {found[0][0].baseline}{f': {doubts}' if doubts else ''}"


def _times(value: Interval) -> str:
    """`2.98× [2.95, 3.02]`."""
    middle, _, ends = ratio(value).partition(" ")
    return f"{middle}×{'' if is_exact(value) else f' {ends}'}"


def _speed(row: Row) -> str:
    if row.is_layer and row.step_s is not None:
        return f"{number(row.step_s.mid * 1e3)} ms a layer"
    of = f" of {row.spec.model.depth}" if row.spec.model.is_slice else ""
    return "" if row.tokens_per_s is None else f"{number(row.tokens_per_s.mid)} tokens/s{of}"


def _gain(row: Row) -> str:
    """What the last feature alone adds, unless that is the whole of it."""
    gain = row.gain
    if gain is None or gain.over == row.baseline:
        return ""
    return f"; {_times(gain.ratio)} that of {gain.over}, {gain.verdict}"


def _absent(rows: Sequence[Row]) -> Iterator[Statement]:
    """For each reason the arms that have no speed; where it is some of their points, how many."""
    arms = [row for row in rows if row.role == "arm"]
    planned = Counter(row.shown for row in arms)
    holders = group_by(((str(row.outcome or "not measured"), row.why), row.shown) for row in arms if not row.timed)
    for (outcome, why), names in holders.items():
        listed = (
            name if n == planned[name] else f"{name} ({n} of {planned[name]})" for name, n in Counter(names).items()
        )
        yield Statement(subject=", ".join(listed), text=f"{outcome}: {why}")


def findings_of_shares(attributions: Sequence[Attribution]) -> tuple[FindingGroup, ...]:
    """Findings about the shares of groups; headings without a sentence are left out."""
    return _stated(
        ("same", "How the speed-up divides", _shares(attributions)),
        ("faster", "Gain together, beyond noise", _together(attributions, gain=True)),
        ("slower", "Lose together, beyond noise", _together(attributions, gain=False)),
        ("absent", "Without shares, and why", _absent_shares(attributions)),
    )


def _shares(attributions: Sequence[Attribution]) -> Iterator[Statement]:
    settings = settings_shown(attributions)
    for one in attributions:
        for share in one.shares:
            if share.factor is not None:
                of = f", {percent(share.part)} % of the log speed-up" if share.part else ""
                yield _statement(one, share.feature, f"×{ratio(share.factor)}{of}", settings)
            elif share.last is not None:
                yield _statement(one, share.feature, f"×{ratio(share.last)} beside all others", settings)


def _together(attributions: Sequence[Attribution], *, gain: bool) -> Iterator[Statement]:
    settings = settings_shown(attributions)
    for one in attributions:
        for pair in one.pairs:
            if pair.factor is not None and pair.is_sure and (pair.factor.mid > 1) is gain:
                text = f"×{ratio(pair.factor)} at {context_text(one, pair)}"
                yield _statement(one, f"{pair.one} with {pair.other}", text, settings)


def _absent_shares(attributions: Sequence[Attribution]) -> Iterator[Statement]:
    settings = settings_shown(attributions)
    for one in attributions:
        if one.why:
            yield Statement(subject=group_name(one, settings) or "all", text=one.why)
        yield from (Statement(subject=_placed(feature, one, settings), text=why) for feature, why in one.aside.items())


def _statement(one: Attribution, subject: str, text: str, settings: Sequence[str]) -> Statement:
    provenance: Provenance = "simulated" if one.simulated else "measured"
    return Statement(subject=_placed(subject, one, settings), text=text, provenance=provenance)


def _placed(subject: str, one: Attribution, settings: Sequence[str]) -> str:
    return ", ".join(filter(None, (subject, group_name(one, settings))))


def findings_of_answers(rows: Sequence[AccuracyRow]) -> tuple[FindingGroup, ...]:
    """Findings about the averages of cells; headings without a sentence are left out."""
    without = (Statement(subject=_name(row), text=f"{row.outcome or 'open'}: {row.why}") for row in rows if row.why)
    return _stated(
        ("same", "The baseline", _baselines(rows)),
        ("slower", "Lower scores, beyond noise", _changed(rows, ScoreVerdict.LOWER)),
        ("faster", "Higher scores, beyond noise", _changed(rows, ScoreVerdict.HIGHER)),
        ("unsure", "No difference shown", _changed(rows, ScoreVerdict.NONE_SHOWN)),
        ("absent", "Without a score, and why", without),
    )


def best_score(rows: Sequence[AccuracyRow]) -> tuple[AccuracyRow, str] | None:
    """The arm with the highest average score, and its interval and change in words; None where fewer than two have one.

    The first of those with the same score.
    """
    arms = ((row, row.result()) for row in rows if row.row.role == "arm")
    scored = [(row, result, result.score) for row, result in arms if result and result.score]
    if len(scored) < 2:
        return None
    row, result, score = max(scored, key=lambda one: one[2].mid)
    change = result.change and f"{change_text(result.change.difference)} points, {result.change.verdict}"
    words = [f"the highest average score, {score_interval_text(score)} %", change or result.missing["change"]]
    alike = [_name(other) for other, _, theirs in scored if other is not row and theirs.mid == score.mid]
    return row, "; ".join([*words, *([f"the same as {some([*dict.fromkeys(alike)])}"] if alike else [])])


def _baselines(rows: Sequence[AccuracyRow]) -> Iterator[Statement]:
    for row in rows:
        result = row.result()
        if row.is_baseline and result and result.score:
            text = f"average score {score_interval_text(result.score)}"
            yield Statement(subject=row.row.shown, text=text, provenance=row.provenance)


def _changed(rows: Sequence[AccuracyRow], verdict: ScoreVerdict) -> Iterator[Statement]:
    for row in rows:
        result = row.result()
        if result and result.change and result.change.verdict is verdict:
            text = f"{change_text(result.change.difference)} points"
            yield Statement(subject=_name(row), text=text, provenance=row.provenance)


def _name(row: AccuracyRow) -> str:
    """The arm, with the formats of experts and device role unless both are bf16."""
    spec = row.row.spec
    plain = spec.precision == spec.device_precision == "bf16"
    return row.row.shown if plain else f"{row.row.shown} ({spec.precision}/{spec.device_precision})"


def findings_of_learning(learned: Sequence[Learned]) -> tuple[FindingGroup, ...]:
    """Findings about the held-out losses of arms; headings without a sentence are left out."""
    settings = settings_of_arms(learned)
    without = (Statement(subject=learned_name(one, settings), text=one.why) for one in learned if one.why)
    return _stated(
        ("same", "The baseline", _taught(learned, baseline=True)),
        ("slower", "Other losses, beyond what seeds differ by", _taught(learned, apart=True)),
        ("unsure", "No difference shown", _taught(learned)),
        ("absent", "Without a training that ended well, and why", without),
    )


def _taught(learned: Sequence[Learned], *, baseline: bool = False, apart: bool = False) -> Iterator[Statement]:
    """What the held-out examples show of the arms; those `apart` differ from the baseline."""
    settings = settings_of_arms(learned)
    for one in learned:
        score = one.scores.get("held_out_loss")
        if score is None or one.is_baseline != baseline or score.is_apart != apart:
            continue
        beside = "" if baseline else f", {difference_text(score, 1.0).rstrip(SURE_MARK)} beside the baseline"
        exact = one.scores["exact"].after
        text = f"held-out loss {spread_text(score.after)}{beside}; exact {number(100 * exact.mid, 3)} %"
        yield Statement(subject=learned_name(one, settings), text=text, provenance="measured")
