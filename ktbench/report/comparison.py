"""Two runs joined cell by cell: how many times as fast each cell is in the second, and whether that is a change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ktbench.report.comparison_answers import ComparedAnswers, compared_answers
from ktbench.report.comparison_join import joined, names_of
from ktbench.report.comparison_machine import RoofRatio, noise_by_cell, roof_ratio, widest
from ktbench.report.comparison_turns import Held, held, rounds_in_turns
from ktbench.results import Run
from ktbench.results.intervals import Interval
from ktbench.results.row import Row
from ktbench.results.rows import rows_of
from ktbench.results.scores import ScoreVerdict
from ktbench.results.speedups import Verdict, judge

TOLERANCE = 0.03
_MACHINE_TOO = "the machine's own roof moved the same way and as much: it may be all that changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedCell:
    """A cell of both runs. `held` is None where not both have timed it; `why` says so, or what to doubt.

    `roof` is what the machine itself did next to its turns.
    """

    name: str
    before: Row
    after: Row
    held: Held | None = None
    verdict: Verdict = Verdict.UNSURE
    roof: RoofRatio | None = None
    why: str = ""

    @property
    def is_control(self) -> bool:
        """Whether it is the baseline a second time, which shows noise and is no finding."""
        return self.after.role == "control"

    @property
    def machine_too(self) -> bool:
        """Whether the machine changed the same way as the cell and as much, so that it may be all that changed."""
        return self.why == _MACHINE_TOO


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Run `after` held against run `before`, with all rows of both. Cells of one run alone are there by name.

    `in_turns` says whether rounds of both were measured next to each other on a machine of both. A change within
    `tolerance` is none.
    """

    before: Run
    after: Run
    before_rows: tuple[Row, ...]
    after_rows: tuple[Row, ...]
    tolerance: float
    in_turns: bool
    cells: tuple[ComparedCell, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    answers: tuple[ComparedAnswers, ...]

    @property
    def is_worse(self) -> bool:
        """Whether any cell, controls apart, is slower, or scores lower on average."""
        lower = (
            one.change and one.change.verdict is ScoreVerdict.LOWER for one in self.answers if one.kind == "average"
        )
        return self.verdicts[Verdict.SLOWER] > 0 or any(lower)

    @property
    def verdicts(self) -> Counter[Verdict]:
        """How many of the cells that both runs have timed, controls apart, have which verdict."""
        return Counter(cell.verdict for cell in self.cells if cell.held and not cell.is_control)


def compare_runs(
    before: Run, after: Run, tolerance: float = TOLERANCE, *, different_machines: bool = False
) -> Comparison:
    """Join two runs by what was asked of each cell and compare what both have.

    A cell that no machine timed in both has a ratio where `different_machines` are meant.
    """
    there, here = rows_of(before), rows_of(after)
    pairs, names = joined(there, here), names_of([*there, *here])
    noise, noise_here = noise_by_cell(there), noise_by_cell(here)
    in_turns = rounds_in_turns(before, after) if before.measured_on() & after.measured_on() else frozenset()
    cells = []
    for one, other in pairs:
        differ = widest(noise.get(one.cell), noise_here.get(other.cell)) if one.role == "arm" else None
        cell = ComparedCell(name=names[one.cell], before=one, after=other)
        timed = one.timed and other.timed
        found = held(one, other, in_turns=in_turns, different_machines=different_machines) if timed else None
        cells.append(_compared(cell, found, differ, tolerance))
    joined_keys = {row.cell for pair in pairs for row in pair}
    return Comparison(
        before=before,
        after=after,
        before_rows=there,
        after_rows=here,
        tolerance=tolerance,
        in_turns=bool(in_turns),
        cells=tuple(cells),
        only_before=tuple(names[row.cell] for row in there if row.cell not in joined_keys),
        only_after=tuple(names[row.cell] for row in here if row.cell not in joined_keys),
        answers=tuple(compared_answers(before, after, pairs, names)),
    )


def _compared(cell: ComparedCell, found: Held | None, noise: Interval | None, tolerance: float) -> ComparedCell:
    if found is None:
        return replace(cell, why=_untimed(cell))
    verdict, roof = judge(found.speedup, noise, tolerance), roof_ratio(cell.before, cell.after)
    doubt = found.why or (_MACHINE_TOO if _moves_with_roof(found.speedup, verdict, roof, tolerance) else "")
    return replace(cell, held=found, verdict=verdict, roof=roof, why=doubt)


def _untimed(cell: ComparedCell) -> str:
    """How the cell ended where it has no time."""
    ends = {name: row for name, row in (("A", cell.before), ("B", cell.after)) if not row.timed}
    said = {name: f"{row.outcome or 'not measured'}: {row.why}" for name, row in ends.items()}
    if len(set(said.values())) == 1 and len(said) == 2:
        return f"in both {said['A']}"
    return "; ".join(f"in {name} {text}" for name, text in said.items())


def _moves_with_roof(speedup: Interval | None, verdict: Verdict, roof: RoofRatio | None, tolerance: float) -> bool:
    if speedup is None or roof is None or not roof.is_beyond(tolerance):
        return False
    slower = verdict is Verdict.SLOWER and roof.ratio <= speedup.high
    return slower or (verdict is Verdict.FASTER and roof.ratio >= speedup.low)
