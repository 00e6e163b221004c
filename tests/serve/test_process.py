"""Servers that are killed, asked to end, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.serve.fake import FakeEngine, Server

ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[str]
Start = Callable[..., tuple[Process, Server]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers, and ends those that a test leaves."""
    started: list[Process] = []

    def begin(port: int = 0, delay_s: float = 0.0) -> tuple[Process, Server]:
        words = [sys.executable, "-m", "tests.serve.process", str(port), str(delay_s)]
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        listening = urlsplit(process.stdout.readline().strip()).port
        assert listening is not None, process.communicate()[1]
        return process, Server(listening, FakeEngine())

    yield begin
    for one in started:
        if one.poll() is None:
            one.kill()
        one.communicate()


def test_the_server_needs_no_engine_to_load() -> None:
    code = "import sys, ktbench.serve.server, ktbench.serve.terminal; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_server_that_was_killed_starts_again_on_its_port_and_ends_well_when_asked_to(start: Start) -> None:
    process, server = start(delay_s=0.01)
    with server.open_stream():
        process.kill()
        process.wait()
        process, again = start(port=server.port, delay_s=0.01)
        assert again.port == server.port
        assert again.complete("hi", max_tokens=2).json["choices"][0]["text"] == "hi"
        with again.open_stream() as client:
            os.kill(process.pid, signal.SIGTERM)
            output, errors = process.communicate(timeout=60)
            assert b"the server ends" in b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert (process.returncode, output, errors) == (0, "closed=True\n", "")
