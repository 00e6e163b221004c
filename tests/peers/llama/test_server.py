"""llama-server: a stub of it is started, served from, and ended; and ones that misbehave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktbench.cli import main
from ktbench.engine.gguf.export import export_gguf, kept_file
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.workload.stream import draw_stream
from ktbench.peers.llama import program as llama_program
from ktbench.peers.llama.program import RunningServer
from ktbench.peers.llama.server import LlamaServing, Slots, open_serving
from ktbench.resources import built_program, checkout
from ktbench.results import read_run
from ktbench.run.messages import RecordIds
from ktbench.run.serving.driver import Driver
from ktbench.run.session import Session
from ktbench.run.worker_process import open_system
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.wire import spec_id
from tests.fake import FakeRoofs
from tests.tiny import CONFIG, tiny_cell, tiny_spec
from tests.waiting import is_gone, is_stopped, until

HOST = HostRole(cores=1)
STREAM = StreamSpec(requests=4, concurrency=2, answer=3)
# Notes how it was started and by whom it is asked; answers as llama-server does, with texts and without token ids.
PROGRAM = """
import json, os, pathlib, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
words = sys.argv[1:]
options = dict(zip(words[::2], words[1::2], strict=True))
notes = pathlib.Path(__file__).with_name("notes")
notes.mkdir(exist_ok=True)
child = subprocess.Popen(["sleep", "600"])
names = [name for name in os.environ if name.startswith("LLAMA_ARG_")]
started = {"options": options, "pids": [os.getpid(), child.pid], "names": names}
(notes / f"started-{time.monotonic_ns()}").write_text(json.dumps(started))
print("loading", flush=True)

class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked_for_health = 0

    def log_message(self, *_):
        pass

    def whole(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/props":
            return self.whole({"build_info": "b5581-stub"})
        Answers.asked_for_health += 1
        if Answers.asked_for_health < 3:
            return self.whole({"error": {"message": "Loading model"}}, 503)
        self.whole({"status": "ok"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (notes / f"asked-{time.monotonic_ns()}").write_text(json.dumps(asked))
        time.sleep({takes_s})
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(asked["max_tokens"]):
            {before}
            self.say({"choices": [{"text": f" {number}", "finish_reason": None}]})
        usage = {"completion_tokens": asked["max_tokens"]}
        self.say({"choices": [{"text": "", "finish_reason": "length"}], "usage": usage})
        self.wfile.write(b"data: [DONE]\\n\\n")
        self.close_connection = True

    def say(self, message):
        self.wfile.write(b"data: " + json.dumps(message).encode() + b"\\n\\n")
        self.wfile.flush()

ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Answers).serve_forever()
"""


def program(folder: Path, text: str = PROGRAM, before: str = "pass", takes_s: str = "0") -> str:
    """`before` is done before each token, a request takes `takes_s` seconds more."""
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable}\n{text.replace('{before}', before).replace('{takes_s}', takes_s)}")
    path.chmod(0o755)
    return str(path)


def started(folder: Path) -> list[dict[str, Any]]:
    """Options, pids and variables of every start of `PROGRAM`."""
    return [json.loads(path.read_text()) for path in sorted((folder / "notes").glob("started-*"))]


def asked(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "notes").glob("asked-*"))]


def spec_of(folder: Path, path: str, stream: StreamSpec = STREAM, tune_s: float = 0.0, **options: Any) -> RunSpec:
    peer = PeerSpec(llama_server=path, exports=str(folder / "gguf"), tune_s=tune_s)
    work = {"stream": stream, "steps": 2}
    spec = tiny_spec(phase="serve", system="llama-server", peer=peer, workload=work, **options)
    return replace(spec, model=replace(spec.model, config=CONFIG | {"norm_topk_prob": True}))


def written(spec: RunSpec) -> RunSpec:
    """The spec, whose GGUF file is there."""
    file = kept_file(spec)
    if not file.path.exists():
        export_gguf(spec.model, file.path, experts=file.experts, dense=file.dense, say=lambda line: None)
    return spec


@contextmanager
def serving(*specs: RunSpec, host: HostRole = HOST) -> Iterator[LlamaServing]:
    engine = open_serving([written(spec) for spec in specs], host)
    try:
        yield engine
    finally:
        engine.close()


def gone(folder: Path) -> bool:
    """Whether every process of every server has ended."""
    return all(is_gone(pid) for one in started(folder) for pid in one["pids"])


def test_it_is_started_for_the_stream_serves_it_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "64")
    spec = spec_of(tmp_path, program(tmp_path))
    stream = draw_stream(spec.workload, 256)
    with serving(spec, host=HostRole(cores=3)) as engine:
        driver = Driver(engine=engine, stream=stream, concurrency=2)
        driver.run_until(4)
        assert engine.max_positions >= 8 + 3
        assert not gone(tmp_path)
    until(lambda: gone(tmp_path))
    assert [one.tokens for one in driver.replay().requests] == [3] * 4
    (one,) = started(tmp_path)
    wanted = {"-m": str(kept_file(spec).path), "-np": "2", "-c": "512", "-t": "3", "-fa": "on", "-ngl": "0"}
    assert wanted.items() <= one["options"].items()
    assert one["names"] == ["LLAMA_ARG_CACHE_RAM"], "settings of other servers are none of this one's"
    assert {tuple(request["prompt"]) for request in asked(tmp_path)} == {request.tokens for request in stream}
    assert not any(request["cache_prompt"] for request in asked(tmp_path))
    tuned, built = engine.notes()
    assert "not tuned" in tuned
    for fact in ("b5581-stub", "2 requests", "256 tokens"):
        assert fact in built


def test_there_is_room_for_what_any_of_the_cells_asks() -> None:
    def slots(*streams: StreamSpec, **engine: Any) -> Slots:
        specs = [tiny_spec(phase="serve", workload={"stream": one, "steps": 1}, **engine) for one in streams]
        return Slots.for_cells(specs, [draw_stream(one.workload, 256) for one in specs])

    many = StreamSpec(requests=32, concurrency=8, answer=400)
    assert slots(STREAM) == Slots(requests=2, tokens=256)
    assert slots(STREAM, many) == Slots(requests=8, tokens=512)
    assert slots(replace(many, arrivals="poisson")).requests == 16, "no more than run at once anywhere"


def test_the_settings_that_serve_fastest_are_kept(tmp_path: Path) -> None:
    slow_with_flash = program(tmp_path, takes_s="0.25 * (options['-fa'] == 'on')")
    with serving(spec_of(tmp_path, slow_with_flash, tune_s=60.0)) as engine:
        starts = [one["options"]["-fa"] for one in started(tmp_path)]
        assert starts == ["on", "off"]
        assert "flash attention off" in engine.notes()[0].partition("(")[0]
    until(lambda: gone(tmp_path))


def test_trials_are_records_and_loading_is_none_of_them(tmp_path: Path) -> None:
    spec = written(spec_of(tmp_path, program(tmp_path)))
    cell = replace(tiny_cell(), spec=spec, spec_id=spec_id(spec), label="llama-server")
    more = replace(spec, workload=replace(spec.workload, stream=replace(STREAM, requests=8, concurrency=4)))
    system = open_system([spec, more], HOST)
    try:
        session = Session(system=system, roofs=FakeRoofs(), ids=RecordIds(code_id="c", env_id="e"))
        assert len(started(tmp_path)) == 1
        record = session.trial(cell, 0)
        assert record.outcome is Outcome.OK, record.why
        assert record.replay is not None
        assert any("3 of 3 answers" in note for note in record.notes)
        assert any("4 requests" in note for note in record.notes)
        system.configure(more)
        assert len(started(tmp_path)) == 1, "one has room for both"
    finally:
        system.close()
    until(lambda: gone(tmp_path))


def in_time(_server: RunningServer) -> bool:
    return False


def has_printed(server: RunningServer) -> bool:
    return bool(server._last_lines)


def has_stopped(server: RunningServer) -> bool:
    return is_stopped(server._process.pid)


@pytest.mark.parametrize(
    ("text", "said", "is_late"),
    [
        (
            "import sys; print('one'); sys.exit('unknown architecture')",
            ("exited with 1", "unknown architecture"),
            in_time,
        ),
        ("import os; os.abort()", ("exited with -6", "printed nothing"), in_time),
        ("import time; print('loading', flush=True); time.sleep(600)", ("not ready", "loading"), has_printed),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", ("not ready", "printed nothing"), has_stopped),
        (PROGRAM.replace("self.path ==", "time.sleep(600) or self.path =="), ("not ready", "loading"), has_printed),
    ],
)
def test_one_that_does_not_start_says_why(
    text: str,
    said: Sequence[str],
    is_late: Callable[[RunningServer], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time passes once the program has done all that it does."""
    wait_ready = RunningServer.wait_ready

    def waiting(server: RunningServer, limit_s: float) -> None:
        monkeypatch.setattr(llama_program, "monotonic", lambda: 2 * limit_s if is_late(server) else 0.0)
        wait_ready(server, limit_s)

    monkeypatch.setattr(RunningServer, "wait_ready", waiting)
    spec = written(spec_of(tmp_path, program(tmp_path, text), measure={"load_timeout_s": 0.5}))
    with pytest.raises(Unsupported) as refused:
        open_serving([spec], HOST)
    for words in said:
        assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    until(lambda: gone(tmp_path))


def test_a_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="gone: cannot be run: No such file"):
        RunningServer([str(tmp_path / "gone")])


def test_one_that_ends_while_it_serves_ends_the_trial_with_its_last_words(tmp_path: Path) -> None:
    fails = "number and (print('GGML_ASSERT failed', flush=True), os._exit(9))"
    spec = spec_of(tmp_path, program(tmp_path, before=fails))
    with serving(spec) as engine:
        driver = Driver(engine=engine, stream=draw_stream(spec.workload, 256), concurrency=2)
        with pytest.raises(RuntimeError, match="exited with 9.*GGML_ASSERT failed"):
            driver.run_until(4)
    until(lambda: gone(tmp_path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        open_serving([spec_of(tmp_path, program(tmp_path))], HOST)


WORKER = """
import sys, time
from ktbench.peers.llama import program as llama_program
from ktbench.peers.llama.program import RunningServer
running = RunningServer([sys.argv[1], "-fa", "on"])
running.wait_ready(60.0)
print("ready", flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "stopped"), [("time.sleep(600)", False), ("sys.exit()", False), ("time.sleep(600)", True)]
)
def test_it_ends_with_its_worker_however_that_ends(then: str, stopped: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER.replace("{then}", then), program(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        (one,) = started(tmp_path)
        server, child = one["pids"]
        if stopped:
            os.kill(server, signal.SIGSTOP)
        if "sleep" in then:
            worker.kill()
        worker.wait()
        until(lambda: is_gone(server))
        if "sleep" in then:
            os.kill(child, 9)  # the stub's, not a server's: nobody was left to end it
        else:
            until(lambda: is_gone(child))


FOUND = shutil.which("llama-server") or built_program("llama-server", str(checkout() / ".nox" / "llama_programs"))


@pytest.mark.peers
@pytest.mark.skipif(FOUND is None, reason="there is no llama-server: nox -s llama_programs builds one")
@pytest.mark.parametrize("precision", ["bf16", "q4_0"])
def test_a_real_one_is_measured(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        *("model=tiny", "system=llama-server", f"peer.llama_server={FOUND}", "workload=serve", "workload.prompt=40"),
        *("workload.stream.requests=8", "workload.stream.concurrency=4", "workload.stream.answer=6"),
        *(f"precision={precision}", f"device_precision={precision}", "peer.tune_s=2"),
        *("measure.min_rounds=2", "measure.max_rounds=2", "run_name=seen"),
    )
    assert main(["run", *words]) in (0, 4)
    run = read_run(tmp_path / "runs/seen")
    assert [record.outcome for record in run.records] == [Outcome.OK] * 2, run.records[0].why
    for record in run.records:
        assert record.replay is not None
        assert [one.tokens for one in record.replay.requests] == [6] * 8
