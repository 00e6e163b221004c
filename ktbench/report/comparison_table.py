"""A comparison as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.accuracy.text import change_text, flips_text, p_text
from ktbench.report.comparison_text import conditions, summary, warnings
from ktbench.report.markdown import grid, listed
from ktbench.report.text import DASH, interval, ratio
from ktbench.results.comparison import ComparedAnswers, ComparedCell, Comparison
from ktbench.results.row import Row

_CELLS = (
    ("cell", False),
    ("A (ms/step)", True),
    ("B (ms/step)", True),
    ("B over A", True),
    ("verdict", False),
    ("roof, B over A", True),
    ("turns A, B", True),
    ("provenance", False),
)
_ANSWERS = (
    ("cell", False),
    ("subject", False),
    ("questions", True),
    ("A (%)", True),
    ("B - A (points)", True),
    ("flips", True),
    ("p", True),
    ("verdict", False),
)


def comparison_markdown(comparison: Comparison) -> str:
    """Title, cells, controls, answers, what stands in one run alone, reasons, warnings and conditions."""
    title = f"# {comparison.after.folder.name} (B) compared with {comparison.before.folder.name} (A)"
    return "\n".join([title, "", *_lines(comparison)]).rstrip() + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    arms = [cell for cell in comparison.cells if not cell.is_control]
    controls = [cell for cell in comparison.cells if cell.is_control]
    if any(cell.before.records or cell.after.records for cell in arms):
        yield from (*_grid(_CELLS, [_cell(cell) for cell in arms]), "", f"{summary(comparison)}.", "")
    if controls:
        yield from ("The baseline a second time, which only noise tells from the baseline:", "")
        yield from (*_grid(_CELLS, [_cell(cell) for cell in controls]), "")
    if comparison.answers:
        yield from (*_grid(_ANSWERS, [_answers(one) for one in comparison.answers]), "")
    yield from listed("Only in A", comparison.only_before)
    yield from listed("Only in B", comparison.only_after)
    yield from listed("Why cells are empty or in doubt", _reasons(comparison))
    yield from listed("Warnings", [*warnings(comparison)])
    yield from listed("Conditions", [*conditions(comparison)])


def _grid(columns: Sequence[tuple[str, bool]], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    escaped = [[text.replace("|", "\\|") for text in line] for line in lines]
    return grid([[heading for heading, _ in columns], *escaped], [numeric for _, numeric in columns])


def _cell(cell: ComparedCell) -> tuple[str, ...]:
    held = cell.held
    return (
        cell.name,
        _time(cell.before),
        _time(cell.after),
        ratio(held.speedup) if held and held.speedup else DASH,
        f"{cell.verdict}{' (machine too)' if cell.machine_too else ''}" if held else DASH,
        f"{cell.roof.ratio:.2f} ({cell.roof.limit})" if cell.roof else DASH,
        f"{held.turns[0]}, {held.turns[1]}" if held else DASH,
        " / ".join(dict.fromkeys(row.provenance for row in (cell.before, cell.after) if row.provenance)) or DASH,
    )


def _time(row: Row) -> str:
    """Without a time the outcome stands in its place."""
    return interval(row.step_s, 1e3) if row.step_s else str(row.outcome or "not measured")


def _answers(one: ComparedAnswers) -> tuple[str, ...]:
    change = one.change
    return (
        one.name,
        one.subject,
        str(one.questions),
        f"{100 * change.base:.1f}" if change else DASH,
        change_text(change.difference if change else None),
        flips_text(change),
        p_text(change),
        change.verdict if change else DASH,
    )


def _reasons(comparison: Comparison) -> list[str]:
    """One sentence for each reason, naming all cells that it holds for."""
    said = [(cell.why, cell.name) for cell in comparison.cells if cell.before.records or cell.after.records]
    said += [(one.why, f"{one.name}, {one.subject}") for one in comparison.answers]
    holders: dict[str, list[str]] = {}
    for why, name in said:
        if why:
            holders.setdefault(why, []).append(name)
    return [f"{'; '.join(names)} — {why}" for why, names in holders.items()]
