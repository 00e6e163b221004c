"""A real server whose clients leave in the middle of what they have asked for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random

from prometheus_client.parser import text_string_to_metric_families

from tests.faults.findings import Finding

_WORDS = (
    *("engine.avx2=true", "engine.batching=true", "engine.chunked_prefill=true", "engine.prefix_cache=true"),
    "engine.serving.cache_tokens=16384",  # pages that the first hundreds of requests fill: memory stays from then on
)
_CLIENTS = 16
_LONGEST = 24  # tokens of an answer
_GAUGES = ("requests_waiting", "requests_running", "cache_pages", "cache_pages_free", "cache_pages_cached")
_IDLE_S, _START_S = 60.0, 120.0


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of `ktbench serve model=nano`, which ends well when it is asked to."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ktbench", "serve", "model=nano", *_WORDS, "serve.port=0"]
    with (folder / "server.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        yield _port(process, folder), process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(_IDLE_S) in (0, 128 + signal.SIGTERM), (folder / "server.txt").read_text()
    finally:
        process.kill()
        process.wait()


def _port(process: subprocess.Popen[bytes], folder: Path) -> int:
    """As the server says it once it listens."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"serving http://127\.0\.0\.1:(\d+)/", (folder / "server.txt").read_text()):
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError((folder / "server.txt").read_text())


def answering(port: int, is_over: Callable[[], bool]) -> bool:
    """Whether the server comes to answer, within two minutes and before it `is_over`."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until and not is_over():
        try:
            metrics(port)
            return True
        except (OSError, HTTPException):
            time.sleep(0.02)
    return False


def metrics(port: int) -> dict[str, float]:
    """What the server says of its requests, of its pages, and of its engine's counters by their names."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_IDLE_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {one.labels.get("name", one.name.removeprefix("ktbench_")): one.value for one in samples}


def gauges(port: int) -> dict[str, float]:
    """What the server says of its requests and pages."""
    known = metrics(port)
    return {name: known[name] for name in _GAUGES}


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _ask(port: int, random: Random, leaves: float) -> str:
    """What became of one request: `whole`, `left`, or what was wrong with its answer."""
    tokens, streams, goes = random.randint(1, _LONGEST), random.random() < 0.5, random.random() < leaves
    prompt = f"{random.randint(10, 99)}+{random.randint(10, 99)}=" * random.randint(1, 12)
    content = {
        "model": "nano",
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": streams,
        "ignore_eos": True,
        "temperature": 0,
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=_IDLE_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(content), {"Content-Type": "application/json"})
        if goes:
            time.sleep(random.uniform(0, 0.05))
            if streams and random.random() < 0.5:
                connection.getresponse().read(random.randint(1, 400))
            return "left"
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            return f"status {response.status}"
        if streams:
            return "whole" if text.rstrip().endswith("[DONE]") else "a stream that does not end"
        count = json.loads(text)["usage"]["completion_tokens"]
        return "whole" if count == tokens else f"{count} tokens of {tokens}"
    except OSError as error:
        return f"no answer: {type(error).__name__}"
    finally:
        connection.close()


def _asked(port: int, random: Random, times: int, leaves: float) -> Counter[str]:
    seeds = [random.getrandbits(32) for _ in range(times)]
    with ThreadPoolExecutor(_CLIENTS) as clients:
        return Counter(clients.map(lambda seed: _ask(port, Random(seed), leaves), seeds))


def _idle(port: int) -> dict[str, float]:
    """The gauges once nothing waits and nothing runs, or after a minute."""
    until = time.monotonic() + _IDLE_S
    while (seen := gauges(port))["requests_waiting"] + seen["requests_running"] and time.monotonic() < until:
        time.sleep(0.1)
    return seen


def left_by_clients(folder: Path, random: Random, times: int, leaves: float = 0.3) -> Finding:
    """So many requests, of which a share is left in the middle: the others are answered, and no page stays held.

    The memory of the server is that after a tenth, a half and all of them.
    """
    became: Counter[str] = Counter()
    resident: dict[int, int] = {}
    with served(folder) as (port, pid):
        for number in (times // 10, times // 2, times):
            became += _asked(port, random, number - became.total(), leaves)
            seen = _idle(port)
            resident[number] = resident_bytes(pid)
    held = seen["cache_pages"] - seen["cache_pages_free"] - seen["cache_pages_cached"]
    wrong = times - became["whole"] - became["left"]
    others = ", ".join(f"{count} × {name}" for name, count in became.items() if name not in ("whole", "left"))
    stuck = seen["requests_waiting"] + seen["requests_running"]
    return Finding(
        fault="clients that leave a server",
        times=times,
        happened=f"{became['left']} left, {became['whole']} answered{others and ', '}{others}; {held:.0f} pages held, "
        f"{stuck:.0f} requests running afterwards; memory of the server {_by_number(resident)}",
        message="",
        lost=wrong + int(held) + int(stuck),
        doubled=None,
    )


def _by_number(resident: dict[int, int]) -> str:
    """`512.0 MiB after 100, 512.3 MiB after 500`."""
    return ", ".join(f"{nbytes / 2**20:.1f} MiB after {number:,}" for number, nbytes in resident.items())
