import os

import numpy as np
import pytest

from ktbench import _kernels


@pytest.fixture(scope="session")
def cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def pool(cpus: list[int]) -> _kernels.ThreadPool:
    """Two threads, on one cpu where there is only one."""
    return _kernels.ThreadPool((cpus * 2)[:2], 200)


@pytest.fixture(scope="session")
def three_threads(cpus: list[int]) -> _kernels.ThreadPool:
    return _kernels.ThreadPool((cpus * 3)[:3], 50)


@pytest.fixture(scope="session", params=[False, True], ids=["caller", "own"])
def team(request: pytest.FixtureRequest, cpus: list[int]) -> _kernels.ThreadPool:
    """Two threads: the caller and another, or both the pool's own."""
    return _kernels.ThreadPool((cpus * 2)[:2], 100, own=request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20251013)
