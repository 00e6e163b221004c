"""What only a machine with a CUDA device can show."""

from __future__ import annotations

import pytest

from ktbench.host.capabilities import machine_capabilities


@pytest.mark.gpu
def test_a_granted_device_is_one_that_pytorch_can_use() -> None:
    if reason := machine_capabilities()["cuda"]:
        pytest.skip(reason)
    import torch

    assert torch.ones(8, device="cuda").sum().item() == 8
