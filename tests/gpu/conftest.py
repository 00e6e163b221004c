"""Everything here runs on a CUDA device, and skips with the reason where there is none."""

from __future__ import annotations

import pytest

from ktbench.host.capabilities import machine_capabilities


@pytest.fixture(autouse=True)
def needs_cuda() -> None:
    if reason := machine_capabilities()["cuda"]:
        pytest.skip(reason)
