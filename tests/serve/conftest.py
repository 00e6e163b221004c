"""The nano model's tokenizer, whose tokens are bytes, and a server of the fake engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from ktbench.serve.tokens import TextTokens
from tests.serve.fake import FakeEngine, Server, serving


@pytest.fixture(scope="session")
def tokens() -> TextTokens:
    return TextTokens.open("evals/nano")


@pytest.fixture(scope="module")
def server(tokens: TextTokens) -> Iterator[Server]:
    with serving(tokens, FakeEngine()) as found:
        yield found
