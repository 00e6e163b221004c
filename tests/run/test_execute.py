"""What a sweep does around its rounds: files for peers, minutes and rows of a block."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ktbench.run import execute
from ktbench.run.child import ChildFailed
from ktbench.run.request import CellPlan
from ktbench.spec.memory import MachineMemory
from ktbench.spec.record import Cell, Outcome
from ktbench.spec.run_spec import RunSpec
from tests.tiny import tiny_cell, tiny_spec

OURS = tiny_cell("base")
PEERS = tuple(
    tiny_cell("llama.cpp", system="llama.cpp", precision=precision, workload={"prompt": prompt})
    for precision in ("bf16", "q8_0")
    for prompt in (8, 9)
)


class Aside:
    """Stands for a sweep: what was set aside."""

    def __init__(self) -> None:
        self.cells: list[tuple[str, Outcome, str]] = []

    def set_aside(self, cell: Cell, outcome: Outcome, why: str) -> None:
        self.cells.append((cell.key, outcome, why))


def planned(*cells: Cell) -> CellPlan:
    return CellPlan(cells=cells, unsupported={}, needed_bytes=0, memory=MachineMemory())


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.NO_MEMORY])
def test_a_file_that_cannot_be_written_costs_the_cells_that_need_it_and_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    asked: list[str] = []

    def ensure(spec: RunSpec, say: Callable[[str], None]) -> None:
        asked.append(spec.precision)
        if spec.precision == "q8_0":
            raise ChildFailed(1, "the disk is full", outcome)

    monkeypatch.setattr(execute, "ensure_file", ensure)
    sweep = Aside()
    execute._write_files(sweep, planned(OURS, *PEERS))  # type: ignore[arg-type]
    why = "no GGUF file: the disk is full"
    assert sweep.cells == [(cell.key, outcome, why) for cell in PEERS[2:]]
    assert asked == ["bf16", "bf16", "q8_0"]


def test_minutes_go_to_blocks_by_their_cells() -> None:
    measure = tiny_spec().measure
    assert execute._part_of(measure, 4, 4) == measure
    assert execute._part_of(measure, 1, 4).max_minutes == measure.max_minutes / 4


def test_a_file_that_is_there_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.engine.gguf.export import kept_file
    from ktbench.run import export

    monkeypatch.chdir(tmp_path)
    path = kept_file(PEERS[0].spec).path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    monkeypatch.setattr(export, "run_subprocess", lambda *_: pytest.fail("was written again"))
    export.ensure_file(PEERS[0].spec, lambda line: None)
