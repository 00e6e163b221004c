"""One HTTP request from its job to its last byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ktbench.engine.serving.requests import QueueFull
from ktbench.serve.answer import Delta, EngineFailed
from ktbench.serve.driver import EngineDown, EngineThread, Inbox
from ktbench.serve.errors import ApiError, json_response
from ktbench.serve.formats import Format
from ktbench.serve.job import Job, Limits
from ktbench.serve.metrics import Metrics
from ktbench.serve.tokens import TextTokens

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerContext:
    """What answers: the engine, the tokens of its model, and the limits of a request.

    Requests name the `model`, or its `alias`.
    """

    engine: EngineThread
    tokens: TextTokens
    model: str
    alias: str | None
    limits: Limits
    buffered_tokens: int
    metrics: Metrics


class Answering:
    """The answers to a job, from `start` to `close`."""

    def __init__(self, context: ServerContext, job: Job, written: Format) -> None:
        self.id = f"{written.prefix}-{uuid4().hex}"
        self._context, self._job, self._format = context, job, written
        self._requests = job.requests(self.id, context.limits)
        self._answers = job.answers(context.tokens)
        self._index = {one.key: index for index, one in enumerate(self._requests)}
        self._open = set(self._index)
        self._inbox = Inbox(context.buffered_tokens * len(self._requests))
        self._created, self._began_s, self._last_s = int(time.time()), time.monotonic(), 0.0

    async def start(self) -> None:
        """Queue all requests of the job. Raises ApiError where the engine does not take them."""
        try:
            await self._context.engine.submit(self._requests, self._inbox)
        except QueueFull as error:
            raise ApiError(429, f"too many requests: {error}", None, "queue_full") from None
        except ValueError as error:
            raise ApiError(400, str(error), None, "invalid_value") from None
        except EngineDown as error:
            raise ApiError(503, f"the engine has failed: {error}", None, "engine_failed") from None

    def close(self) -> None:
        """Take back what has not ended, and count what was done."""
        self._context.engine.cancel(self._open)
        self._context.metrics.answered(self._job.prompt_tokens, self._new_tokens, self._cached_tokens)

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """What is added to which answer, until all have ended. Raises ApiError where the engine fails."""
        while self._open:
            event = await self._inbox.take()
            if event.key not in self._open:  # ended by a stop string, which the engine does not know
                continue
            index = self._index[event.key]
            try:
                delta = self._answers[index].add(event)
            except EngineFailed as error:
                raise _ended(event.finish, str(error)) from None
            self._time()
            if delta.finish is not None:
                self._open.discard(event.key)
                self._context.metrics.ended(delta.finish, self._last_s - self._began_s)
                if event.finish is None:
                    self._context.engine.cancel([event.key])
            if not delta.is_empty:
                yield index, delta

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        found: list[list[Delta]] = [[] for _ in self._requests]
        async for index, delta in self.deltas():
            found[index].append(delta)
        choices = [self._format.choice(index, each, self._job.logprobs) for index, each in enumerate(found)]
        return self._body(self._format.whole, choices, usage=True)

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The bodies of the events of an answer that is streamed."""
        firsts = [one for index in range(len(self._requests)) if (one := self._format.first(index)) is not None]
        for choice in firsts:
            yield self._chunk([choice])
        async for index, delta in self.deltas():
            yield self._chunk([self._format.part(index, delta, self._job.logprobs)])
        if self._job.usage_last:
            yield self._body(self._format.chunk, [], usage=True)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        body = self._body(self._format.chunk, choices, usage=self._job.usage_always)
        return body | {"usage": None} if self._job.usage_last and not self._job.usage_always else body

    def _body(self, kind: str, choices: list[dict[str, Any]], *, usage: bool) -> dict[str, Any]:
        body = {"id": self.id, "object": kind, "created": self._created, "model": self._context.model}
        return body | {"choices": choices} | ({"usage": self._usage()} if usage else {})

    def _usage(self) -> dict[str, Any]:
        prompt, new = self._job.prompt_tokens, self._new_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    @property
    def _new_tokens(self) -> int:
        return sum(answer.count for answer in self._answers)

    @property
    def _cached_tokens(self) -> int:
        """Of each prompt those that its first answer found in the prefix cache."""
        return sum(answer.cached_tokens for answer in self._answers[:: self._job.n])

    def _time(self) -> None:
        """Observe the time to the first token, and between tokens of all answers of the request."""
        now_s, metrics = time.monotonic(), self._context.metrics
        if self._last_s == 0:
            metrics.first_token_s.observe(now_s - self._began_s)
        else:
            metrics.between_tokens_s.observe(now_s - self._last_s)
        self._last_s = now_s


def _ended(finish: str | None, why: str) -> ApiError:
    """An answer that was taken back, which one that asks again may get, or ended by an error of the engine."""
    if finish == "cancelled":
        return ApiError(503, why, None, "cancelled")
    return ApiError(500, f"the engine ended the answer: {why}", None, "engine_failed")


async def respond(request: Request, context: ServerContext, job: Job, written: Format) -> Response:
    """The answer to a request: whole, or a stream that begins once the engine has taken the job. Raises ApiError."""
    answering = Answering(context, job, written)
    headers = {"x-request-id": answering.id}
    await cancel_on_disconnect(request.receive, answering.start())
    if job.stream:
        return EventStream(answering, headers)
    try:
        return json_response(await cancel_on_disconnect(request.receive, answering.whole()), headers=headers)
    except TimeoutError as error:
        raise ApiError(503, str(error)) from None
    finally:
        answering.close()


class EventStream(Response):
    """The chunks of an answer as server-sent events. The request is taken back where the client goes."""

    media_type = "text/event-stream"

    def __init__(self, answering: Answering, headers: dict[str, str]) -> None:
        self.status_code, self.body, self.background = 200, b"", None
        self._answering = answering
        self.init_headers({**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all, or as much as the client takes."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(ClientGone):
                await cancel_on_disconnect(receive, self._send_all(send))
        finally:
            self._answering.close()

    async def _send_all(self, send: Send) -> None:
        try:
            async for chunk in self._answering.chunks():
                await send(_event(msgspec.json.encode(chunk)))
        except ApiError as error:
            await send(_event(msgspec.json.encode(error.content)))
        except TimeoutError as error:
            await send(_event(msgspec.json.encode(ApiError(408, str(error), None, "slow_reader").content)))
        await send(_event(b"[DONE]"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True}


async def cancel_on_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """The result of the work, which is cancelled once the client has gone. Raises ClientGone, and what the work raises.

    The body of the request has to be read before.
    """
    doing, watching = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone
        return doing.result()
    finally:
        await _cancelled(doing, watching)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
