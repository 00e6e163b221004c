"""Where the cores were, told by a cache line's way between them."""

from __future__ import annotations

import pytest

from ktbench.spec.core_layout import core_layout_at, core_layout_during, core_layout_of
from ktbench.spec.record import RoofSample


def roof(ping_pong_ns: float | None) -> RoofSample:
    return RoofSample(read_bytes_per_s=1e10, peak_flops=None, peak_isa="reference", ping_pong_ns=ping_pong_ns)


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
    assert core_layout_of([roof(time) for time in times]) == placed


@pytest.mark.parametrize("times", [(), (None,), (None, None), (28.0, None), (28.0, 155.0, None)])
def test_without_a_ping_pong_there_is_no_placement(times: tuple[float | None, ...]) -> None:
    assert core_layout_during(times) is None
    assert core_layout_of([roof(time) for time in times]) is None
