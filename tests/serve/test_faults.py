"""What clients and engines do wrong: who goes, who is slow, what floods, what breaks."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from copy import copy
from http.client import HTTPConnection
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ktbench.serve.fields import _NEUTRAL
from ktbench.serve.server import _Errors
from ktbench.serve.tokens import TextTokens
from tests.serve.fake import FakeEngine, Server, events, post, serving
from tests.waiting import until

FEW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_idle(server: Server) -> bool:
    state = server.engine.state
    return not state.running and not state.waiting and state.free_pages == state.pages


@pytest.fixture(scope="module")
def slow(tokens: TextTokens) -> Iterator[Server]:
    """Every token takes a while."""
    with serving(tokens, FakeEngine(delay_s=0.002)) as found:
        yield found


def test_a_client_that_goes_in_the_middle_of_a_stream_frees_its_request(slow: Server) -> None:
    client = slow.open_stream()
    until(lambda: slow.engine.state.running == 1)
    client.close()
    until(lambda: is_idle(slow))
    assert slow.complete(max_tokens=2).status == 200


def test_a_client_that_goes_before_a_whole_answer_frees_all_its_requests(slow: Server) -> None:
    client = socket.create_connection(("127.0.0.1", slow.port))
    raw = msgspec.json.encode({"model": "nano", "prompt": ["a", "b", "c", "d", "e", "f"], "max_tokens": 3000})
    client.sendall(post(len(raw)) + raw)
    until(lambda: slow.engine.state.running == 4 and slow.engine.state.waiting == 2)
    client.close()
    until(lambda: is_idle(slow))


def test_a_client_that_goes_before_its_body_is_there_asks_nothing(slow: Server) -> None:
    seen = len(slow.engine.seen)
    client = socket.create_connection(("127.0.0.1", slow.port))
    client.sendall(post(1000) + b'{"model"')
    client.close()
    assert slow.ask("GET", "/health").status == 200
    assert len(slow.engine.seen) == seen


def test_a_reader_that_is_too_slow_loses_its_request(tokens: TextTokens) -> None:
    with serving(tokens, FakeEngine(most_running=1), buffered_tokens=16) as server:
        client = server.open_stream(buffer=4096, logprobs=20)
        until(lambda: is_idle(server))
        assert server.complete(max_tokens=3).status == 200
        body = b""
        while b"[DONE]" not in body and (got := client.recv(1 << 16)):
            body += got
        client.close()
    assert b"slow_reader" in body
    assert 0 < body.count(b"text_completion") < 4000


def test_a_reader_that_stops_for_good_is_cut_off(tokens: TextTokens) -> None:
    """The server ends long before its connections do by themselves."""
    with serving(tokens, FakeEngine(), buffered_tokens=16, stall_s=0.2) as server:
        client = server.open_stream(buffer=4096, logprobs=20)
        until(lambda: is_idle(server))
        until(lambda: not connections(server.port))
        client.close()


@pytest.fixture(scope="module")
def brief(tokens: TextTokens) -> Iterator[Server]:
    """No answer is long."""
    with serving(tokens, FakeEngine(max_positions=64)) as found:
        yield found


def connections(port: int) -> list[str]:
    """Connections of the server that are open, by the kernel's table; what is left of a closed one is not counted."""
    with open("/proc/net/tcp") as table:  # noqa: PTH123
        rows = [line.split() for line in table][1:]
    return [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]


def test_a_body_that_does_not_come_is_not_waited_for(tokens: TextTokens) -> None:
    with serving(tokens, FakeEngine(), stall_s=0.1) as server, socket.socket() as client:
        client.settimeout(30)
        client.connect(("127.0.0.1", server.port))
        client.sendall(post(1000) + b'{"model"')
        assert client.recv(12) == b"HTTP/1.1 408"


@pytest.mark.parametrize("says_so", [True, False])
def test_a_body_that_is_too_large_is_refused(tokens: TextTokens, says_so: bool) -> None:
    with serving(tokens, FakeEngine(), max_body_bytes=1000) as server:
        assert server.complete("x" * 900, max_tokens=1).status == 200
        if says_so:
            got = server.complete("x" * 1000, max_tokens=1)
            assert (got.status, got.error["code"]) == (413, "body_too_large")
            return
        connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
        parts = iter([b"x" * 600, b"x" * 600])
        connection.request("POST", "/v1/completions", parts, {"Content-Type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()


def test_a_body_that_is_too_large_is_read_to_its_end(tokens: TextTokens) -> None:
    """A client that is still sending would see a reset connection, and no answer."""
    with serving(tokens, FakeEngine(), max_body_bytes=1000) as server:
        got = server.complete("x" * 9_000_000, max_tokens=1)
        assert (got.status, got.error["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("longest", [1, 1 << 30])
def test_long_texts_are_refused_without_being_encoded_as_a_whole(tokens: TextTokens, longest: int) -> None:
    """By the least number of tokens that they can have, or else by counting those of parts until there are too many."""
    own, encoded = copy(tokens), list[int]()

    def ids(text: str, *, adds: bool) -> tuple[int, ...]:
        encoded.append(len(text))
        return tokens._ids(text, adds=adds)

    own._longest, own._ids = longest, ids  # type: ignore[method-assign]
    with serving(own, FakeEngine()) as server:
        for got in (server.complete("word " * 400_000), server.chat("word " * 400_000)):
            assert (got.status, got.error["code"]) == (400, "context_length_exceeded")
    assert sum(encoded) < 100_000


def test_heads_that_do_not_come_are_not_waited_for(tokens: TextTokens) -> None:
    """One deadline for the whole head, however its parts come; between requests as well."""
    with serving(tokens, FakeEngine(), stall_s=0.2) as server, socket.socket() as client:
        client.settimeout(30)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(b"GET /health")
        with suppress(ConnectionResetError):
            while client.recv(4096):
                pass


def test_half_sent_heads_make_room_for_requests(tokens: TextTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.serve.server._most_connections", lambda: 8)
    with serving(tokens, FakeEngine(delay_s=0.002)) as server, ExitStack() as opened:
        stream = opened.enter_context(server.open_stream(max_tokens=300))
        for _ in range(40):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
        assert server.complete(max_tokens=2).status == 200
        assert len(connections(server.port)) <= 8 + 1
        got = b""
        while b"[DONE]" not in got:  # what is answered makes no room
            got += stream.recv(1 << 16)


def test_that_no_file_is_left_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio tries again at once, and would log each time."""
    loop, seen = asyncio.new_event_loop(), _Errors()
    for _ in range(50):
        seen(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    seen(loop, {"message": "another error"})
    loop.close()
    assert len(caplog.records) == 2
    assert "another error" in caplog.text


def test_a_flood_is_refused_beyond_the_queue_and_all_others_are_answered(tokens: TextTokens) -> None:
    with serving(tokens, FakeEngine(delay_s=0.002, most_running=2, most_waiting=4)) as server:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(server.complete(max_tokens=40))) for _ in range(24)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        statuses = Counter(one.status for one in found)
        assert set(statuses) == {200, 429}
        assert statuses[200] >= 4
        refused = next(one for one in found if one.status == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error["code"] == "queue_full"
        assert is_idle(server)


def test_of_several_prompts_all_are_queued_or_none(tokens: TextTokens) -> None:
    with serving(tokens, FakeEngine(delay_s=0.002, most_running=1, most_waiting=4)) as server:
        clients = [server.open_stream() for _ in range(3)]
        until(lambda: server.engine.state.waiting == 2)
        assert server.complete(["a", "b", "c"], max_tokens=1).status == 429
        assert server.engine.state.waiting == 2
        for one in clients:
            one.close()
        until(lambda: is_idle(server))
        assert server.complete(["a", "b", "c"], max_tokens=1).status == 200


def test_an_engine_that_fails_ends_all_answers_by_an_error(
    tokens: TextTokens, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine(delay_s=0.002, most_running=2, fails_at=60)
    with caplog.at_level(logging.ERROR, "ktbench.serve"), serving(tokens, engine) as server:
        found: list[Any] = []
        whole = threading.Thread(target=lambda: found.append(server.complete(max_tokens=3000)))
        whole.start()
        streamed = server.complete(max_tokens=3000, stream=True)
        whole.join()
        assert found[0].status == 500
        assert found[0].error["code"] == "engine_failed"
        assert events(streamed)[-1]["error"]["code"] == "engine_failed"
        assert server.ask("GET", "/health").status == 503
        assert server.complete().status == 503
        assert b"ktbench_engine_up 0.0" in server.ask("GET", "/metrics").body
    assert "the device is gone" in caplog.text


def test_an_engine_that_does_not_open_says_why(tokens: TextTokens) -> None:
    import asyncio

    from ktbench.serve.driver import EngineThread

    def fail() -> Any:
        raise ValueError("no room for weights")

    async def start() -> None:
        await EngineThread(fail).start()

    with pytest.raises(ValueError, match="no room for weights"):
        asyncio.run(start())


def test_a_server_that_ends_takes_back_what_runs_too_long(tokens: TextTokens) -> None:
    found: list[Any] = []

    def ask(server: Server, stream: bool) -> None:
        found.append(server.complete(max_tokens=4000, stream=stream))

    with serving(tokens, FakeEngine(delay_s=0.01)) as server:
        asking = [threading.Thread(target=ask, args=(server, stream)) for stream in (True, False)]
        for one in asking:
            one.start()
        until(lambda: server.engine.state.running == 2)
    for one in asking:
        one.join()
    streamed, whole = sorted(found, key=lambda one: one.status)
    assert events(streamed)[-1]["error"]["code"] == "cancelled"
    assert (whole.status, whole.error["code"]) == (503, "cancelled")
    assert is_idle(server)


def test_a_server_that_ends_lets_short_answers_end(tokens: TextTokens) -> None:
    found: list[Any] = []
    with serving(tokens, FakeEngine(delay_s=0.005), drain_s=10) as server:
        asking = threading.Thread(target=lambda: found.append(server.complete(max_tokens=40)))
        asking.start()
        until(lambda: server.engine.state.running == 1)
    asking.join()
    assert found[0].json["usage"]["completion_tokens"] == 40


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["model", "prompt", "messages", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "stream", "echo"]
FIELDS = st.sampled_from([*NAMES, "logprobs", "top_logprobs", "stream_options", "ignore_eos", "user", *_NEUTRAL])


@FEW
@given(extra=st.dictionaries(FIELDS, PLAIN, max_size=4), path=st.sampled_from(["completions", "chat/completions"]))
def test_no_value_of_any_field_is_an_error_of_the_server(brief: Server, extra: dict[str, Any], path: str) -> None:
    asked = {"model": "nano", "max_tokens": 2} | (
        {"prompt": "hi"} if path == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
    )
    require_answer(brief, path, msgspec.json.encode(asked | extra))


@FEW
@given(raw=st.binary(max_size=40), path=st.sampled_from(["completions", "chat/completions"]))
def test_no_body_is_an_error_of_the_server(brief: Server, raw: bytes, path: str) -> None:
    require_answer(brief, path, raw)


BODY = msgspec.json.encode({"model": "nano", "prompt": ["a", [1]], "max_tokens": 2, "stop": ["x"], "seed": 5})
STRANGE = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"model": "nano", "prompt": "\\ud800"}',
    b'{"model": "nano", "prompt": "\xff"}',
    b'{"model": "nano", "prompt": "a", "temperature": NaN}',
    b'{"model": "nano", "prompt": "a", "temperature": 1e999}',
    b'{"model": "nano", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    b'{"model": "nano", "prompt": "a", "max_tokens": 1e2}',
    b'{"model": "nano", "prompt": "a", "prompt": 5}',
    b'{"model": "\\u0000", "prompt": "\\u0000"}',
    b"\x00",
    b"null",
    b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize("raw", STRANGE, ids=range(len(STRANGE)))
def test_strange_json_is_no_error_of_the_server(brief: Server, raw: bytes) -> None:
    require_answer(brief, "completions", raw)


@FEW
@given(at=st.integers(0, len(BODY) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(BODY)))
def test_no_damage_to_a_body_is_an_error_of_the_server(brief: Server, at: int, byte: int, cut: int) -> None:
    require_answer(brief, "completions", (BODY[:at] + bytes([byte]) + BODY[at + 1 :])[cut:])
    require_answer(brief, "completions", (BODY[:at] + bytes([byte]) + BODY[at + 1 :])[:cut])


def require_answer(server: Server, path: str, raw: bytes) -> None:
    """An answer, or an error that names what is wrong with the request."""
    got = server.ask("POST", f"/v1/{path}", raw)
    assert got.status == 200 or 400 <= got.status < 500, got.body
    assert b"Traceback" not in got.body
    if got.status != 200:
        assert got.error["message"]


@pytest.mark.parametrize("raw", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"A" * 100_000])
def test_what_is_not_http_is_refused(server: Server, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(raw)
        assert client.recv(12) == b"HTTP/1.1 400"
    assert server.ask("GET", "/health").status == 200


def test_memory_stays_where_it_is_over_many_requests(tokens: TextTokens, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)  # pytest would keep what is said of clients that go
    with serving(tokens, FakeEngine()) as server:

        def ask(times: int) -> int:
            for number in range(times):
                server.complete(max_tokens=2, stream=number % 2 == 0)
                if number % 10 == 0:
                    server.open_stream(max_tokens=200).close()
                    server.ask("POST", "/v1/completions", b"{")
            until(lambda: is_idle(server) and not connections(server.port))
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            ask(40)
            before = ask(20)
            after = ask(120)
        finally:
            tracemalloc.stop()
    assert after - before < 100_000
