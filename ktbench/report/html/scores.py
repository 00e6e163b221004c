"""What answers say in words: which arms lost, which gained, of which no difference was shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.html.words import Finding, Said
from ktbench.report.text import change_text, score_interval_text
from ktbench.results.accuracy import AccuracyRow
from ktbench.results.scores import ScoreVerdict


def findings_of_answers(rows: Sequence[AccuracyRow]) -> tuple[Finding, ...]:
    """Findings about the averages of cells; headings without a sentence are left out."""
    found = (
        Finding(kind="same", heading="The baseline", said=tuple(_baselines(rows))),
        Finding(kind="slower", heading="Lower scores, beyond noise", said=_changed(rows, ScoreVerdict.LOWER)),
        Finding(kind="faster", heading="Higher scores, beyond noise", said=_changed(rows, ScoreVerdict.HIGHER)),
        Finding(kind="unsure", heading="No difference shown", said=_changed(rows, ScoreVerdict.NONE_SHOWN)),
        Finding(kind="absent", heading="Without a score, and why", said=tuple(_absent(rows))),
    )
    return tuple(finding for finding in found if finding.said)


def _baselines(rows: Sequence[AccuracyRow]) -> Iterator[Said]:
    for row in rows:
        result = row.result()
        if row.is_baseline and result and result.score:
            text = f"average score {score_interval_text(result.score)}"
            yield Said(subject=row.row.shown, text=text, provenance=row.provenance)


def _changed(rows: Sequence[AccuracyRow], verdict: ScoreVerdict) -> tuple[Said, ...]:
    found = [(row, result.change) for row in rows if (result := row.result()) and result.change]
    return tuple(
        Said(subject=_name(row), text=f"{change_text(change.difference)} points", provenance=row.provenance)
        for row, change in found
        if change.verdict is verdict
    )


def _absent(rows: Sequence[AccuracyRow]) -> Iterator[Said]:
    for row in rows:
        if row.why:
            yield Said(subject=_name(row), text=f"{row.outcome or 'open'}: {row.why}")


def _name(row: AccuracyRow) -> str:
    spec = row.row.spec
    formats = (
        "" if spec.precision == spec.device_precision == "bf16" else f" ({spec.precision}/{spec.device_precision})"
    )
    return f"{row.row.shown}{formats}"
