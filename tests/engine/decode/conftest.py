"""Recorded steps run in inference mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield
