"""A running server with an OpenAI-compatible API, such as vLLM's, SGLang's or KTransformers': requests over HTTP.

Prompts are token ids (`/v1/completions`). Answers must have the drawn lengths, so `ignore_eos` is requested. If the
server returns token ids (`return_token_ids`), they are the tokens of a piece of text; otherwise a piece counts as one
token, and additional tokens in its `usage` are counted with the last piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4
from zlib import crc32

from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.serving.requests import ServeRequest, ServingState, TokenEvent
from ktbench.spec.run_spec import RunSpec

_CONNECT_S = 10.0
_ANSWER_S = 600.0
_POLL_S = 0.01  # arrivals are noticed after at most this long
_MOST_LINE = 1 << 24
_NO_SUCCESS = 300


def open_serving(specs: Sequence[RunSpec], host: HostRole) -> OpenAIServing:
    """The server at `peer.url`. Raises Unsupported if it does not answer, or serves no model of that name."""
    spec = specs[0]
    assert spec.peer.url is not None
    server = Server.at(spec.peer.url)
    # As many positions as the model supports; the server rejects longer requests.
    return OpenAIServing(server, spec.peer.served_model or server.first_model(), spec.model.shape.positions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The address of a server; `path` precedes `/completions`."""

    host: str
    port: int | None
    path: str
    encrypted: bool

    @classmethod
    def at(cls, url: str) -> Server:
        """From `http://host:port`, with or without `/v1`. Raises Unsupported for other addresses."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise Unsupported(f"peer.url={url}: the port is no number") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Unsupported(f"peer.url={url}: must be http://HOST:PORT or https://HOST")
        return cls(
            host=parts.hostname, port=port, path=parts.path.rstrip("/") or "/v1", encrypted=parts.scheme == "https"
        )

    @property
    def url(self) -> str:
        """The address for messages."""
        port = "" if self.port is None else f":{self.port}"
        return f"http{'s' if self.encrypted else ''}://{self.host}{port}{self.path}"

    def first_model(self) -> str:
        """The first of the models that it serves. Raises Unsupported."""
        try:
            with self.request("GET", "/models", None, _CONNECT_S) as response:
                model = json.loads(response.read(_MOST_LINE))["data"][0]["id"]
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            raise Unsupported(f"peer.url={self.url}: names no model at /models ({_short(error)})") from None
        return str(model)

    @contextmanager
    def request(self, method: str, path: str, content: Any, timeout_s: float) -> Iterator[HTTPResponse]:
        """The answer to a request. Raises HTTPException, and OSError, also for a status other than success."""
        kind = HTTPSConnection if self.encrypted else HTTPConnection
        connection = kind(self.host, self.port, timeout=timeout_s)
        body = None if content is None else json.dumps(content).encode()
        with closing(connection):
            connection.request(method, f"{self.path}{path}", body, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                if response.status >= _NO_SUCCESS:
                    raise OSError(f"status {response.status}: {_short(response.read(1000).decode(errors='replace'))}")
                yield response


class OpenAIServing:
    """Implements `ServingEngine`. A thread reads each answer; a step waits for the next piece of any."""

    def __init__(self, server: Server, model: str, max_positions: int) -> None:
        self._server, self._model, self.max_positions = server, model, max_positions
        self._salt = uuid4().hex  # hides other replays in vLLM's prefix cache
        self._events: SimpleQueue[TokenEvent] = SimpleQueue()
        self._running: set[str] = set()

    def submit(self, request: ServeRequest) -> None:
        """See `ServingEngine`; the server has its own queue."""
        self._running.add(request.key)
        Thread(target=self._answer, args=(request,), daemon=True).start()

    def cancel(self, key: str) -> None:
        """Ignore the rest of an answer."""
        self._running.discard(key)

    def step(self) -> list[TokenEvent]:
        """See `ServingEngine`: empty if nothing arrives for a while."""
        try:
            events = [self._events.get(timeout=_POLL_S)]
        except Empty:
            return []
        while not self._events.empty():
            events.append(self._events.get())
        kept = [event for event in events if event.key in self._running]
        self._running -= {event.key for event in kept if event.finish is not None}
        return kept

    @property
    def state(self) -> ServingState:
        """The server does not say which requests wait: all sent ones count as running."""
        return ServingState(waiting=0, running=len(self._running), pages=0, free_pages=0, cached_pages=0, page_tokens=1)

    def counters(self) -> Mapping[str, int]:
        """None."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """The server keeps running."""
        self._running.clear()

    def _answer(self, request: ServeRequest) -> None:
        """Read an answer to its end; a failure ends it."""
        try:
            with self._server.request("POST", "/completions", self._content(request), _ANSWER_S) as response:
                for event in events_of(request, _messages(response)):
                    self._events.put(event)
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            self._events.put(TokenEvent(key=request.key, token=None, finish="error", why=_short(error)))

    def _content(self, request: ServeRequest) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_new,
            "temperature": request.sampling.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,  # vLLM, SGLang, llama.cpp
            "return_token_ids": True,  # vLLM
            "cache_salt": self._salt,  # vLLM
            "cache_prompt": False,  # llama.cpp
        }


def events_of(request: ServeRequest, messages: Iterator[Mapping[str, Any]]) -> Iterator[TokenEvent]:
    """The tokens of an answer, each as soon as its message arrives, then its end without a token.

    Raises ValueError for an answer without a token or without an end.
    """
    count, finish, cached = 0, None, 0
    last: int | None = None
    for message in messages:
        usage = message.get("usage") or {}
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or cached)
        count_said = int(usage.get("completion_tokens") or 0)
        for choice in message.get("choices") or ():
            for last in _tokens(choice):
                count += 1
                yield TokenEvent(key=request.key, token=last)
            finish = choice.get("finish_reason") or finish
        is_last = finish is not None or not message.get("choices")
        if last is not None and is_last and count_said > count:
            for _ in range(count_said - count):  # came in pieces of several tokens
                yield TokenEvent(key=request.key, token=last)
            count = count_said
    if last is None:
        raise ValueError("the answer has no tokens")
    if finish is None:
        raise ValueError(f"the answer broke off after {count} of {request.max_new} tokens")
    ended = "stop" if finish == "stop" and count < request.max_new else "length"
    yield TokenEvent(key=request.key, token=None, finish=ended, cached_tokens=cached)  # type: ignore[arg-type]


def _tokens(choice: Mapping[str, Any]) -> Sequence[int]:
    """Token ids of a piece; a single one that stands for its text if there are none."""
    ids = choice.get("token_ids")
    if ids:
        return [int(token) for token in ids]
    text = choice.get("text")
    return [crc32(text.encode()) & 0x7FFFFFFF] if text else []


def _messages(response: HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """The messages of a stream of server-sent events (WHATWG HTML, section 9.2), to `[DONE]`."""
    while line := response.readline(_MOST_LINE):
        field, _, value = line.decode().partition(":")
        if field != "data":
            continue
        if value.strip() == "[DONE]":
            return
        message = json.loads(value)
        if message.get("error"):
            raise ValueError(f"the server reports {message['error']}")
        yield message


def _short(what: object) -> str:
    return " ".join(str(what).split())[:200] or type(what).__name__
