"""Sweeps cut into shares: nothing lost, nothing twice, and what is compared stays together."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.results import Run
from ktbench.run.cluster.shards import (
    cut,
    is_running,
    is_wanted,
    only,
    read_shard,
    shard_of,
    whole_rounds,
    withdraw,
    write_shard,
)
from ktbench.spec.cells import points_of
from ktbench.spec.record import Cell, Environment, Header, Outcome, Part, Record
from tests.tiny import tiny_cell

FEATURES = ({}, {"avx512": True}, {"avx512": True, "dynamic": True})
LABELS = ("base", "+v", "+v+d")


def cells_at(prompt: int, arms: int = 3, part: str = "") -> tuple[Cell, ...]:
    pairs = zip(LABELS, FEATURES[:arms], strict=False)
    return tuple(tiny_cell(label, part=part, workload={"prompt": prompt}, **on) for label, on in pairs)


POINTS = tuple(cells_at(8 + prompt, arms=1 + prompt % 3) for prompt in range(8))
BASE, FUSED, _ = cells_at(8)


def turn(cell: Cell, number: int, outcome: Outcome = Outcome.OK, env: str = "env") -> Record:
    return Record(
        cell=cell.key, label=cell.label, round=number, outcome=outcome, provenance="measured", code_id="code",
        env_id=env, worker_session="s", started="2026-01-01", samples_s=(1.0,) if outcome.timed else (),
    )  # fmt: skip


def a_run(cells: tuple[Cell, ...], *records: Record, folder: Path = Path()) -> Run:
    parts = tuple(Part(name=name, title="", baseline="base") for name in dict.fromkeys(cell.part for cell in cells))
    header = Header(
        run="r", title="", ablation="a", created="", command=("x",), parts=parts, cells=cells,
        measure=BASE.spec.measure, code_id="code", env_id="env",
    )  # fmt: skip
    machines = tuple(Environment(env_id=name, code_id="code") for name in ("env", "other"))
    return Run(folder=folder, header=header, environments=machines, records=records)


@given(st.sets(st.integers(0, len(POINTS) - 1), min_size=1), st.none() | st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_shares_hold_every_cell_once_and_every_point_whole(chosen: set[int], jobs: int | None) -> None:
    points = [POINTS[index] for index in sorted(chosen)]
    cells = tuple(cell for point in points for cell in point)
    shares = cut(cells, jobs)
    assert tuple(cell for share in shares for cell in share) == cells  # in the order of the plan
    assert [point for share in shares for point in points_of(share)] == points
    assert all(shares)
    assert len(shares) == len(points) if jobs is None else len(shares) <= min(jobs, len(points))


def test_shares_are_about_equal() -> None:
    cells = tuple(cell for prompt in range(12) for cell in cells_at(8 + prompt))
    assert [len(share) for share in cut(cells, 4)] == [9, 9, 9, 9]
    assert cut(cells, 1) == (cells,)


def test_a_share_has_its_cells_parts_and_records() -> None:
    mine, others = cells_at(8, part="a"), cells_at(9, part="b")
    run = a_run((*mine, *others), *(turn(cell, 0) for cell in (*mine, *others)))
    share = shard_of(run, mine, replace(BASE.spec.measure, max_minutes=1.0), mixed=False)
    assert share.header.cells == mine and [part.name for part in share.header.parts] == ["a"]
    assert share.header.measure.max_minutes == 1.0
    assert {record.cell for record in share.kept} == {cell.key for cell in mine}
    assert [machine.env_id for machine in share.environments] == ["env"]
    assert only(run, others).records == run.records[3:]


def test_a_round_that_was_cut_short_is_not_gone_on_with() -> None:
    whole = [turn(BASE, 0), turn(FUSED, 0)]
    assert list(whole_rounds(a_run((BASE, FUSED), *whole, turn(BASE, 1)), (BASE, FUSED))) == sorted(
        whole, key=lambda record: record.cell
    )
    assert whole_rounds(a_run((BASE, FUSED), turn(BASE, 0)), (BASE, FUSED)) == ()


def test_the_rounds_before_a_cell_failed_are_kept_and_of_one_that_cannot_run_none_is_asked() -> None:
    rounds = [turn(cell, number) for cell in (BASE, FUSED) for number in (0, 1, 2)]

    def kept(number: int, outcome: Outcome) -> set[tuple[str, int]]:
        """Of three rounds after the second cell failed in one of them, which it sat out from there on."""
        records = [one for one in rounds if one.cell == BASE.key or one.round < number]
        run = a_run((BASE, FUSED), *records, turn(FUSED, number, outcome))
        return {(record.cell, record.round) for record in whole_rounds(run, (BASE, FUSED))}

    assert kept(0, Outcome.CRASHED) == set()
    assert kept(1, Outcome.CRASHED) == {(BASE.key, 0), (FUSED.key, 0)}
    assert kept(0, Outcome.UNSUPPORTED) == {(BASE.key, 0), (BASE.key, 1), (BASE.key, 2)}


def test_a_share_is_read_back_until_it_is_withdrawn(tmp_path: Path) -> None:
    share = shard_of(a_run((BASE,), turn(BASE, 0)), (BASE,), BASE.spec.measure, mixed=True)
    folder = tmp_path / "nodes/001-000"
    write_shard(share, folder)
    assert read_shard(folder) == share and is_wanted(folder)
    withdraw(folder)
    withdraw(folder)
    assert read_shard(folder) is None and not is_wanted(folder)


def test_a_share_is_under_way_while_its_log_is_locked(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    with (tmp_path / "log.jsonl").open("ab") as log:
        assert not is_running(tmp_path)
        fcntl.flock(log, fcntl.LOCK_EX)
        assert is_running(tmp_path)
    assert not is_running(tmp_path)
