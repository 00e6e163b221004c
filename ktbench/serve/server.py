"""Runs the API until a signal asks it to end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from ktbench.engine.serving.requests import ServingEngine
from ktbench.serve.answering import Backend
from ktbench.serve.app import make_api
from ktbench.serve.driver import EngineThread
from ktbench.serve.job import Limits
from ktbench.serve.metrics import Metrics
from ktbench.serve.settings import ServerSettings
from ktbench.serve.tokens import TextTokens

_MOST_HEADERS = 32 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What is served: the model's name and tokens, how the engine is opened, and how many requests may wait.

    `ready` is called with the address once the server listens.
    """

    model: str
    tokens: TextTokens
    vocab: int
    most_waiting: int
    open_engine: Callable[[], ServingEngine]
    ready: Callable[[str], None]


def serve(served: Served, settings: ServerSettings, api_key: bytes | None, bound: socket.socket) -> None:
    """Open the engine, answer on the socket until SIGINT or SIGTERM, then end within the settings' time.

    Raises what opening the engine raises, and OSError where the socket cannot listen.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(served, settings, api_key, bound))
    except KeyboardInterrupt:  # uvicorn raises the signal again once all has ended
        pass
    finally:
        bound.close()


async def _serve(served: Served, settings: ServerSettings, api_key: bytes | None, bound: socket.socket) -> None:
    async with running(served, settings, api_key) as app:
        await HttpServer(app, settings, served.ready).serve(sockets=[bound])


@asynccontextmanager
async def running(served: Served, settings: ServerSettings, api_key: bytes | None) -> AsyncIterator[Starlette]:
    """The application with its engine open."""
    engine = EngineThread(served.open_engine)
    await engine.start()
    backend = Backend(
        engine=engine,
        tokens=served.tokens,
        model=served.model,
        limits=Limits(answers=served.most_waiting, positions=engine.max_positions, vocab=served.vocab),
        buffered_tokens=settings.buffered_tokens,
        metrics=Metrics(engine),
    )
    api = make_api(backend, settings, api_key)
    try:
        yield api.app()
    finally:
        api.encoding.shutdown(wait=False, cancel_futures=True)
        await engine.stop()


class HttpServer(uvicorn.Server):
    """The HTTP server of an application. It ends by signals to the main thread, or by `should_exit`."""

    def __init__(self, app: Starlette, settings: ServerSettings, ready: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=_MOST_HEADERS,
            timeout_graceful_shutdown=settings.drain_s,
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Raises OSError where the address was taken meanwhile."""
        await super().startup(sockets)
        for one in sockets or []:
            host, port = one.getsockname()[:2]
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")
