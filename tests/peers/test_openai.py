"""A running server is measured by the same stream: a stub with known answers and delays stands for it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.serving.requests import ServeRequest, TokenEvent
from ktbench.engine.workload.stream import draw_stream
from ktbench.peers import openai
from ktbench.peers.openai import events_of, open_serving
from ktbench.run.feasibility import Machine, feasibility
from ktbench.run.messages import RecordIds
from ktbench.run.serving.driver import Driver, RequestFailed
from ktbench.run.serving.system import StreamSystem
from ktbench.run.session import Session
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.stream import StreamSpec
from tests.fake import FakeRoofs
from tests.tiny import tiny_cell, tiny_spec

FIRST_S, NEXT_S = 0.05, 0.02


class Stub(BaseHTTPRequestHandler):
    """Answers with the token ids 0, 1, 2 ...: the first after `FIRST_S`, each other after `NEXT_S`."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[dict[str, Any]]] = []

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "stub"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Stub.asked.append(asked)
        if asked["model"] == "broken":
            self.send_error(500, "the stub broke")
            return
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(asked["max_tokens"]):
            time.sleep(NEXT_S if number else FIRST_S)
            self.say({"choices": [{"text": f"t{number}", "token_ids": [number], "finish_reason": None}]})
        self.say({"choices": [{"text": "", "finish_reason": "length"}]})
        self.say({"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def say(self, message: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(message).encode() + b"\n\n")


@pytest.fixture
def url() -> Iterator[str]:
    Stub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def spec_of(url: str | None, model: str | None = None) -> RunSpec:
    stream = StreamSpec(requests=4, concurrency=2, answer=3)
    peer = PeerSpec(url=url, served_model=model)
    return tiny_spec(phase="serve", system="openai", peer=peer, workload={"stream": stream, "steps": 2})


def test_a_server_that_is_stopped_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes its connections, and nobody answers."""
    monkeypatch.setattr(openai, "_CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        with pytest.raises(Unsupported, match=f"peer.url={url}/v1: names no model at /models .timed out"):
            open_serving([spec_of(url)], HostRole(cores=1))


def test_a_server_gets_the_stream_and_its_delays_are_seen(url: str) -> None:
    spec = spec_of(url)
    stream = draw_stream(spec.workload, 256)
    driver = Driver(engine=open_serving([spec], HostRole(cores=1)), stream=stream, concurrency=2)
    driver.run_until(4)
    replay = driver.replay()
    assert {tuple(one["prompt"]) for one in Stub.asked} == {one.tokens for one in stream}
    assert {one["model"] for one in Stub.asked} == {"stub"}
    assert [one.answer for one in driver.answers] == [(0, 1, 2)] * 4
    for latency in replay.latencies:  # at least what the server waits; how much more is the machine's
        assert latency.ttft_s >= FIRST_S
        assert latency.end_to_end_s >= FIRST_S + 2 * NEXT_S
    assert replay.seconds >= 2 * (FIRST_S + 2 * NEXT_S)


def test_a_trial_of_a_server_is_a_record(url: str) -> None:
    stream = StreamSpec(requests=4, concurrency=2, answer=3)
    cell = tiny_cell(
        "openai", phase="serve", system="openai", peer=PeerSpec(url=url), workload={"stream": stream, "steps": 2}
    )
    system = StreamSystem(lambda spec: open_serving([spec], HostRole(cores=1)))
    record = Session(system=system, roofs=FakeRoofs(), ids=RecordIds(code_id="c", env_id="e")).trial(cell, 0)
    assert record.outcome is Outcome.OK, record.why
    assert record.replay is not None
    assert record.replay.output_tokens == 12
    assert "3 of 3 answers are those to the same requests alone" in record.notes
    assert len({one["cache_salt"] for one in Stub.asked}) > 1, "what was served before must not help"


def test_a_server_that_fails_ends_the_trial(url: str) -> None:
    spec = spec_of(url, "broken")
    driver = Driver(
        engine=open_serving([spec], HostRole(cores=1)), stream=draw_stream(spec.workload, 256), concurrency=2
    )
    with pytest.raises(RequestFailed, match="ended by error after 0 of 3 tokens: status 500"):
        driver.run_until(4)


def test_where_there_is_no_server_the_reason_says_so() -> None:
    reason = feasibility(spec_of(None), Machine.local())
    assert "set peer.url=http://HOST:PORT" in str(reason)
    with pytest.raises(Unsupported, match="names no model at /models"):
        open_serving([spec_of("http://127.0.0.1:9")], HostRole(cores=1))
    for wrong in ("ftp://x", "http://", "http://x:y"):
        with pytest.raises(Unsupported, match="peer.url="):
            open_serving([spec_of(wrong)], HostRole(cores=1))


def events(*messages: dict[str, Any], max_new: int = 3) -> list[TokenEvent]:
    return list(events_of(ServeRequest(key="k", prompt=(1,), max_new=max_new), iter(messages)))


def test_pieces_without_ids_count_as_tokens_and_usage_has_the_last_word() -> None:
    found = events(
        {"choices": [{"text": "one"}]},
        {"choices": [{"text": " two three"}]},
        {"choices": [{"text": "", "finish_reason": "length"}]},
        {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}},
    )
    assert [event.finish for event in found] == [None, None, None, "length"]
    assert found[0].token != found[1].token == found[2].token
    assert (found[3].token, found[3].cached_tokens) == (None, 1)


def test_a_token_is_there_before_the_next_message_is_read() -> None:
    """Else the time to the first token would be that to the second."""
    read: list[int] = []

    def messages() -> Iterator[dict[str, Any]]:
        for number in range(3):
            read.append(number)
            yield {"choices": [{"text": "x", "finish_reason": "length" if number == 2 else None}]}

    found = events_of(ServeRequest(key="k", prompt=(1,), max_new=3), messages())
    for number in range(3):
        assert next(found).token is not None
        assert read == [*range(number + 1)]
    assert [event.finish for event in found] == ["length"]


def test_the_last_piece_may_have_the_usage() -> None:
    """As llama.cpp's server has it."""
    found = events(
        {"choices": [{"text": "one"}]},
        {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 3}},
    )
    assert [event.finish for event in found] == [None, None, None, "length"]


def test_an_answer_that_stops_early_says_so() -> None:
    assert events({"choices": [{"text": "x", "finish_reason": "stop"}]})[-1].finish == "stop"
    with pytest.raises(ValueError, match="no tokens"):
        events({"choices": []})
