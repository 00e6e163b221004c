"""What holds for every test."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import drawing
from tests.loaded import Loader

# Few examples by default, many in `nox -s fuzz`. How long inputs take to draw says how busy the machine is.
_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", _ANY_MACHINE, max_examples=20)
settings.register_profile("fuzz", _ANY_MACHINE, max_examples=1000)
settings.load_profile("few")

# Assertions of four hundred files are rewritten, which takes longer than all else before the first test: keep them.
sys.dont_write_bytecode = False

# The modules and tests of a session stay: looking through them for garbage again and again takes a quarter of its time.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    drawing.collects_thorough = "not thorough" not in config.option.markexpr


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
    if torch := sys.modules.get("torch"):  # threads that wait for each other crawl on a busy machine
        torch.set_num_threads(1)


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
    """A shell has what it puts in the background ignore interrupts, nohup hang-ups, and programs inherit that."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def loader() -> Iterator[Loader]:
    loader = Loader()
    yield loader
    loader.close()


@pytest.fixture
def loaded_children(loader: Loader) -> Iterator[None]:
    """Python programs that a test starts are forks of a process that has loaded everything: see `tests.loaded`."""
    with loader.stands_in():
        yield
