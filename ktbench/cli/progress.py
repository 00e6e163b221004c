"""What a person sees on stderr while a sweep runs, and when it is enough."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from statistics import median

from ktbench.core.record import Cell, MeasureSpec, Record


class Progress:
    """Counts turns, minutes and rounds of the whole run, resumed sittings included."""

    def __init__(self, cells: Sequence[Cell], measure: MeasureSpec, earlier: Iterable[Record]) -> None:
        self.cells, self.measure = cells, measure
        self.records = list(earlier)
        self.round = 0

    def loading(self, cell: Cell) -> None:
        """A worker starts to load the weights of a cell."""
        shape = cell.spec.model.shape
        self._say(f"loading {cell.spec.model.name}, {shape.layers} layers, {shape.routed_params * 2 / 2**30:.1f} GiB of experts")

    def record(self, record: Record) -> None:
        """A turn ended."""
        self.records.append(record)
        speed = f"{median(record.samples_s) * 1e3:9.2f} ms/step" if record.samples_s else f"{record.outcome}: {record.why}"
        self._say(f"round {record.round + 1:2d}  {record.label:<12}  {speed}")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
