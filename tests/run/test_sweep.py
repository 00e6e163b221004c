"""Sweeps over real worker processes that serve a scripted system."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from ktbench.results import Log, Run, read_run
from ktbench.run.messages import RecordIds
from ktbench.run.sweep import Sweep
from ktbench.spec.cells import turn_order
from ktbench.spec.record import Cell, Environment, Header, Outcome, Part, Record
from tests.tiny import tiny_cell

ROOT = Path(__file__).parents[2]
BASE, FUSED, DYNAMIC = tiny_cell("base"), tiny_cell("+v", avx512=True), tiny_cell("+v+d", avx512=True, dynamic=True)
CELLS = (BASE, FUSED, DYNAMIC)


@pytest.fixture
def run_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded_children: None) -> Callable[..., Run]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def sweep_once(
        scripts: dict[str, str] | None = None,
        rounds: int = 2,
        cells: tuple[Cell, ...] = CELLS,
        on_record: Callable[[Record], None] = lambda record: None,
        free_bytes: int = 0,
        blocks: tuple[tuple[Cell, ...], ...] | None = None,
    ) -> Run:
        fresh = not (tmp_path / "log.jsonl").exists()
        log = Log(tmp_path)
        if fresh:
            log.append(header(cells))
        log.append(Environment(env_id="env", code_id="code"))
        command = (sys.executable, str(Path(__file__).parent / "fake_worker.py"), json.dumps(scripts or {}))
        sweep = Sweep(
            cells=cells, log=log, folder=tmp_path, ids=RecordIds(code_id="code", env_id="env"), command=command,
            kept=read_run(tmp_path).latest(), on_record=on_record,
            worker_bytes={cell.weights_key: 1 for cell in cells} if free_bytes else {}, free_bytes=free_bytes,
        )  # fmt: skip
        try:
            for block in blocks or (None,):
                list(islice(sweep.rounds(block), rounds))
        finally:
            sweep.close()
            log.close()
        return read_run(tmp_path)

    return sweep_once


def header(cells: tuple[Cell, ...]) -> Header:
    return Header(
        run="test", title="test", ablation="test", created="", command=("test",), cells=cells,
        parts=tuple(Part(name=name, title="test", baseline="base") for name in dict.fromkeys(c.part for c in cells)),
        measure=BASE.spec.measure, code_id="code", env_id="env",
    )  # fmt: skip


def outcomes(run: Run) -> dict[str, list[Outcome]]:
    return {cell.label: [record.outcome for record in run.of_cell(cell.key)] for cell in run.header.cells}


def order_of(number: int) -> list[str]:
    return [cell.label for cell in turn_order(CELLS, number)]


def test_cells_take_turns_in_the_drawn_order_of_each_round(run_sweep: Callable[..., Run]) -> None:
    run = run_sweep(rounds=3)
    assert [record.label for record in run.records] == [label for number in range(3) for label in order_of(number)]
    assert len({record.worker_session for record in run.records}) == 1


@pytest.mark.parametrize(
    ("script", "outcome", "why"),
    [
        ("crash", Outcome.CRASHED, "ended by SIGSEGV"),
        ("raise", Outcome.CRASHED, "RuntimeError: the fake engine broke"),
        ("hang", Outcome.TIMEOUT, "the trial took more than 1 s"),
        ("no_memory", Outcome.NO_MEMORY, "could not allocate 1 PiB"),
        ("zeros", Outcome.WRONG, "relative error"),
        ("lie", Outcome.IDLE, "requested on"),
    ],
)
def test_a_bad_cell_costs_itself_only(run_sweep: Callable[..., Run], script: str, outcome: Outcome, why: str) -> None:
    bad = tiny_cell("+v", avx512=True, measure={"turn_timeout_s": 1.0})
    run = run_sweep({"+v": script}, cells=(BASE, bad, DYNAMIC))
    assert outcomes(run) == {"base": [Outcome.OK] * 2, "+v": [outcome], "+v+d": [Outcome.OK] * 2}
    assert why in run.of_cell(bad.key)[0].why


PEER = tiny_cell("llama.cpp", system="llama.cpp", measure={"turn_timeout_s": 1.0})


@pytest.mark.parametrize(
    ("script", "outcome", "why"),
    [
        ("crash", Outcome.CRASHED, "ended by SIGSEGV"),
        ("hang", Outcome.TIMEOUT, "the trial took more than 1 s"),
        ("unsupported", Outcome.UNSUPPORTED, "no such feature"),
        ("other weights", Outcome.WRONG, "its logits are not those of base: KL"),
    ],
)
def test_a_bad_peer_costs_its_own_rows_only(
    run_sweep: Callable[..., Run], script: str, outcome: Outcome, why: str
) -> None:
    run = run_sweep({"llama.cpp": script}, cells=(PEER, BASE, FUSED))
    found = outcomes(run)
    assert found.pop("llama.cpp")[-1] is outcome
    assert found == {"base": [Outcome.OK] * 2, "+v": [Outcome.OK] * 2}
    assert why in run.of_cell(PEER.key)[-1].why


def test_systems_are_held_against_each_other_and_one_alone_against_nobody(run_sweep: Callable[..., Run]) -> None:
    run = run_sweep(cells=(PEER, BASE, FUSED))
    against = {record.label: record.agreement and record.agreement.against for record in run.records}
    assert against == {"llama.cpp": "base", "base": "", "+v": "base"}
    assert [path.parent.name for path in run.folder.rglob("*.npz")] == ["logits"]


def test_our_own_arms_alone_compare_no_logits(run_sweep: Callable[..., Run]) -> None:
    assert {record.agreement for record in run_sweep().records} == {None}


def test_drift_is_kept_as_it_was_seen(run_sweep: Callable[..., Run]) -> None:
    run = run_sweep({"+v": "drift"}, rounds=4)
    first, *_, last = (record.samples_s for record in run.of_cell(FUSED.key))
    assert sum(last) > sum(first)


def test_killed_child_is_measured_again_on_resume_and_nothing_twice(run_sweep: Callable[..., Run]) -> None:
    killed: list[int] = []

    def kill_child_once(record: Record) -> None:
        if not killed:
            killed.extend(children())
            os.kill(killed[0], signal.SIGKILL)

    run = run_sweep(on_record=kill_child_once)
    assert outcomes(run)[order_of(0)[1]] == [Outcome.CRASHED]
    before = len(run.records)
    resumed = run_sweep()
    assert outcomes(resumed) == {cell.label: [Outcome.OK] * 2 for cell in CELLS}
    assert len(resumed.records) == before + 2
    assert len(run_sweep().records) == before + 2


def test_killed_parent_loses_nothing_and_leaves_no_child(run_sweep: Callable[..., Run], tmp_path: Path) -> None:
    parent = os.fork()
    if parent == 0:
        run_sweep({order_of(0)[2]: "hang"}, on_record=lambda record: None)
        os._exit(0)
    kept = wait_for_records(tmp_path, 2)
    worker = next(children(parent))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until_gone(worker)
    with (tmp_path / "log.jsonl").open("ab") as log:
        log.write(b'{"schema":1,"kind":"rec')
    run = run_sweep()
    assert run.records[:kept] == read_run(tmp_path).records[:kept]
    assert outcomes(run) == {cell.label: [Outcome.OK] * 2 for cell in CELLS}
    assert len(run.records) == 2 * len(CELLS)


TWO_PARTS = (
    tiny_cell("+v", part="one", avx512=True),
    tiny_cell("+v int8", part="one", avx512=True, precision="int8"),
    tiny_cell("+v int4_g32", part="two", avx512=True, precision="int4_g32"),
)


def sittings(run: Run) -> dict[str, int]:
    return {cell.label: len({record.worker_session for record in run.of_cell(cell.key)}) for cell in run.header.cells}


def test_workers_stay_where_there_is_room_for_all(run_sweep: Callable[..., Run]) -> None:
    assert sittings(run_sweep(rounds=4, cells=TWO_PARTS, free_bytes=3)) == {"+v": 1, "+v int8": 1, "+v int4_g32": 1}


def test_workers_of_a_block_that_is_done_make_room_for_those_of_the_next(run_sweep: Callable[..., Run]) -> None:
    on_record: list[int] = []
    run = run_sweep(
        rounds=2,
        cells=TWO_PARTS,
        free_bytes=2,
        blocks=(TWO_PARTS[:2], TWO_PARTS[2:]),
        on_record=lambda record: on_record.append(len(list(children()))),
    )
    assert sittings(run) == {"+v": 1, "+v int8": 1, "+v int4_g32": 1}
    labels = [record.label for record in run.records]
    assert sorted(labels[:4]) == ["+v", "+v", "+v int8", "+v int8"] and labels[4:] == ["+v int4_g32"] * 2
    assert on_record == [1, 2, 2, 2, 2, 2]


def test_workers_of_the_cells_that_are_measured_stay(run_sweep: Callable[..., Run]) -> None:
    run = run_sweep(rounds=2, cells=TWO_PARTS[:2], free_bytes=1)
    assert sittings(run) == {"+v": 1, "+v int8": 1}


RELOADED = tuple(
    tiny_cell(cell.label, measure={"min_rounds": 4, "max_rounds": 6, "reload_blocks": 2}, **changes)
    for cell, changes in ((BASE, {}), (FUSED, {"avx512": True}))
)


def loads(run: Run) -> list[list[str]]:
    """The worker sessions of each round."""
    count = 1 + max(record.round for record in run.records)
    return [sorted({one.worker_session for one in run.records if one.round == number}) for number in range(count)]


def test_weights_are_loaded_anew_between_blocks(run_sweep: Callable[..., Run]) -> None:
    found = loads(run_sweep(rounds=6, cells=RELOADED))
    assert [len(one) for one in found] == [1] * 6
    assert found[0] == found[1] != found[2] == found[3] != found[4] == found[5]
    assert len({*map(tuple, found)}) == 3


def test_a_sweep_in_blocks_goes_on_where_it_was_ended(run_sweep: Callable[..., Run]) -> None:
    """Ended in the middle of a block: nothing is measured twice, and the next block is a load of its own."""
    before = run_sweep(rounds=3, cells=RELOADED)
    after = run_sweep(rounds=6, cells=RELOADED)
    found = loads(after)
    assert after.records[: len(before.records)] == before.records
    assert len(after.records) == 6 * len(RELOADED)
    assert len({*map(tuple, found)}) == 4 and found[3] != found[4] == found[5]


def test_a_worker_killed_in_a_block_is_replaced_in_it(run_sweep: Callable[..., Run]) -> None:
    killed: list[int] = []

    def kill_once(record: Record) -> None:
        if record.round == 2 and not killed:
            killed.extend(children())
            os.kill(killed[0], signal.SIGKILL)

    run_sweep(rounds=6, cells=RELOADED, on_record=kill_once)
    run = run_sweep(rounds=6, cells=RELOADED)
    timed = {(one.cell, one.round) for one in run.records if one.outcome.timed}
    assert timed == {(cell.key, number) for cell in RELOADED for number in range(6)}


def test_copies_have_workers_of_their_own(run_sweep: Callable[..., Run]) -> None:
    copies = tuple(replace(BASE, label=f"base (A/A {n + 1})", role="control", copy=n) for n in (1, 2))
    run = run_sweep(cells=(BASE, *copies))
    assert [len({one.worker_session for one in run.of_cell(cell.key)}) for cell in (BASE, *copies)] == [1, 1, 1]
    assert len({one.worker_session for one in run.records}) == 3


def children(parent: int | None = None) -> Iterator[int]:
    """Process ids of the workers of a process, of this one by default: children that lead their session."""
    pid = parent or os.getpid()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if os.getsid(child) == child:
                yield child


def wait_for_records(folder: Path, count: int) -> int:
    while not (folder / "log.jsonl").exists() or (folder / "log.jsonl").read_bytes().count(b'"kind":"record"') < count:
        signal.sigtimedwait([], 0.02)
    return count


def wait_until_gone(pid: int) -> None:
    for _ in range(250):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        signal.sigtimedwait([], 0.02)
    raise AssertionError(f"process {pid} outlived its parent")
