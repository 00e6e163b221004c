"""Logs of nodes brought together: nothing lost, nothing twice, whatever comes first."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.results import Run
from ktbench.results.find import lacking
from ktbench.spec.record import Environment, Outcome, Record
from tests.run.cluster.test_shards import a_run, cells_at, turn

CELLS = (*cells_at(8), *cells_at(9))
STRANGER = cells_at(99)[0]
turns = st.builds(
    lambda cell, number, outcome, second, env: replace(
        turn(cell, number, outcome, env), started=f"2026-01-01T00:00:0{second}"
    ),
    st.sampled_from(CELLS), st.integers(0, 3), st.sampled_from([Outcome.OK, Outcome.CRASHED]), st.integers(0, 9),
    st.sampled_from(["env", "other"]),
)  # fmt: skip
logs = st.lists(st.lists(turns, max_size=8), max_size=4)


def merged(run: Run, others: list[Run]) -> Run:
    facts = lacking(run, others)
    return replace(
        run,
        environments=(*run.environments, *(fact for fact in facts if isinstance(fact, Environment))),
        records=(*run.records, *(fact for fact in facts if isinstance(fact, Record))),
    )


def began(log: Run) -> dict[tuple[str, int], str]:
    """When each turn of a log began: no earlier than an attempt at it that the log held before."""
    found: dict[tuple[str, int], str] = {}
    for record in log.records:
        where = (record.cell, record.round)
        found[where] = max(record.started, found.get(where, ""))
    return found


@given(st.lists(turns, max_size=5, unique_by=lambda one: (one.cell, one.round)), logs, st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_the_end_of_the_latest_log_counts_nothing_is_doubled_and_no_order_matters(
    kept: list[Record], contents: list[list[Record]], seed: int
) -> None:
    """Nodes begin with what the run had, every second one at least: what they measure is theirs alone."""
    run = a_run(CELLS, *kept)
    nodes = [
        a_run(
            CELLS,
            *kept[:: 1 + node % 2],
            *(replace(one, worker_session=f"{node}.{at}") for at, one in enumerate(content)),
        )
        for node, content in enumerate(contents)
    ]
    after = merged(run, nodes)
    assert len(after.records) == len(set(after.records))
    assert after.records[: len(kept)] == tuple(kept)
    assert after.latest().keys() == {where for log in (run, *nodes) for where in log.latest()}
    for where, record in after.latest().items():
        ends = [(began(log)[where], log.latest()[where]) for log in (run, *nodes) if where in log.latest()]
        assert record in [end for when, end in ends if when == max(when for when, _ in ends)]
    random.Random(seed).shuffle(nodes)
    assert merged(run, nodes) == after
    assert lacking(after, nodes) == ()


def test_the_order_of_a_log_stands_over_the_clock() -> None:
    first, again, third = (
        replace(turn(CELLS[0], 0, outcome, env="node"), started=f"2026-01-01T00:00:0{second}")
        for outcome, second in ((Outcome.CRASHED, 9), (Outcome.OK, 1), (Outcome.OK, 5))
    )
    where, node = (CELLS[0].key, 0), a_run(CELLS, first, again)  # its clock was set back in between
    assert merged(a_run(CELLS), [node]).latest()[where] == again
    assert merged(a_run(CELLS, first), [node]).latest()[where] == again
    assert merged(a_run(CELLS, first), [node, a_run(CELLS, third)]).latest()[where] == again
    assert lacking(a_run(CELLS, third), [a_run(CELLS, again)]) == ()  # of another log that began before


def test_of_two_records_of_a_turn_the_later_counts_and_a_timed_one_where_they_began_together() -> None:
    failed = replace(turn(CELLS[0], 0, Outcome.CRASHED), started="2026-01-01T00:00:01")
    timed = replace(turn(CELLS[0], 0), started="2026-01-01T00:00:01")
    later = replace(failed, started="2026-01-01T00:00:02")
    where = (CELLS[0].key, 0)
    assert merged(a_run(CELLS), [a_run(CELLS, timed), a_run(CELLS, failed)]).latest()[where] == timed
    assert merged(a_run(CELLS), [a_run(CELLS, later), a_run(CELLS, timed)]).latest()[where] == later


def test_an_older_record_than_the_run_has_is_left_out_unless_it_was_asked_for_since() -> None:
    older, newer = (replace(turn(CELLS[0], 0), started=f"2026-01-0{day}") for day in (1, 2))
    run, node = a_run(CELLS, newer), a_run(CELLS, older)
    assert lacking(run, [node]) == ()
    assert lacking(a_run(CELLS, older), [a_run(CELLS, newer)]) == (newer,)
    assert lacking(run, [node], asked_after=1) == (older,)  # by a clock that is slow
    assert lacking(a_run(CELLS, turn(CELLS[1], 0), newer), [node], asked_after=1) == ()


def test_machines_come_once_and_cells_of_other_plans_not_at_all() -> None:
    node = replace(a_run(CELLS, turn(STRANGER, 0)), environments=(Environment(env_id="new", code_id="code"),) * 2)
    assert lacking(a_run(CELLS), [node]) == node.environments[:1]
