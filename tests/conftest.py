"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_timing_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither wait for a sweep on this host nor stop one; those in processes run `tests.command.KTBENCH`."""
    path = tmp_path_factory.mktemp("timing") / "timing.lock"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ktbench.host.timing_lock.lock_file", lambda: path)
        yield
