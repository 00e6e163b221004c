"""A server that is killed while it loads and while it answers: its pages are whole, and it starts again on its port."""

from __future__ import annotations

import json
import math
import signal
import socket
import time
import zlib
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from pathlib import Path
from random import Random
from threading import Event, Thread

from tests.faults.clients import answering, metrics
from tests.faults.findings import Finding
from tests.faults.forking import Command

_PAGES = "pages"
# So few positions that what was answered soon leaves the memory for the disk.
_WORDS = (
    "serve", "model=nano", "engine.avx2=true", "engine.batching=true", "engine.chunked_prefill=true",
    "engine.prefix_cache=true", "engine.serving.cache_tokens=256", "engine.serving.max_sequences=2",
    f"engine.serving.disk={_PAGES}", "engine.serving.disk_bytes=1000000000",
)  # fmt: skip
_TOKENS = 8
_PROMPTS = tuple(f"{number}{number}+{number}1=" * 12 for number in range(1, 9))
_ANSWERING_S = 2.0  # of a life beyond loading in which it may be killed
_CHECKED = 60  # bytes of a page's header in front of its CRC-32, four bytes (`ktbench/engine/serving/page_folder.py`)
Answers = Mapping[str, str]


def killed_servers(folder: Path, random: Random, kills: int, until: float = math.inf) -> Finding:
    """SIGKILL at moments spread over loading and answering; after a few kills a server is left to answer all."""
    port = _free_port()
    began_s = time.monotonic()
    server = _server(folder, port)
    assert answering(port, server.is_over), server.said()
    loads_s = time.monotonic() - began_s
    answers = {prompt: _ask(port, prompt) for prompt in _PROMPTS}
    wrong, done, lives, hits = _ended(server), 0, 0, 0.0
    while done < kills and time.monotonic() < until:
        for _ in range(min(kills - done, random.randrange(2, 7))):
            server = _server(folder, port)
            client = _Client(port, answers)
            server.kill_after(random.uniform(0, loads_s + _ANSWERING_S))
            done += server.end() == -signal.SIGKILL
            wrong += [*client.wrong_ones(), *_torn(folder / _PAGES)]
        server, lives = _server(folder, port), lives + 1
        if not answering(port, server.is_over):
            wrong.append(f"it does not start again: {server.message()}")
        wrong += [f"{prompt} has another answer" for prompt in _PROMPTS if _ask(port, prompt) != answers[prompt]]
        counted = metrics(port)
        hits += counted.get("disk_hits", 0)
        wrong += ["a page was damaged"] if counted.get("disk_damaged") else []
        wrong += _ended(server)
    pages = f"{len([*(folder / _PAGES).glob('*.page')])} pages on disk are whole, {hits:.0f} were read"
    return Finding(
        fault="SIGKILL of `serve`, real engine",
        times=done,
        happened=f"{lives} servers started again on the same port, with the same answers; {pages}"
        if not wrong
        else "; ".join(dict.fromkeys(wrong)),
        message="",
        lost=len(wrong),
        doubled=None,
    )


class _Client:
    """Asks one prompt after the other from when the server listens, until it is gone."""

    def __init__(self, port: int, answers: Answers) -> None:
        self._wrong, self._gone = list[str](), Event()
        self._thread = Thread(target=self._run, args=(port, answers))
        self._thread.start()

    def wrong_ones(self) -> list[str]:
        """Answers that were whole and wrong, once the server is gone."""
        self._gone.set()
        self._thread.join()
        return self._wrong

    def _run(self, port: int, answers: Answers) -> None:
        if not answering(port, self._gone.is_set):
            return
        for prompt in cycle(answers):
            try:
                text = _ask(port, prompt)
            except (OSError, HTTPException):
                return  # it was killed, and no answer is taken for a whole one
            if text != answers[prompt]:
                self._wrong.append(f"{prompt}: {text} is not {answers[prompt]}")


def _server(folder: Path, port: int) -> Command:
    return Command(folder, (*_WORDS, f"serve.port={port}")).start()


def _ended(server: Command) -> list[str]:
    """What is wrong with how a server ends that is asked to."""
    server.send(signal.SIGTERM)
    code = server.end()
    return [] if code in (0, 128 + signal.SIGTERM) else [f"exit {code}: {server.message()}"]


def _ask(port: int, prompt: str) -> str:
    """The greedy answer. Raises OSError, HTTPException where the server ends meanwhile."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    content = {"model": "nano", "prompt": prompt, "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(content), {"Content-Type": "application/json"})
        text: str = json.loads(connection.getresponse().read())["choices"][0]["text"]
        return text
    finally:
        connection.close()


def _torn(pages: Path) -> list[str]:
    """Pages that are not what their own checksum says. What is being written has a hidden name."""
    return [f"{file.name} is torn" for file in pages.glob("*.page") if not _is_page(file.read_bytes())]


def _is_page(content: bytes) -> bool:
    header, checksum, body = content[:_CHECKED], content[_CHECKED : _CHECKED + 4], content[_CHECKED + 4 :]
    return zlib.crc32(body, zlib.crc32(header)) == int.from_bytes(checksum, "little")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
