"""The parts of a run, each as a run of its own: whatever reports on a run reports on a part."""

from __future__ import annotations

from dataclasses import replace

from ktbench.results import Run
from ktbench.spec.record import Part


def parts_of(run: Run) -> tuple[Run, ...]:
    """Each part with its title, cells and records; a run whose only part has no name is itself."""
    parts = run.header.parts
    return (run,) if [part.name for part in parts] == [""] else tuple(_alone(run, part) for part in parts)


def the_part(run: Run) -> Part:
    """The part of a run that has one. Raises ValueError where it has several: take them from `parts_of`."""
    (part,) = run.header.parts
    return part


def _alone(run: Run, part: Part) -> Run:
    cells = tuple(cell for cell in run.header.cells if cell.part == part.name)
    keys = {cell.key for cell in cells}
    header = replace(run.header, title=part.title, parts=(part,), cells=cells)
    return replace(run, header=header, records=tuple(record for record in run.records if record.cell in keys))
