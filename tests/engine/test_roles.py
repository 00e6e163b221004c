"""Which cores the roles get, how experts are packed for them, and threads that are started from a pinned one."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.protocol import HostRole
from ktbench.engine.roles import RoleCpus, new_threads_on, reach, split_cpus
from ktbench.engine.weight_plan import Packing
from ktbench.spec.engine import EngineSpec
from tests.engine.tiny import decode, spec, tiny_model


@pytest.mark.parametrize(
    ("nodes", "engine", "packing"),
    [
        ((0,), {}, Packing(precision="int8")),
        ((0, 2), {}, Packing(precision="int8", domains=2, nodes=(0, 2))),
        ((0,), {"domains": 3}, Packing(precision="int8", domains=3)),
        ((0, 1), {"domains": 4}, Packing(precision="int8", domains=4)),
    ],
)
def test_experts_are_split_as_requested_or_over_the_nodes(
    nodes: tuple[int, ...], engine: dict[str, Any], packing: Packing
) -> None:
    requested = replace(spec(tiny_model(), decode(), avx512=True, threads=8, **engine), precision="int8")
    assert Packing.of(requested, HostRole(cores=8, nodes=nodes)) == packing


def split(cpus: list[int], **engine: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    roles = split_cpus(cpus, EngineSpec(**engine))
    return roles.device, roles.host


@pytest.mark.parametrize(
    ("engine", "device", "host"),
    [
        ({}, (4, 0, 6, 2, 8), (4, 0, 6, 2, 8)),
        ({"threads": 2}, (4, 0), (4, 0)),
        ({"roles": "split"}, (4, 0), (6, 2, 8)),
        ({"roles": "split", "device_threads": 1}, (4,), (0, 6, 2, 8)),
        ({"roles": "split", "device_threads": 4}, (4, 0, 6, 2), (8,)),
        ({"roles": "split", "threads": 2}, (4,), (0,)),
    ],
)
def test_the_first_cores_are_the_device_roles(
    engine: dict[str, Any], device: tuple[int, ...], host: tuple[int, ...]
) -> None:
    assert split([4, 0, 6, 2, 8], **engine) == (device, host)


@given(st.lists(st.integers(0, 500), unique=True, min_size=2, max_size=64), st.data())
def test_roles_of_their_own_share_no_core_and_leave_none_idle(cpus: list[int], data: st.DataObject) -> None:
    count = data.draw(st.none() | st.integers(1, len(cpus) - 1))
    roles = split_cpus(cpus, EngineSpec(roles="split", device_threads=count))
    assert roles == RoleCpus(device=tuple(cpus[: len(roles.device)]), host=tuple(cpus[len(roles.device) :]))
    assert roles.device and roles.host
    assert count in (None, len(roles.device))


@pytest.mark.parametrize(
    ("cores", "engine", "says"),
    [
        (2, {"threads": 3}, "engine.threads=3: allowed are 1 to 2, the cores of this process"),
        (1, {"roles": "split"}, "engine.roles=split: needs a core for each role, there is 1"),
        (4, {"roles": "split", "threads": 1}, "engine.roles=split: needs a core for each role, there is 1"),
        (
            4,
            {"roles": "split", "device_threads": 4},
            "engine.device_threads=4: allowed are 1 to 3, the host role needs",
        ),
    ],
)
def test_too_few_cores_are_refused(cores: int, engine: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        split(list(range(cores)), **engine)


def test_a_pinned_thread_reaches_other_cores_for_a_while_only() -> None:
    before = os.sched_getaffinity(0)
    first, *others = sorted(before)
    os.sched_setaffinity(0, {first})
    try:
        with reach(others):
            assert os.sched_getaffinity(0) == before
        assert os.sched_getaffinity(0) == {first}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("cpus", "host", "callbacks"),
    [((7,), (7,), (7,)), ((7, 3), (3,), (7,)), ((7, 3, 5), (5,), (3,)), ((7, 3, 5, 1), (5, 1), (3,))],
)
def test_callbacks_of_cuda_run_on_no_core_of_a_busy_thread(
    cpus: tuple[int, ...], host: tuple[int, ...], callbacks: tuple[int, ...]
) -> None:
    """On two cores they share one with the thread that launches kernels, which sleeps when it waits."""
    assert split_cpus(cpus, EngineSpec(device="cuda")) == RoleCpus(device=cpus, host=host, callbacks=callbacks)


def test_threads_that_are_started_meanwhile_stay_where_they_belong() -> None:
    """Those of the caller inherit its cpus, those of other threads are moved."""
    before, ending, found = os.sched_getaffinity(0), threading.Event(), dict[str, set[int]]()
    if len(before) < 2:
        pytest.skip("needs two cpus")
    _, second, *_ = sorted(before)
    ask, asked = threading.Event(), threading.Event()

    def spin(name: str) -> None:
        while not ending.wait(0.001):
            found[name] = os.sched_getaffinity(0)

    def other() -> None:
        asked.wait()
        threads.append(threading.Thread(target=spin, args=("by another",)))
        threads[-1].start()
        ask.set()

    threads = [threading.Thread(target=other), threading.Thread(target=spin, args=("there before",))]
    for thread in list(threads):
        thread.start()
    with new_threads_on([second]):
        threads.append(threading.Thread(target=spin, args=("by the caller",)))
        threads[-1].start()
        asked.set()
        ask.wait()
    found.clear()
    while len(found) < 3:
        time.sleep(0.001)
    ending.set()
    for thread in threads:
        thread.join()
    assert found == {"there before": before, "by the caller": {second}, "by another": {second}}
    assert os.sched_getaffinity(0) == before
