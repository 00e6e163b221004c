"""Everything here runs on a CUDA device, and skips with the reason where there is none."""

from __future__ import annotations

import pytest

from ktbench.host.grants import machine_grants


@pytest.fixture(autouse=True)
def needs_cuda() -> None:
    if reason := machine_grants()["cuda"]:
        pytest.skip(reason)


@pytest.fixture
def needs_avx512() -> None:
    if reason := machine_grants()["avx512"]:
        pytest.skip(f"avx512: {reason}")
