"""The thread that drives a serving engine, and the way to it from asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from ktbench.engine.serving.requests import QueueFull, ServeRequest, ServingEngine, ServingState, TokenEvent

_LOG = logging.getLogger("ktbench.serve")
_END_S = 60.0  # for the step that runs when the server ends

# What the thread carries out between two steps; False once it is to end. None stands for an engine that has failed.
_Command = Callable[[ServingEngine | None], bool]


class EngineDown(Exception):
    """The engine has failed and serves nothing more; the text is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Where the engine stood after its last step."""

    state: ServingState
    counters: Mapping[str, int] = field(default_factory=dict)


class Inbox:
    """Events of the requests of one client, at most `most` that it has not taken."""

    def __init__(self, most: int) -> None:
        self._events: deque[TokenEvent] = deque()
        self._most, self._ready = most, asyncio.Event()
        self.is_full = False

    def put(self, event: TokenEvent) -> None:
        """Add an event; one too many and the inbox is full for good, and empty."""
        self.is_full = self.is_full or len(self._events) >= self._most
        if self.is_full:
            self._events.clear()
        else:
            self._events.append(event)
        self._ready.set()

    async def take(self) -> TokenEvent:
        """The next event. Raises TimeoutError where the client was too slow to take them all."""
        while not self._events:
            if self.is_full:
                raise TimeoutError("the answer was not read")
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()


class EngineThread:
    """Runs an engine on a thread of its own, from opening to closing it. All methods are for one event loop."""

    def __init__(self, open_engine: Callable[[], ServingEngine]) -> None:
        self._open = open_engine
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._inboxes: dict[str, Inbox] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._opened: asyncio.Future[int]
        self.max_positions = 0
        self.snapshot: Snapshot | None = None
        self.failure: str | None = None

    async def start(self) -> None:
        """Return once the engine is open. Raises what opening it raises."""
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.create_future()
        self._thread.start()
        self.max_positions = await self._opened

    async def stop(self) -> None:
        """Take back what runs, close the engine and end the thread."""
        self.cancel([*self._inboxes])
        self._commands.put(lambda _: False)
        await asyncio.to_thread(self._thread.join, _END_S)

    async def submit(self, requests: Sequence[ServeRequest], inbox: Inbox) -> None:
        """Queue all of the requests or none; their events go to the inbox.

        Raises QueueFull, ValueError for one that can never run, and EngineDown.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        for request in requests:
            self._inboxes[request.key] = inbox

        def command(engine: ServingEngine | None) -> bool:
            error = EngineDown(self.failure) if engine is None else _submit_all(engine, requests)
            self._loop.call_soon_threadsafe(_settle, done, error)
            return True

        self._commands.put(command)
        try:
            await done
        except BaseException:  # the client may have gone meanwhile
            self.cancel([request.key for request in requests])
            raise

    def cancel(self, keys: Iterable[str]) -> None:
        """Take requests back; those that have ended are left alone."""
        found = [key for key in keys if self._inboxes.pop(key, None) is not None]
        if found:
            self._commands.put(lambda engine: _cancel_all(engine, found))

    def end_all(self, why: str) -> None:
        """Take back all requests; their answers end by that."""
        inboxes = dict(self._inboxes)
        self.cancel(inboxes)
        for key, inbox in inboxes.items():
            inbox.put(TokenEvent(key=key, token=None, finish="cancelled", why=why))

    def _run(self) -> None:
        try:
            engine = self._open()
        except BaseException as error:  # whatever it is, the server is told
            self._loop.call_soon_threadsafe(self._opened.set_exception, error)
            return
        self._loop.call_soon_threadsafe(self._opened.set_result, engine.max_positions)
        try:
            self._serve(engine)
        except Exception as error:
            _LOG.exception("the engine has failed")
            self.failure = f"{type(error).__name__}: {error}"
            self._loop.call_soon_threadsafe(self._fail, self.failure)
            while self._commands.get()(None):
                pass
        finally:
            engine.close()

    def _serve(self, engine: ServingEngine) -> None:
        self._keep_snapshot(engine)
        while self._carry_out(engine):
            events = engine.step()
            self._keep_snapshot(engine)  # before anyone who has got his answer can ask for it
            if events:
                self._loop.call_soon_threadsafe(self._deliver, events)

    def _keep_snapshot(self, engine: ServingEngine) -> None:
        self.snapshot = Snapshot(state=engine.state, counters=dict(engine.counters()))

    def _carry_out(self, engine: ServingEngine) -> bool:
        """Carry out all commands, waiting for some while there is nothing to do. False once it is to end."""
        while True:
            state = engine.state
            try:
                command = self._commands.get(block=not (state.running or state.waiting))
            except Empty:
                return True
            if not command(engine):
                return False
            self._keep_snapshot(engine)

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            inbox = self._inboxes.get(event.key)
            if inbox is None:
                continue
            inbox.put(event)
            if event.finish is not None:
                del self._inboxes[event.key]
            elif inbox.is_full:
                self.cancel([key for key, one in self._inboxes.items() if one is inbox])

    def _fail(self, why: str) -> None:
        """All that waits or runs ends by an error."""
        inboxes, self._inboxes = self._inboxes, {}
        for key, inbox in inboxes.items():
            inbox.put(TokenEvent(key=key, token=None, finish="error", why=why))


def _submit_all(engine: ServingEngine, requests: Sequence[ServeRequest]) -> Exception | None:
    """None once all are queued, else why none is."""
    for number, one in enumerate(requests):
        try:
            engine.submit(one)
        except (QueueFull, ValueError) as error:
            for queued in requests[:number]:
                engine.cancel(queued.key)
            return error
    return None


def _cancel_all(engine: ServingEngine | None, keys: Iterable[str]) -> bool:
    for key in keys:
        if engine is not None:
            engine.cancel(key)
    return True


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # the client has gone
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
