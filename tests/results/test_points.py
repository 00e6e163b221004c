"""What the plan keeps together and what the report compares are the same cells, in every ablation that is shipped."""

from __future__ import annotations

import json

import pytest

from ktbench.config import compose, freeze
from ktbench.config.compose import ablation_names
from ktbench.resources import data_folder
from ktbench.results.settings import precision_word, settings_of
from ktbench.spec.cells import plan_cells, points_of
from ktbench.spec.record import Cell

SHIPPED = {"evals/nano": json.loads((data_folder("evals") / "nano" / "config.json").read_text())}


def compared(cells: list[Cell]) -> list[list[str]]:
    """Keys of the cells that the report puts into one group."""
    worded = {cell.part for cell in cells if precision_word(cell.label)}
    groups: dict[tuple[object, ...], list[str]] = {}
    for cell in cells:
        settings = settings_of(cell.spec)
        kept = [item for item in settings.items() if cell.part not in worded or item[0] != "precision"]
        groups.setdefault((cell.part, *kept), []).append(cell.key)
    return list(groups.values())


@pytest.mark.parametrize("ablation", ablation_names())
def test_the_points_of_a_plan_are_the_groups_of_its_report(ablation: str) -> None:
    parts = freeze(compose([f"+ablation={ablation}"]), SHIPPED).parts
    cells = [cell for part in parts for cell in plan_cells(part.spec, part.sweep, part.name)]
    assert [[cell.key for cell in point] for point in points_of(cells)] == compared(cells)
