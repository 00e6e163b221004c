"""What `doctor` says about cores for roles that are apart."""

from __future__ import annotations

import pytest

from ktbench.cli.doctor import _split


@pytest.mark.parametrize(
    ("cpus", "says"),
    [
        ((0, 1), "device role on cpu 0; host role on cpu 1 (engine.device_threads moves the border)"),
        ((4, 2, 0), "device role on cpu 4; host role on cpu 2, 0 (engine.device_threads moves the border)"),
        ((0,), "- (engine.roles=split: needs a core for each role, there is 1)"),
    ],
)
def test_says_which_cores_the_roles_get(cpus: tuple[int, ...], says: str) -> None:
    assert _split(cpus) == says
