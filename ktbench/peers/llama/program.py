"""Programs of a llama.cpp build as children of a worker, which end with it."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from threading import Thread
from time import monotonic, sleep

from ktbench.engine.protocol import Unsupported
from ktbench.peers.openai import Server

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_STANDARD_ERROR = 2
_HERE = "127.0.0.1"
_POLL_S, _ANSWER_S = 0.05, 10.0
_LAST_LINES = 4
# Time to read the last output after the process has ended.
_READ_S = 1.0
# Environment settings, which a user may have made for another server. Without this one, served prompts are kept in
# memory even if no request asks for it; older programs lack the option and ignore the variable.
_SETTINGS, _OWN_SETTINGS = "LLAMA_ARG_", {"LLAMA_ARG_CACHE_RAM": "0"}


def tie_to_parent() -> Callable[[], None]:
    """A pre-exec function for `subprocess`, which makes the kernel end the child with this process (Linux, prctl(2)).

    Otherwise the child would keep every core busy during the next timing.
    """
    return partial(_tie, os.getpid())


def _tie(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class RunningServer:
    """llama-server on a free port of this machine; ends with this process. Its output goes to standard error.

    Raises Unsupported for a program that cannot be run.
    """

    def __init__(self, command: Sequence[str]) -> None:
        port = _free_port()
        self.address = Server(host=_HERE, port=port, path="/v1", encrypted=False)
        others = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
        try:
            self._process = subprocess.Popen(
                [*command, "--host", _HERE, "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=others | _OWN_SETTINGS,
                start_new_session=True,
                preexec_fn=tie_to_parent(),  # noqa: PLW1509, one call of the C library
            )
        except OSError as error:
            raise Unsupported(f"{command[0]}: cannot be run: {error.strerror}") from None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        atexit.register(self.end)

    def wait_ready(self, limit_s: float) -> None:
        """Raises Unsupported if it ends, or does not report within `limit_s` seconds that it is ready."""
        ends_s = monotonic() + limit_s
        while not self._is_ready(min(_ANSWER_S, max(_POLL_S, ends_s - monotonic()))):
            if monotonic() > ends_s:
                raise Unsupported(f"llama-server is not ready after {limit_s:.3g} s: {self._said()}")
            sleep(_POLL_S)
            if why := self.ending():
                raise Unsupported(why)

    def ending(self, grace_s: float = 0.0) -> str:
        """How it has ended, with its last lines; empty if it still runs after `grace_s` seconds."""
        try:
            code = self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return ""
        self._reader.join(_READ_S)
        return f"llama-server exited with {code}: {self._said()}"

    def build(self) -> str:
        """The build that it reports."""
        try:
            with replace(self.address, path="").request("GET", "/props", None, _ANSWER_S) as response:
                return str(json.load(response)["build_info"])
        except (OSError, HTTPException, ValueError, LookupError, TypeError):
            return "unknown"

    def end(self) -> None:
        """Kill it and everything it started."""
        atexit.unregister(self.end)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_READ_S)

    def _is_ready(self, timeout_s: float) -> bool:
        try:
            with replace(self.address, path="").request("GET", "/health", None, timeout_s):
                return True
        except (OSError, HTTPException):
            return False

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                os.write(_STANDARD_ERROR, line)
                self._last_lines += line.decode(errors="replace").splitlines()

    def _said(self) -> str:
        return " | ".join(self._last_lines) or "it printed nothing"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HERE, 0))
        port: int = listener.getsockname()[1]
        return port
