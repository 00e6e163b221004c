"""Runs the API until a signal asks it to end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOST_HEADERS = 32 << 10
_GRACE_S = 2  # for answers that were taken back to be sent as such


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
    with bound:
        asyncio.run(_serve(served, settings, api_key, bound))


async def _serve(served: Served, settings: ServerSettings, api_key: bytes | None, bound: socket.socket) -> None:
    async with running(served, settings, api_key) as server:
        await server.serve(sockets=[bound])


@asynccontextmanager
async def running(served: Served, settings: ServerSettings, api_key: bytes | None) -> AsyncIterator[HttpServer]:
    """The server of an engine that is open."""
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
        yield HttpServer(api.app(), settings, engine, served.ready)
    finally:
        api.encoding.shutdown(wait=False, cancel_futures=True)
        await engine.stop()


class HttpServer(uvicorn.Server):
    """The HTTP server of an application. It ends by signals to the main thread, or by `should_exit`."""

    def __init__(
        self, app: Starlette, settings: ServerSettings, engine: EngineThread, ready: Callable[[str], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=_MOST_HEADERS,
            timeout_graceful_shutdown=settings.drain_s + _GRACE_S,
        )
        super().__init__(config)
        self._ready, self._engine, self._drain_s = ready, engine, settings.drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Raises OSError where the address was taken meanwhile."""
        await super().startup(sockets)
        for one in sockets or []:
            host, port = one.getsockname()[:2]
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, let answers end, and take back those that last too long."""
        asyncio.get_running_loop().call_later(self._drain_s, self._engine.end_all, "the server ends")
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Inside, signals have the server end. Unlike uvicorn they are not raised again then: all has gone well."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {one: signal.signal(one, self.handle_exit) for one in _SIGNALS if is_main}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
