"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_timing_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither wait for a sweep on this host nor stop one; those in processes run `tests.command.KTBENCH`."""
    path = tmp_path_factory.mktemp("timing") / "timing.lock"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ktbench.host.timing_lock.lock_file", lambda: path)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which loops of the kernels are the fastest is not kept for the user from tests that run side by side."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KTBENCH_CACHE", str(tmp_path_factory.getbasetemp().parent / "ktbench"))
        yield


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """A shell starts what it puts in the background with interrupts ignored, and programs inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
