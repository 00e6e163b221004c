"""What shares say in words: what each feature is worth, which gain together and which lose together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ktbench.report.attribution_table import context_text, group_name, settings_shown
from ktbench.report.html.words import Finding, Said
from ktbench.report.text import percent, ratio
from ktbench.results.attribution import Attribution, FeaturePair
from ktbench.spec.record import Provenance


def findings_of_shares(attributions: Sequence[Attribution]) -> tuple[Finding, ...]:
    """Findings about the shares of groups; headings without a sentence are left out."""
    found = (
        Finding(kind="same", heading="Whose the speed-up is", said=tuple(_shares(attributions))),
        Finding(kind="faster", heading="Gain together, beyond noise", said=_together(attributions, _gains)),
        Finding(kind="slower", heading="Lose together, beyond noise", said=_together(attributions, _loses)),
        Finding(kind="absent", heading="Without shares, and why", said=tuple(_absent(attributions))),
    )
    return tuple(finding for finding in found if finding.said)


def _shares(attributions: Sequence[Attribution]) -> Iterator[Said]:
    settings = settings_shown(attributions)
    for one in attributions:
        for share in one.shares:
            if share.factor is not None:
                of = f", {percent(share.part)} % of the log speed-up" if share.part else ""
                yield _said(one, share.feature, f"×{ratio(share.factor)}{of}", settings)
            elif share.last is not None:
                yield _said(one, share.feature, f"×{ratio(share.last)} beside all others", settings)


def _together(attributions: Sequence[Attribution], held: Callable[[FeaturePair], bool]) -> tuple[Said, ...]:
    settings = settings_shown(attributions)
    return tuple(
        _said(one, f"{pair.one} with {pair.other}", f"×{ratio(pair.factor)} at {context_text(one, pair)}", settings)
        for one in attributions
        for pair in one.pairs
        if pair.factor is not None and held(pair)
    )


def _gains(pair: FeaturePair) -> bool:
    return pair.is_sure and pair.factor is not None and pair.factor.mid > 1


def _loses(pair: FeaturePair) -> bool:
    return pair.is_sure and pair.factor is not None and pair.factor.mid < 1


def _absent(attributions: Sequence[Attribution]) -> Iterator[Said]:
    settings = settings_shown(attributions)
    for one in attributions:
        if one.why:
            yield Said(subject=group_name(one, settings) or "all", text=one.why)
        yield from (Said(subject=_placed(feature, one, settings), text=why) for feature, why in one.aside.items())


def _said(one: Attribution, subject: str, text: str, settings: Sequence[str]) -> Said:
    provenance: Provenance = "simulated" if one.simulated else "measured"
    return Said(subject=_placed(subject, one, settings), text=text, provenance=provenance)


def _placed(subject: str, one: Attribution, settings: Sequence[str]) -> str:
    return ", ".join(filter(None, (subject, group_name(one, settings))))
