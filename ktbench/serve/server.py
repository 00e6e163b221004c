"""Runs the API until a signal asks it to end."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ktbench.engine.serving.requests import ServingEngine
from ktbench.serve.answering import ServerContext
from ktbench.serve.app import make_api
from ktbench.serve.driver import EngineThread
from ktbench.serve.job import Limits
from ktbench.serve.metrics import Metrics
from ktbench.serve.settings import ServerSettings
from ktbench.serve.tokens import TextTokens

_LOG = logging.getLogger("ktbench.serve")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOST_HEADERS = 32 << 10
_WAITING_TO_CONNECT, _ACCEPTED_AT_ONCE = 2048, 4
_MOST_CONNECTIONS, _LEAST_CONNECTIONS = 4096, 8
# Pages of the prefix cache, a log, and connections that are accepted while those before them are not yet counted, which
# takes the event loop a few turns.
_OWN_FILES = 40
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
    asyncio.get_running_loop().set_exception_handler(_Errors())
    async with running(served, settings, api_key) as server:
        await server.serve(sockets=[bound])


class _Errors:
    """Logs errors of the event loop, and once a minute that no file is left for a connection, which is tried often."""

    def __init__(self) -> None:
        self._silent_until_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif loop.time() >= self._silent_until_s:
            self._silent_until_s = loop.time() + 60
            _LOG.warning("no connection can be accepted: %s (raise `ulimit -n`)", error.strerror)


@asynccontextmanager
async def running(served: Served, settings: ServerSettings, api_key: bytes | None) -> AsyncIterator[HttpServer]:
    """The server of an engine that is open."""
    engine = EngineThread(served.open_engine)
    await engine.start()
    context = ServerContext(
        engine=engine,
        tokens=served.tokens,
        model=served.model,
        alias=settings.alias,
        limits=Limits(answers=served.most_waiting, positions=engine.max_positions, vocab=served.vocab),
        buffered_tokens=settings.buffered_tokens,
        metrics=Metrics(engine, served.model),
    )
    api = make_api(context, settings, api_key)
    try:
        yield HttpServer(api.app(), settings, engine, served.ready)
    finally:
        api.encoding.shutdown(wait=False, cancel_futures=True)
        await engine.stop()


class Connection(H11Protocol):
    """A connection that is closed where the head of a request does not come within `stall_s` seconds.

    Beyond `most` connections the one that has waited longest for a head makes room.
    """

    def __init__(self, *args: Any, stall_s: float, most: int, **named: Any) -> None:
        super().__init__(*args, **named)
        self._stall_s, self._most = stall_s, most
        self._began_s = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether there is no request to answer."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._watch()
        opened = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and not connection.transport.is_closing()
        ]
        if len(opened) > self._most:
            min((one for one in opened if one.waits), key=lambda one: one._began_s).transport.abort()

    def data_received(self, data: bytes) -> None:
        """A part of a head or a body has come."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """One deadline for a whole head, however its parts come."""
        if not self.waits:
            self._unwatch()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._stall_s, self.transport.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _most_connections() -> int:
    """As many as the process may still open files, without some that it needs for itself."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(_LEAST_CONNECTIONS, min(_MOST_CONNECTIONS, limit - opened - _OWN_FILES))


class HttpServer(uvicorn.Server):
    """The HTTP server of an application. It ends by signals to the main thread, or by `should_exit`."""

    def __init__(
        self, app: Starlette, settings: ServerSettings, engine: EngineThread, ready: Callable[[str], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            http=partial(Connection, stall_s=settings.stall_s, most=_most_connections()),  # type: ignore[arg-type]
            backlog=_ACCEPTED_AT_ONCE,
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
            one.listen(_WAITING_TO_CONNECT)  # asyncio's own number is also that of those which it accepts at once
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
