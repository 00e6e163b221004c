"""Runs of serving ablations on the scripted engine, through the real driver, session and log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from ktbench.results import Run
from ktbench.run.messages import RecordIds
from ktbench.run.open_run import parts_of
from ktbench.run.request import plan_request, read_request
from ktbench.run.serving.system import StreamSystem
from ktbench.run.session import Session
from ktbench.spec.record import Cell, Record
from ktbench.spec.run_spec import RunSpec
from tests.fake import FakeRoofs
from tests.report.synthetic import MACHINE, STARTED, header_of, written
from tests.run.serving_engine import FakeClock, FakeServing

_IDS = RecordIds(code_id=MACHINE.code_id, env_id=MACHINE.env_id, worker_session="served")


def served_run(folder: Path, ablation: str, *words: str, rounds: int = 6) -> Run:
    """The run of an ablation of serving, with steps of 10 ms and 0.1 ms a prompt token, about."""
    request = read_request([f"+ablation={ablation}", *words])
    cells = plan_request(request).cells
    made = header_of(ablation, ablation, parts_of(request), cells)
    return written(folder, made, _records(cells, rounds))


def _records(cells: Sequence[Cell], rounds: int) -> Iterator[Record]:
    for number, (place, cell) in product(range(rounds), enumerate(cells)):
        clock = FakeClock()
        open_one = partial(_engine, clock, 1 + 0.004 * ((number * 7 + place * 3) % 5))
        system = StreamSystem(open_one, clock=clock, rest=clock.sleep)
        session = Session(system=system, roofs=FakeRoofs(), ids=_IDS, clock=clock)
        yield replace(session.trial(cell, number), started=STARTED)


def _engine(clock: FakeClock, more: float, spec: RunSpec) -> FakeServing:
    engine = spec.engine
    return FakeServing(
        clock,
        most=16 if engine.batching else engine.static_batch or 1,
        prompt_s=1e-4 * more,
        token_s=0.01 * more,
        features=engine.features,
        chunk=engine.serving.chunk_tokens if engine.chunked_prefill else None,
    )
