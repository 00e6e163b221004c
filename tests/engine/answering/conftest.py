"""A small DeepSeek-V3, the network it is in plain Transformers, and an engine that answers as it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transformers import PreTrainedModel

from ktbench.engine.generate import Generator
from ktbench.spec.run_spec import ModelSpec
from tests.engine.answers import ALL, opened
from tests.engine.engines import changed
from tests.engine.families.plain import build


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return changed("deepseek_v3", **ALL)


@pytest.fixture(scope="module")
def network(model: ModelSpec) -> PreTrainedModel:
    return build(model)


@pytest.fixture(scope="module")
def answering(model: ModelSpec) -> Iterator[Generator]:
    opened_here = opened(model)
    yield opened_here
    opened_here.close()
