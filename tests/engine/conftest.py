"""One thread for everything that does not test threads: two that wait for each other crawl on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def inference() -> Iterator[None]:
    """Recorded steps run in inference mode."""
    with torch.inference_mode():
        yield
