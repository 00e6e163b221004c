"""What became of a fault: how often it was tried, what was said, and whether anything was lost or doubled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One row of the summary. `lost` and `doubled` count turns that were promised, None where the fault has none."""

    fault: str
    times: int
    happened: str
    message: str
    lost: int | None = 0
    doubled: int | None = 0

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and nothing doubled."""
        return not self.lost and not self.doubled


def summary(findings: Iterable[Finding]) -> str:
    """The findings as a table in Markdown."""
    rows = [("fault", "times", "what happened", "what was said", "lost", "doubled")]
    rows += [
        (one.fault, f"{one.times:,}", one.happened, one.message or "–", _count(one.lost), _count(one.doubled))
        for one in findings
    ]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|---:|---|---|---:|---:|", *lines[1:]])


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)
