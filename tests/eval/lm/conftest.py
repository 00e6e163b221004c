"""One thread, and tiny checkpoints with tokenizers beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ktbench.eval.lm.model import EngineLM
from tests.eval.lm.checkpoints import MAX_LENGTH, NAMES, Checkpoint, cell_of, engine_lm, written


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    return {name: written(name, tmp_path_factory.mktemp("checkpoints") / name) for name in NAMES}


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, checkpoints: dict[str, Checkpoint]) -> Checkpoint:
    return checkpoints[request.param]


@pytest.fixture(scope="module")
def ours(checkpoint: Checkpoint) -> Iterator[EngineLM]:
    lm = engine_lm(checkpoint, cell_of(checkpoint), max_length=MAX_LENGTH)
    yield lm
    lm.generator.close()


@pytest.fixture(scope="module")
def network(checkpoint: Checkpoint) -> PreTrainedModel:
    read: Any = AutoModelForCausalLM.from_pretrained
    network: PreTrainedModel = read(checkpoint.folder, dtype="auto", experts_implementation="eager")
    return network
