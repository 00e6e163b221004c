"""Operators that cheat are found out within six rounds, or are no faster than honest work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import pytest
import torch
from torch import Tensor

from docs.gen.repository import DOCS
from ktbench.engine.protocol import HostRole, System
from ktbench.peers.transformers.system import open_peer
from ktbench.run.messages import RecordIds
from ktbench.run.session import Session, WorkerSpoilt, time_steps
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.wire import spec_id
from tests.drawing import few_of
from tests.engine.tiny import decode, layer, prefill, spec, tiny_model
from tests.fake import FakeRoofs
from tests.liars import honest
from tests.liars.honest import LAYERS, STEPS

FOLDER = Path(__file__).parent
ROUNDS = 6
WORK = {"layer": layer(batch=128, steps=STEPS), "decode": decode(steps=STEPS), "prefill": prefill(prompt=128)}
# What does its work, however it looks: in these phases, or in all.
HONEST = {
    "honest": tuple(WORK),
    "cached_by_content": tuple(WORK),  # no content comes twice
    "first_call_wrong": tuple(WORK),  # the first call is a trial that nobody times
    "lazy": ("decode", "prefill"),  # the next layer uses it, within the step
    "one_row_wrong": ("decode",),  # calls are of one token
}
# Memory that PyTorch hands out may be new in every call, which is work done, or not.
EITHER = {"cached_by_address": ("decode", "prefill")}
WRITERS = ("quantised_in_place", "copied_expert")  # end their process
TIMED = ("leaves_threads", "takes_threads")  # are found by the time of processors, which they need for themselves
NAMES = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("test_")}
LIARS = sorted(NAMES - {*WRITERS, *TIMED})
CASES = [(name, phase) for name in LIARS for phase in WORK]
# One of each way to be found out. Two threads on a core that others use, too, take seconds for the work of one.
FEW = [
    ("honest", "layer"),
    ("honest", "decode"),
    ("asynchronous", "layer"),
    ("cached_by_address", "layer"),
    ("cached_by_content", "layer"),
    ("changes_inputs", "layer"),
    ("changes_threads", "decode"),
    ("every_other", "layer"),
    ("first_and_last", "decode"),
    ("lazy", "layer"),
    ("low_gates_dropped", "decode"),
    ("one_expert_wrong", "decode"),
    ("one_row_wrong", "prefill"),
    ("only_repeated", "prefill"),
    ("previous_output", "layer"),
    ("replaced_weights", "prefill"),
]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether threads are left behind is seen by watching them for a while, which is done where it is the question."""
    monkeypatch.setattr("ktbench.run.session.busy_threads", lambda: 0)


def cell(name: str, phase: str) -> Cell:
    peer = PeerSpec(implementation="own", operator=str(FOLDER / f"{name}.py"), operator_id=name, tune_s=0)
    requested = replace(spec(tiny_model(), WORK[phase]), system="transformers", peer=peer)
    return Cell(label=name, spec=requested, spec_id=spec_id(requested))


@cache
def shared(phase: str) -> System:
    """One for all liars: none may spoil it for those after it. Prefill and decode run on the same network."""
    return shared("decode") if phase == "prefill" else open_peer([cell("honest", phase).spec], HostRole(cores=1))


def session(phase: str) -> Session:
    """Nothing is left of the operator of the test before; draws repeat, as half of the steps escapes now and then."""
    shared(phase).configure(cell("honest", phase).spec)
    return Session(
        system=shared(phase),
        roofs=FakeRoofs(),  # type: ignore[arg-type]
        ids=RecordIds(code_id="code", env_id="env"),
        draw=Random(1),
    )


def rounds_of(name: str, phase: str) -> list[Record]:
    """The records of six rounds, or until one that is not timed."""
    tried, sitting, records = cell(name, phase), session(phase), list[Record]()
    while len(records) < ROUNDS and (not records or records[-1].outcome.timed):
        records.append(sitting.trial(tried, len(records)))
    return records


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls were computed within the timed steps of each trial."""
    found, calls, truth = list[int](), count(), honest.Experts.truth

    def counted(self: honest.Experts, *given: Tensor) -> Tensor:
        next(calls)
        return truth(self, *given)

    def timed(*given: Any) -> tuple[float, ...]:
        before = next(calls)
        samples_s = time_steps(*given)
        found.append(next(calls) - before - 1)
        return samples_s

    monkeypatch.setattr(honest.Experts, "truth", counted)
    monkeypatch.setattr("ktbench.run.session.time_steps", timed)
    return found


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("case", few_of(CASES, FEW), ids="-".join)
def test_a_liar_is_found_out_within_six_rounds(case: tuple[str, str], computed: list[int]) -> None:
    name, phase = case
    records = rounds_of(name, phase)
    outcomes = [record.outcome for record in records]
    if phase in HONEST.get(name, ()) or (phase in EITHER.get(name, ()) and outcomes[-1] is Outcome.OK):
        assert outcomes == [Outcome.OK] * ROUNDS, records[-1].why
        assert records[-1].compared is not None
        assert records[-1].compared.experts == records[-1].compared.of_experts
        # A quarter of the steps moves no median.
        assert name == "honest" or 4 * min(computed) >= 3 * calls_of(phase)
    else:
        assert outcomes[-1] is (Outcome.IDLE if name == "changes_threads" else Outcome.WRONG), outcomes


def calls_of(phase: str) -> int:
    """Calls of the operator in the timed steps of a trial."""
    return WORK[phase].steps * (1 if phase == "layer" else LAYERS)


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("phase", few_of(WORK, ["layer"]))
def test_nothing_before_a_trial_has_the_tokens_of_its_round(phase: str, computed: list[int]) -> None:
    """Another row of the round had them before, and its operator is not the one that is set up next."""
    sitting = session(phase)
    for name in ("honest", "cached_by_content"):
        assert sitting.trial(cell(name, phase), 0).outcome is Outcome.OK
    assert computed[-1] == calls_of(phase)


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("phase", few_of(["layer", "decode"], ["decode"]))
@pytest.mark.parametrize("name", WRITERS)
def test_weights_that_others_use_cannot_be_written(name: str, phase: str) -> None:
    """In a process of its own, which the write ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.dup2(writing, 2)
        torch.set_num_threads(1)
        rounds_of(name, phase)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert "weights that other rows use" in said.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


@pytest.mark.usefixtures("at_rest")
def test_the_baseline_is_not_spoilt_by_what_puts_other_weights_in_place() -> None:
    own = cell("replaced_weights", "decode")
    eager = replace(own.spec, peer=PeerSpec(implementation="eager", tune_s=0))
    base, sitting = Cell(label="eager", spec=eager, spec_id=spec_id(eager)), session("decode")
    before = sitting.trial(base, 0)
    assert sitting.trial(own, 0).outcome is Outcome.WRONG
    after = sitting.trial(base, 1)
    assert (before.outcome, after.outcome) == (Outcome.OK, Outcome.OK)


def cores_of_two_threads() -> float:
    """How many cores two threads get now that compute as the liar's do."""
    some, began_s, used_s = torch.randn(200, 200), perf_counter(), process_time()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: [some @ some for _ in range(500)], range(2)))
    return (process_time() - used_s) / (perf_counter() - began_s)


@pytest.mark.thorough
@pytest.mark.parametrize("phase", WORK)
def test_more_cores_than_threads_are_noticed(phase: str) -> None:
    torch.set_num_threads(1)
    if (cores := cores_of_two_threads()) < 1.8:
        pytest.skip(f"two threads get {cores:.1f} cores: other programs use them")
    record = rounds_of("takes_threads", phase)[-1]
    assert (record.outcome, "cores were busy" in record.why) == (Outcome.IDLE, True)


@pytest.mark.thorough
@pytest.mark.parametrize("phase", WORK)
def test_threads_that_are_left_behind_end_the_worker(phase: str) -> None:
    with pytest.raises(WorkerSpoilt, match=r"left \d+ busy threads behind"):
        rounds_of("leaves_threads", phase)
    for left in threading.enumerate():
        if left.name == "left behind":
            left.join()  # or it is in the middle of a product when Python ends


def test_the_table_names_every_liar() -> None:
    table = (DOCS / "trust.md").read_text(encoding="utf-8")
    missing = {name for name in NAMES - {"honest"} if f"`{name}`" not in table}
    assert not missing
