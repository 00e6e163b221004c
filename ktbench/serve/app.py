"""The HTTP API: endpoints, and what every request has to pass."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ktbench.serve.answering import ClientGone, ServerContext, cancel_on_disconnect, respond
from ktbench.serve.errors import ApiError, json_response
from ktbench.serve.fields import Chat, Completion, parse
from ktbench.serve.formats import ChatFormat, Format, TextFormat
from ktbench.serve.job import Asked, Limits, asked_chat, asked_completion, require_room
from ktbench.serve.settings import ServerSettings
from ktbench.serve.tokens import TextTokens

_JSON = "application/json"
_GONE = 499  # as nginx logs a client that closed the connection; nobody reads it
_OPEN_PATHS = ("/health",)
_ENCODERS = 4  # threads; a long prompt that is encoded keeps one of them
T = TypeVar("T", Chat, Completion)


@dataclass(frozen=True, slots=True)
class Api:
    """The endpoints of one engine."""

    context: ServerContext
    settings: ServerSettings
    api_key: bytes | None
    encoding: ThreadPoolExecutor
    created: int

    def app(self) -> Starlette:
        """The application. What passes `Gate` reaches the endpoints."""
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
        ]
        handlers = {ApiError: _api_error, HTTPException: _http_error, ClientGone: _gone, ClientDisconnect: _gone}
        app = Starlette(routes=routes, exception_handlers={**handlers, Exception: _failed})  # type: ignore[dict-item]
        app.add_middleware(Gate, api=self, paths=frozenset(route.path for route in routes))
        return app

    async def _chat(self, request: Request) -> Response:
        chat = parse(await self._body(request), Chat, self._most_items)
        return await self._answered(request, chat, asked_chat, ChatFormat)

    async def _completion(self, request: Request) -> Response:
        completion = parse(await self._body(request), Completion, self._most_items)
        return await self._answered(request, completion, asked_completion, TextFormat)

    async def _answered(
        self,
        request: Request,
        fields: T,
        read: Callable[[T, TextTokens, Limits], Asked],
        kind: Callable[[TextTokens], Format],
    ) -> Response:
        """Texts are encoded beside the event loop, and counted in parts before, between which others are encoded."""
        self._require_model(fields.model)
        context, tokens = self.context, self.context.tokens
        run = partial(asyncio.get_running_loop().run_in_executor, self.encoding)
        asked = await run(read, fields, tokens, context.limits)
        for count in require_room(asked, tokens, context.limits):
            await cancel_on_disconnect(request.receive, run(count))
        return await respond(request, context, await run(asked.make), kind(tokens))

    @property
    def _most_items(self) -> int:
        """Tokens of a prompt, messages of a conversation, or prompts."""
        return max(self.context.limits.positions, self.context.limits.answers)

    async def _models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model_named(name) for name in self._names]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._require_model(name)
        return json_response(self._model_named(name))

    async def _metrics(self, request: Request) -> Response:
        return Response(self.context.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def _health(self, request: Request) -> Response:
        engine = self.context.engine
        if engine.failure is not None:
            return json_response({"status": "failed"}, 503)
        state = engine.snapshot and engine.snapshot.state
        running, waiting = (state.running, state.waiting) if state else (0, 0)
        return json_response({"status": "ok", "running": running, "waiting": waiting})

    @property
    def _names(self) -> tuple[str, ...]:
        """Of the one model that is served."""
        context = self.context
        return (context.model,) if context.alias is None else (context.model, context.alias)

    def _model_named(self, name: str) -> dict[str, object]:
        positions = self.context.limits.positions
        known = {"id": name, "object": "model", "created": self.created, "owned_by": "ktbench"}
        return known | {"max_model_len": positions}

    def _require_model(self, name: str) -> None:
        if name not in self._names:
            why = f"model: {name!r} is not served here, {' or '.join(map(repr, self._names))} is"
            raise ApiError(404, why, "model", "model_not_found")

    async def _body(self, request: Request) -> bytes:
        """The body of a request that says it is JSON. Raises ApiError for one that is too large or comes too slowly.

        Another type of content would let pages of other sites ask without the consent that browsers get for this one.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            raise ApiError(415, f"Content-Type must be {_JSON}", None, "unsupported_media_type")
        try:
            async with asyncio.timeout(self.settings.stall_s):
                return await _read(request, self.settings.max_body_bytes)
        except TimeoutError:
            raise ApiError(408, "the body was not sent in time", None, "timeout") from None


async def _read(request: Request, most: int) -> bytes:
    """The body. One that is too large is read to its end, and not kept: who is still sending does not see an answer.

    A client that asks first whether to send it (RFC 9110, 10.1.1) is told at once.
    """
    error = ApiError(413, f"the body is longer than {most} bytes", None, "body_too_large")
    length = request.headers.get("content-length", "")
    is_larger = length.isdecimal() and int(length[:20]) > most
    if is_larger and request.headers.get("expect", "").lower() == "100-continue":
        raise error
    body = bytearray()
    async for part in request.stream():
        is_larger = is_larger or len(body) + len(part) > most
        if is_larger:
            body.clear()
        else:
            body += part
    if is_larger:
        raise error
    return bytes(body)


class Gate:
    """Counts answers, and refuses requests without the key or, where there is none, under another site's name.

    A page of another site could otherwise have its own name resolved to this machine and read answers (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, api: Api, paths: frozenset[str]) -> None:
        self._app, self._api, self._paths = app, api, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._require(scope["path"], Headers(scope=scope))
        except ApiError as error:
            await error.response()(scope, receive, self._counting(scope, send))
        else:
            await self._app(scope, receive, self._counting(scope, send))

    def _require(self, path: str, headers: Headers) -> None:
        key = self._api.api_key
        if key is None:
            if self._api.settings.is_local and not self._is_own(headers.get("host", "")):
                raise ApiError(403, "Host: without an API key only local names are served", None, "forbidden_host")
        elif path not in _OPEN_PATHS and not _has_key(headers.get("authorization", ""), key):
            raise ApiError(401, "the API key is missing or wrong", None, "invalid_api_key")

    def _is_own(self, host: str) -> bool:
        """Whether a Host names this machine as a server that only it reaches is named."""
        before, colon, port = host.rpartition(":")
        name = (before if colon and port.isdecimal() else host).lower()
        return name in ("localhost", self._api.settings.host.lower()) or _is_loopback(name)

    def _counting(self, scope: Scope, send: Send) -> Send:
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._api.context.metrics.responded(path, message["status"])
            await send(message)

        return counted


def _is_loopback(address: str) -> bool:
    """Whether it is an address, not a name, of this machine alone: pages of other sites have none such."""
    try:
        return ip_address(address.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _has_key(authorization: str, key: bytes) -> bool:
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), key)


async def _api_error(request: Request, error: ApiError) -> Response:
    return error.response()


async def _http_error(request: Request, error: HTTPException) -> Response:
    answer = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()
    answer.headers.update(error.headers or {})
    return answer


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_GONE)


async def _failed(request: Request, error: Exception) -> Response:
    return ApiError(500, "internal error, see the server's log").response()


def make_api(context: ServerContext, settings: ServerSettings, api_key: bytes | None) -> Api:
    """The endpoints; texts are encoded on threads of their own."""
    return Api(context, settings, api_key, ThreadPoolExecutor(_ENCODERS, "encode"), int(time.time()))
