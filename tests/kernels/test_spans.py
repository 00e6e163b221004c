"""A team knows when its jobs ran, and for how long: on Python's own clock."""

import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import Batch, case, forward, garbage, submit

KEPT = 65_536
OF = case("int8", (4, 64, 64), 6, 2)
EMPTY = Batch(OF.batch.x_th[:0], OF.batch.ids_tk[:0], OF.batch.gates_tk[:0])


@pytest.fixture(params=[False, True], ids=["caller", "own"])
def fresh(request, cpus) -> _kernels.ThreadPool:
    """A pool of two that nobody else uses."""
    return _kernels.ThreadPool((cpus * 2)[:2], 100, own=request.param)


def tags(team: _kernels.Team) -> list[int]:
    return list(team.spans()[:, 0])


def test_a_job_lies_within_its_call(fresh):
    moe = _kernels.MoE(OF.packed, fresh, tag=7)
    before = time.perf_counter_ns()
    forward(moe, OF.batch, isa="reference")
    after = time.perf_counter_ns()
    spans = fresh.spans()
    assert spans.dtype == np.int64 and spans.shape == (1, 3)
    tag, begin, end = spans[0]
    assert tag == 7 and before <= begin < end <= after


@given(order=st.lists(st.integers(0, 3), max_size=30), own=st.booleans())
def test_jobs_lie_one_after_the_other_in_the_order_of_submission(cpus, order, own):
    team = _kernels.ThreadPool((cpus * 2)[:2], 50, own=own)
    moes = [_kernels.MoE(OF.packed, team, tag) for tag in range(4)]
    tickets = [submit(moes[tag], OF.batch, garbage(OF.batch), isa="reference") for tag in order]
    for ticket in tickets:
        ticket.wait()
    spans = team.spans()
    assert list(spans[:, 0]) == order
    assert all(end <= begin for (_, _, end), (_, begin, _) in pairwise(spans))
    assert team.busy_ns == (spans[:, 2] - spans[:, 1]).sum()


def test_each_span_is_told_once(fresh):
    moe = _kernels.MoE(OF.packed, fresh, tag=1)
    assert fresh.spans().shape == (0, 3)
    forward(moe, OF.batch, isa="reference")
    assert tags(fresh) == [1] and tags(fresh) == []
    forward(moe, OF.batch, isa="reference")
    assert tags(fresh) == [1]


def test_busy_time_goes_on_where_spans_were_taken(fresh):
    moe = _kernels.MoE(OF.packed, fresh)
    assert fresh.busy_ns == 0
    total = 0
    for _ in range(3):
        forward(moe, OF.batch, isa="reference")
        _, begin, end = fresh.spans()[0]
        total += end - begin
        assert fresh.busy_ns == total


def test_a_ticket_that_is_done_has_its_span(cpus):
    team = _kernels.ThreadPool(cpus[:1], 100, own=True)
    ticket = submit(_kernels.MoE(OF.packed, team, tag=5), OF.batch, garbage(OF.batch), isa="reference")
    while not ticket.done:
        time.sleep(0)
    assert tags(team) == [5]


def test_jobs_of_others_are_untagged(fresh):
    forward(_kernels.MoE(OF.packed, fresh), OF.batch, isa="reference")
    packed = _kernels.PackedExperts(4, 64, 64, "int8")
    packed.copy_expert(0, OF.packed, 1, fresh)
    assert tags(fresh) == [0, -1]


def test_the_last_65536_are_kept(cpus):
    team = _kernels.ThreadPool(cpus[:1], 0)
    first, then = (_kernels.MoE(OF.packed, team, tag) for tag in (1, 2))
    calls = [
        moe.prepare(EMPTY.x_th, EMPTY.ids_tk, EMPTY.gates_tk, EMPTY.x_th, isa="reference") for moe in (first, then)
    ]
    for call, times in zip(calls, (10, KEPT - 6), strict=True):
        for _ in range(times):
            call.forward()
    spans = team.spans()
    assert list(spans[:, 0]) == [1] * 6 + [2] * (KEPT - 6)
    assert (np.diff(spans[:, 1:].ravel()) >= 0).all()
    assert tags(team) == []


def test_they_may_be_taken_while_jobs_run(fresh):
    moe = _kernels.MoE(OF.packed, fresh, tag=3)
    taken: list[int] = []
    calls = threading.Thread(target=lambda: [forward(moe, OF.batch, isa="reference") for _ in range(300)])
    calls.start()
    while calls.is_alive():
        taken += tags(fresh)
    assert taken + tags(fresh) == [3] * 300


def test_openmp_threads_note_jobs_when_somebody_waits():
    import torch  # noqa: F401 - brings the OpenMP runtime

    team = _kernels.OpenMPTeam(2)
    ticket = submit(_kernels.MoE(OF.packed, team, tag=4), OF.batch, garbage(OF.batch), isa="reference")
    assert not ticket.done and tags(team) == []
    ticket.wait()
    assert ticket.done and tags(team) == [4] and team.busy_ns > 0


def test_a_negative_tag_is_refused(fresh):
    with pytest.raises(ValueError, match="tag=-1 must not be negative"):
        _kernels.MoE(OF.packed, fresh, -1)
