"""The nano model's tokenizer, whose tokens are bytes, and a server of the fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from ktbench.serve.tokens import TextTokens
from tests.serve.fake import FakeEngine, Server, serving


@pytest.fixture(scope="session")
def tokens() -> TextTokens:
    return TextTokens.open("evals/nano")


@pytest.fixture(scope="session", autouse=True)
def short_naps() -> Iterator[None]:
    """uvicorn looks ten times a second whether it shall end, and waits as long again before it does."""

    async def sleep(delay: float, result: Any = None) -> Any:
        return await asyncio.sleep(min(delay, 0.005), result)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("uvicorn.server.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        yield


@pytest.fixture(scope="module")
def server(tokens: TextTokens) -> Iterator[Server]:
    with serving(tokens, FakeEngine()) as found:
        yield found
