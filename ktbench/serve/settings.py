"""What a server and a chat are started with: `serve.KEY=VALUE` and `chat.KEY=VALUE` of a command line."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ktbench.resources import read_text
from ktbench.spec.errors import RequestError, error_text

_MOST_KEY_BYTES = 4096
_SEND_BUFFER = 128 << 10  # of the kernel for each connection: what a client does not read is not kept without limit


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Where a server listens, who may ask, and what one request may take.

    `port` 0 is any free one. `api_key` says where the key is, `env:NAME` or `file:PATH`; None asks for none. Requests
    may name the model by `alias` as well. A body has at most `max_body_bytes`. A client is cut off that does not send
    the head of a request, or a body, within `stall_s` seconds, that reads nothing for as long, or that leaves
    `buffered_tokens` of each of its answers unread. Running requests have `drain_s` seconds at the end.
    """

    host: Annotated[str, Meta(min_length=1, description="address to listen at")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="0: any free one")] = 8000
    api_key: Annotated[str | None, Meta(description="where the key is: env:NAME or file:PATH")] = None
    alias: Annotated[str | None, Meta(description="a second name of the model, for clients that ask for one")] = None
    max_body_bytes: Annotated[int, Meta(ge=1, description="of a request")] = 8 << 20
    buffered_tokens: Annotated[int, Meta(ge=1, description="unread tokens before a client is cut off")] = 1024
    stall_s: Annotated[float, Meta(ge=0.001, description="seconds without reading or sending")] = 30.0
    drain_s: Annotated[int, Meta(ge=1, description="seconds for running requests at the end")] = 10

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSettings:
    """How a chat answers: `system` is the message before the first one, an answer has at most `max_tokens`."""

    system: Annotated[str | None, Meta(description="message before the first one")] = None
    temperature: Annotated[float, Meta(ge=0, description="0: the likeliest token")] = 0.7
    top_p: Annotated[float, Meta(gt=0, le=1, description="share of the likeliest tokens")] = 1.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100, description="above 1: fewer repetitions")] = 1.0
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="of sampling")] = 0
    max_tokens: Annotated[int, Meta(ge=1, description="of an answer")] = 2048


def read_api_key(source: str | None) -> bytes | None:
    """The key that `env:NAME` or `file:PATH` names. Raises RequestError, without what may be the key itself."""
    if source is None:
        return None
    kind, _, name = source.partition(":")
    if kind not in ("env", "file") or not name:
        raise RequestError("serve.api_key: says where the key is, env:NAME or file:PATH, not what it is")
    return _checked(_from_file(name) if kind == "file" else os.environ.get(name, ""), f"serve.api_key={kind}:{name}")


def _from_file(name: str) -> str:
    try:
        return read_text(name, f"serve.api_key=file:{name}", _MOST_KEY_BYTES)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _checked(text: str, where: str) -> bytes:
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise RequestError(f"{where}: holds no key, which is one line of ASCII characters without spaces")
    return key.encode()


def bind(settings: ServerSettings) -> socket.socket:
    """A socket of this address that does not listen yet. Raises RequestError where there is none to be had."""
    where = f"serve.host={settings.host} serve.port={settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise RequestError(f"{where}: {error_text(error)}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        # The kernel cuts off a client that reads nothing more; connections inherit all this (tcp(7)).
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(1000 * settings.stall_s)))
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise RequestError(f"{where}: {error_text(error)}") from None
    return bound
