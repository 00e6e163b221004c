"""Where the logits lie that systems with the same weights are held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ktbench.spec.record import Cell
from ktbench.spec.wire import digest, to_plain

FOLDER = "logits"


def logits_file(folder: Path, cell: Cell, cells: Sequence[Cell], code_id: str) -> Path | None:
    """The file below a run's folder for the cells with this one's weights and work; None where all are of one system.

    A layer alone has no logits: there every output is held against float32. What other code gave is no reference.
    """
    key = _key(cell)
    systems = {other.spec.system for other in cells if _key(other) == key}
    if len(systems) < 2 or cell.spec.workload.phase == "layer":
        return None
    return folder / FOLDER / f"{digest([code_id, key])}.npz"


def _key(cell: Cell) -> list[object]:
    spec = cell.spec
    return [to_plain(spec.model), to_plain(spec.workload), spec.precision, spec.device_precision]
