"""A serving engine of scripted answers, and a server of it in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import msgspec

from ktbench.engine.serving.requests import QueueFull, ServeRequest, ServingEngine, ServingState, TokenEvent, Top
from ktbench.serve.server import Served, running
from ktbench.serve.settings import ServerSettings, bind
from ktbench.serve.tokens import TextTokens

PAGE, VOCAB, POSITIONS = 16, 272, 4096
Script = Callable[[ServeRequest], list[int]]


def repeated(request: ServeRequest) -> list[int]:
    """The prompt again and again, without what begins it."""
    body = [one for one in request.prompt if one < 256] or [ord("x")]
    return (body * (request.max_new // len(body) + 1))[: request.max_new]


def logprob(token: int) -> float:
    return -0.5 - token / 1000


def top(token: int, count: int) -> Top:
    return tuple((one, logprob(one)) for one in range(token, token + count))


@dataclass
class Running:
    request: ServeRequest
    tokens: list[int]
    at: int = 0


@dataclass
class FakeEngine:
    """Gives every running request a token a step, `delay_s` later; fails in step `fails_at`."""

    script: Script = repeated
    delay_s: float = 0.0
    most_running: int = 4
    most_waiting: int = 8
    pages: int = 4096
    fails_at: int | None = None
    steps: int = 0
    closed: bool = False
    waiting: dict[str, Running] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    seen: list[ServeRequest] = field(default_factory=list)
    max_positions: int = POSITIONS

    def submit(self, request: ServeRequest) -> None:
        if len(self.waiting) >= self.most_waiting:
            raise QueueFull(f"{self.most_waiting} wait already")
        if request.prompt[0] == 13:
            raise ValueError("a prompt that begins with 13 can never run")
        self.seen.append(request)
        del self.seen[:-64]
        self.waiting[request.key] = Running(request, self.script(request))

    def cancel(self, key: str) -> None:
        self.waiting.pop(key, None)
        self.running.pop(key, None)

    def step(self) -> list[TokenEvent]:
        self.steps += 1
        if self.steps == self.fails_at:
            raise RuntimeError("the device is gone")
        while self.waiting and len(self.running) < self.most_running:
            key = next(iter(self.waiting))
            self.running[key] = self.waiting.pop(key)
        time.sleep(self.delay_s)
        return [self._event(key, one) for key, one in list(self.running.items())]

    def _event(self, key: str, one: Running) -> TokenEvent:
        request, token = one.request, one.tokens[one.at]
        one.at += 1
        ends = token in request.stop_ids
        last = ends or one.at == min(request.max_new, len(one.tokens))
        if last:
            del self.running[key]
        asked = request.logprobs is not None
        before = request.prompt[1:] if request.prompt_logprobs and one.at == 1 else ()
        count = request.logprobs or 0
        return TokenEvent(
            key=key,
            token=token,
            finish=None if not last else "stop" if ends else "length",
            logprob=logprob(token) if asked else None,
            top=top(token, count) if asked else (),
            cached_tokens=len(request.prompt) // 2,
            prompt_logprobs=tuple((logprob(one), top(one, count)) for one in before),
        )

    @property
    def state(self) -> ServingState:
        used = sum(1 + (len(one.request.prompt) + one.at) // PAGE for one in self.running.values())
        return ServingState(
            waiting=len(self.waiting),
            running=len(self.running),
            pages=self.pages,
            free_pages=self.pages - used,
            cached_pages=0,
            page_tokens=PAGE,
        )

    def counters(self) -> Mapping[str, int]:
        return {"steps": self.steps}

    def close(self) -> None:
        self.closed = True


@dataclass
class Answered:
    """A response: its status, headers and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of the body, in OpenAI's format."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        found: dict[str, Any] = self.json["error"]
        return found


@dataclass
class Server:
    """A server of a fake engine."""

    port: int
    engine: FakeEngine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answered:
        """One request; a body that is not bytes is sent as JSON."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        raw = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        sent = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, path, raw, {**sent, **(headers or {})})
            got = connection.getresponse()
            return Answered(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        finally:
            connection.close()

    def complete(self, prompt: object = "hi", **fields: object) -> Answered:
        asked = {"model": "nano", "prompt": prompt, "temperature": 0, **fields}
        return self.ask("POST", "/v1/completions", asked)

    def chat(self, text: str = "hi", **fields: object) -> Answered:
        messages = [{"role": "user", "content": text}]
        return self.ask("POST", "/v1/chat/completions", {"model": "nano", "messages": messages, **fields})

    def open_stream(
        self, max_tokens: int = POSITIONS - 10, buffer: int | None = None, **fields: object
    ) -> socket.socket:
        """A connection whose answer has begun to stream; `buffer` is that of the kernel for what is not read."""
        asked = {"model": "nano", "prompt": "hi", "max_tokens": max_tokens, "stream": True, **fields}
        raw = msgspec.json.encode(asked)
        client = socket.socket()
        if buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.settimeout(30)
        client.connect(("127.0.0.1", self.port))
        client.sendall(post(len(raw)) + raw)
        assert client.recv(12) == b"HTTP/1.1 200"
        return client


def post(length: int, *headers: str) -> bytes:
    """The head of a request whose body has so many bytes."""
    fields = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {length}", *headers)
    return "\r\n".join(["POST /v1/completions HTTP/1.1", *fields, "", ""]).encode()


def events(answered: Answered) -> list[Any]:
    """The chunks of a stream, which has to end as OpenAI's do."""
    lines = answered.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]


@contextmanager
def serving(
    tokens: TextTokens,
    engine: FakeEngine,
    api_key: bytes | None = None,
    real: Callable[[], ServingEngine] | None = None,
    vocab: int = VOCAB,
    **settings: Any,
) -> Iterator[Server]:
    """A server of the engine or, where one is opened by that, of a `real` one; it ends as by a signal."""
    ended: list[BaseException] = []
    listening = threading.Event()
    chosen = ServerSettings(port=0, **{"drain_s": 1, **settings})
    bound = bind(chosen)
    served = Served(
        model="nano",
        tokens=tokens,
        vocab=vocab,
        most_waiting=engine.most_waiting,
        open_engine=real or (lambda: engine),
        ready=lambda url: listening.set(),
    )
    found: dict[str, Any] = {}

    async def run() -> None:
        async with running(served, chosen, api_key) as server:
            found["server"] = server
            await server.serve(sockets=[bound])

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    assert listening.wait(30), ended
    try:
        yield Server(bound.getsockname()[1], engine)
    finally:
        found["server"].should_exit = True
        thread.join(30)
        bound.close()
    assert not thread.is_alive()
    assert not ended
    assert engine.closed or real
