"""What a server and a chat are started with: `serve.KEY=VALUE` and `chat.KEY=VALUE` of a command line."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import msgspec

from ktbench.resources import read_text
from ktbench.spec.errors import RequestError, error_text, instead, number_at_least

_MOST_KEY_BYTES = 4096
_SEND_BUFFER = 128 << 10  # of the kernel for each connection: what a client does not read is not kept without limit
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Where a server listens, who may ask, and what one request may take.

    `port` 0 is any free one. `api_key` says where the key is, `env:NAME` or `file:PATH`; None asks for none. Requests
    may name the model by `alias` as well. A body has at most `max_body_bytes`. A client is cut off that does not send
    the head of a request, or a body, within `stall_s` seconds, that reads nothing for as long, or that leaves
    `buffered_tokens` of each of its answers unread. Running requests have `drain_s` seconds at the end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    alias: str | None = None
    max_body_bytes: int = 8 << 20
    buffered_tokens: int = 1024
    stall_s: float = 30.0
    drain_s: int = 10

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("serve.host: is empty, name an address such as 127.0.0.1")
        if self.alias == "":
            raise ValueError("serve.alias: is empty, name what requests may call the model")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"serve.port={self.port}: allowed are 0 to 65535")
        for name, least in (("max_body_bytes", 1), ("buffered_tokens", 1), ("stall_s", 0.001), ("drain_s", 1)):
            number_at_least(f"serve.{name}", getattr(self, name), least)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSettings:
    """How a chat answers: `system` is the message before the first one, an answer has at most `max_tokens`."""

    system: str | None = None
    temperature: float = 0.7
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    max_tokens: int = 2048

    def __post_init__(self) -> None:
        number_at_least("chat.temperature", self.temperature, 0)
        number_at_least("chat.max_tokens", self.max_tokens, 1)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"chat.top_p={self.top_p}: allowed are values above 0 up to 1")
        if not 0 < self.repetition_penalty <= 100:
            raise ValueError(f"chat.repetition_penalty={self.repetition_penalty}: allowed are values above 0 up to 100")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"chat.seed={self.seed}: allowed are 0 to 2**63 - 1")


def take_settings(verb: str, words: Sequence[str], kind: type[T]) -> tuple[list[str], T]:
    """The words that are not `VERB.KEY=VALUE`, and the settings of those that are. Raises RequestError.

    Values are not repeated in errors about types: one may be a key that was meant to be secret.
    """
    own, given = f"{verb}.", dict[str, str]()
    for word in words:
        if word.startswith(own):
            key, _, value = word.removeprefix(own).partition("=")
            if key in given:
                raise RequestError(f"{own}{key}: is given twice")
            given[key] = value
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if unknown := next((key for key in given if key not in names), None):
        raise RequestError(f"{own}{unknown}: unknown key{instead(unknown, names)}")
    return [word for word in words if not word.startswith(own)], _converted(own, given, kind)


def _converted(own: str, given: dict[str, str], kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ValueError):
            raise RequestError(str(error.__cause__)) from None
        what, _, where = str(error).replace("`", "").partition(" - at $.")
        raise RequestError(f"{own}{where}: {what[0].lower()}{what[1:]}") from None


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
