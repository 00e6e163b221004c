"""Errors of the API, in the format of OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

RETRY_AFTER_S = 1


class ApiError(Exception):
    """An answer with this status; `param` names the field that is wrong, `code` says for programs what."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def content(self) -> dict[str, object]:
        """The body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The answer."""
        return json_response(self.content, self.status, _HEADERS.get(self.status))


_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},
    408: {"Connection": "close"},
    429: {"Retry-After": str(RETRY_AFTER_S)},
    503: {"Retry-After": str(RETRY_AFTER_S)},
}


def unsupported(name: str, why: str) -> ApiError:
    """For a field that the server knows and cannot honour."""
    return ApiError(400, f"{name}: {why}", name, "unsupported_parameter")


def invalid(name: str | None, why: str) -> ApiError:
    """For a field whose value is wrong."""
    return ApiError(400, why if name is None else f"{name}: {why}", name, "invalid_value")


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")
