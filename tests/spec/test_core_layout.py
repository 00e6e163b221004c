"""Where the cores were, told by a cache line's way between them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ktbench.spec.core_layout import core_layout_at, core_layout_during, core_layout_of
from ktbench.spec.record import Outcome, Record, RoofSample
from ktbench.spec.system_metrics import InterferenceCounters, SystemMetrics


def trial(times: Sequence[float | None], cores: int = 2) -> Record:
    """One that was timed on so many cores, between roofs with these ways of a cache line in ns."""
    counters = InterferenceCounters(seconds=1.0, cpus=cores, preemptions=0, minor_faults=0, major_faults=0)
    return Record(
        cell="c",
        label="+v",
        round=0,
        outcome=Outcome.OK,
        provenance="measured",
        code_id="c",
        env_id="e",
        worker_session="s",
        started="",
        samples_s=(1.0,),
        roofs=tuple(
            RoofSample(read_bytes_per_s=1e10, peak_flops=None, peak_isa="reference", ping_pong_ns=ns) for ns in times
        ),
        system_metrics=SystemMetrics(disturbance=counters),
    )


@pytest.mark.parametrize(
    ("ping_pong_ns", "placed"),
    [
        (10.0, "same core"),  # two hyperthreads, Granite Rapids
        (19.99, "same core"),
        (20.0, "near"),
        (28.0, "near"),  # one complex of Zen 4
        (65.0, "near"),  # the mesh of Granite Rapids
        (89.99, "near"),
        (90.0, "far"),
        (155.0, "far"),  # two complexes of Zen 4
        (None, None),
    ],
)
def test_a_moment_has_the_placement_of_its_ping_pong(ping_pong_ns: float | None, placed: str | None) -> None:
    assert core_layout_at(ping_pong_ns) == placed


@pytest.mark.parametrize(
    ("times", "placed"),
    [
        ((28.0, 31.0), "near"),
        ((155.0, 160.0), "far"),
        ((10.0, 11.0), "same core"),
        ((28.0, 155.0), "moved"),
        ((155.0, 28.0), "moved"),
        ((10.0, 28.0), "moved"),
        ((28.0, 28.0, 155.0), "moved"),
        ((28.0,), "near"),
    ],
)
def test_a_turn_has_the_placement_that_its_roofs_agree_on(times: tuple[float, ...], placed: str) -> None:
    assert core_layout_of(trial(times)) == placed


@pytest.mark.parametrize("times", [(), (None,), (None, None), (28.0, None), (28.0, 155.0, None)])
def test_without_a_ping_pong_there_is_no_placement(times: tuple[float | None, ...]) -> None:
    assert core_layout_during(times) is None
    assert core_layout_of(trial(times)) is None


def test_two_cores_of_many_say_nothing_about_the_others() -> None:
    assert core_layout_of(trial((28.0, 155.0), cores=16)) is None
