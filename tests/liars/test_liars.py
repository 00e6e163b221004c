"""Operators that cheat are found out within six rounds, or are no faster than honest work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from docs.gen.repository import DOCS
from ktbench.engine.protocol import HostRole
from ktbench.peers.transformers.system import open_peer
from ktbench.run.messages import RecordIds
from ktbench.run.session import Session, WorkerSpoilt
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.wire import spec_id
from tests.engine.tiny import decode, layer, prefill, spec, tiny_model
from tests.fake import FakeRoofs
from tests.liars.honest import STEPS

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


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def cell(name: str, phase: str) -> Cell:
    peer = PeerSpec(implementation="own", operator=str(FOLDER / f"{name}.py"), operator_id=name, tune_s=0)
    requested = replace(spec(tiny_model(), work_of(phase)), system="transformers", peer=peer)
    return Cell(label=name, spec=requested, spec_id=spec_id(requested))


def work_of(phase: str) -> WorkloadSpec:
    return WORK[phase]


def session(requested: RunSpec) -> Session:
    system = open_peer([requested], HostRole(cores=1))
    return Session(system=system, roofs=FakeRoofs(), ids=RecordIds(code_id="code", env_id="env"))  # type: ignore[arg-type]


def rounds_of(name: str, phase: str) -> list[Record]:
    """The records of six rounds, or until one that is not timed."""
    tried = cell(name, phase)
    sitting, records = session(tried.spec), list[Record]()
    while len(records) < ROUNDS and (not records or records[-1].outcome.timed):
        records.append(sitting.trial(tried, len(records)))
    return records


@pytest.mark.parametrize("phase", WORK)
@pytest.mark.parametrize("name", LIARS)
def test_a_liar_is_found_out_within_six_rounds(name: str, phase: str) -> None:
    records = rounds_of(name, phase)
    outcomes = [record.outcome for record in records]
    if phase in EITHER.get(name, ()) and outcomes[-1] is Outcome.OK:
        return
    if phase in HONEST.get(name, ()):
        assert outcomes == [Outcome.OK] * ROUNDS, records[-1].why
        assert records[-1].compared is not None
        assert records[-1].compared.experts == records[-1].compared.of_experts
    else:
        assert outcomes[-1] is (Outcome.IDLE if name == "changes_threads" else Outcome.WRONG), outcomes


@pytest.mark.parametrize("phase", ["layer", "decode"])
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


def test_the_baseline_is_not_spoilt_by_what_puts_other_weights_in_place() -> None:
    own = cell("replaced_weights", "decode")
    eager = replace(own.spec, peer=PeerSpec(implementation="eager", tune_s=0))
    base, sitting = Cell(label="eager", spec=eager, spec_id=spec_id(eager)), session(own.spec)
    before = sitting.trial(base, 0)
    assert sitting.trial(own, 0).outcome is Outcome.WRONG
    after = sitting.trial(base, 1)
    assert (before.outcome, after.outcome) == (Outcome.OK, Outcome.OK)


@pytest.mark.thorough
@pytest.mark.parametrize("phase", WORK)
def test_more_cores_than_threads_are_noticed(phase: str) -> None:
    record = rounds_of("takes_threads", phase)[-1]
    assert (record.outcome, "cores were busy" in record.why) == (Outcome.IDLE, True)


@pytest.mark.thorough
@pytest.mark.parametrize("phase", WORK)
def test_threads_that_are_left_behind_end_the_worker(phase: str) -> None:
    with pytest.raises(WorkerSpoilt, match="left 1 busy threads behind|left 2 busy threads behind"):
        rounds_of("leaves_threads", phase)


def test_the_table_names_every_liar() -> None:
    table = (DOCS / "trust.md").read_text(encoding="utf-8")
    missing = {name for name in NAMES - {"honest"} if f"`{name}`" not in table}
    assert not missing
