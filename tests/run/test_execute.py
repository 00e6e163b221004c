"""What a sweep does around its rounds: files for peers, minutes and rows of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.results import Log
from ktbench.run import execute
from ktbench.run.child import ChildFailed
from ktbench.run.messages import RecordIds, new_record
from ktbench.run.request import CellPlan
from ktbench.run.sweep import Sweep
from ktbench.spec.record import Cell, Outcome, Part, Record
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.memory import MachineMemory
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


class Minutes(Sweep):
    """A sweep whose trials take a minute each and measure nothing."""

    def _trial(self, cell: Cell, round_number: int) -> Record:
        ended = new_record(cell, round_number, self.ids, Outcome.UNSUPPORTED)
        return replace(ended, outcome=Outcome.OK, samples_s=(0.5,), took_s=60.0)


CELLS = (OURS, tiny_cell("+v", avx512=True), tiny_cell("+v+d", avx512=True, dynamic=True))


def measured(folder: Path, minutes: float, kept: Sequence[Record] = ()) -> list[Record]:
    """The new records of one block of cells in so many minutes."""
    log, found = Log(folder), list[Record]()
    sweep = Minutes(
        cells=CELLS, log=log, folder=folder, ids=RecordIds(code_id="c", env_id="e"), on_record=found.append,
        kept={(record.cell, record.round): record for record in kept},
    )  # fmt: skip
    measure = replace(OURS.spec.measure, min_rounds=2, max_rounds=2, max_minutes=minutes)
    parts = (Part(name="", title="t", baseline="base"),)
    execute._measure_block(sweep, CELLS, parts, measure, {cell.key: cell.label for cell in CELLS})
    log.close()
    return found


@pytest.mark.parametrize(("minutes", "trials"), [(0.5, 1), (2, 2), (3, 3), (4, 4), (9, 6)])
def test_minutes_end_a_round_before_all_cells_had_their_turn(tmp_path: Path, minutes: float, trials: int) -> None:
    assert len(measured(tmp_path / "run", minutes)) == trials


def test_what_a_round_that_was_cut_has_measured_is_kept_and_its_time_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = measured(tmp_path / "first", 2)
    assert "ceiling of 2 minutes" in capsys.readouterr().err
    assert measured(tmp_path / "again", 2, kept=first) == []
    rest = measured(tmp_path / "more", 9, kept=first)
    both = sorted((record.round, record.label) for record in (*first, *rest))
    assert both == sorted((number, cell.label) for number in (0, 1) for cell in CELLS)


def test_a_file_that_is_there_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.engine.gguf.export import kept_file
    from ktbench.run import export

    monkeypatch.chdir(tmp_path)
    path = kept_file(PEERS[0].spec).path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    monkeypatch.setattr(export, "run_subprocess", lambda *_: pytest.fail("was written again"))
    export.ensure_file(PEERS[0].spec, lambda line: None)
