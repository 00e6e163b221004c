"""`serve` and `chat`: what is refused before weights load, and the commands as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ktbench.cli import main
from tests.command import KTBENCH

_NANO = ("model=nano", "engine.threads=1")
_PROMPT = "sort: c a b\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "model=tiny"], "synthetic weights"),
        (["serve", "model.path=nowhere"], "nowhere"),
        (["serve", "model=nano", "serve.prot=1"], "did you mean port"),
        (["serve", "model=nano", "serve.port=x"], "serve.port"),
        (["serve", "model=nano", "serve.api_key=hunter2"], "env:NAME or file:PATH"),
        (["serve", "model=nano", "serve.api_key=env:NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["serve", "model=nano", "engine.avx512=true,false"], "takes one cell"),
        (["serve", "model=nano", "machine=paper_a100"], "a simulation cannot answer"),
        (["serve", "model=nano", "workload.prompt=5"], "workload.prompt=5"),
        (["serve", "model=nano", "+suite=nano"], "eval"),
        (["serve", "model=nano", "system=transformers"], "leave out system="),
        (["serve", "model=nano", "inject.show=true"], "inject.show"),
        (["serve", "model=nano", "engine.serving.max_waiting=0"], "max_waiting"),
        (["chat", "model=nano", "chat.temperature=-1"], "chat.temperature"),
        (["chat", "model=tiny"], "synthetic weights"),
    ],
)
def test_bad_requests_are_one_line_and_exit_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "hunter2" not in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("loaded_children")
def test_serve_answers_and_ends_well_when_asked_to(tmp_path: Path) -> None:
    words = [*KTBENCH, "serve", *_NANO, "serve.port=0"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        try:
            said = server.stdout.readline()
            assert said.startswith("serving http"), server.stderr.read()
            body = json.dumps({"model": "nano", "prompt": _PROMPT, "max_tokens": 4}).encode()
            request = Request(f"{said.split()[1]}/completions", body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=60) as response:
                assert json.load(response)["usage"]["prompt_tokens"] > 0
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()


@pytest.mark.usefixtures("loaded_children")
def test_chat_answers_what_it_reads(tmp_path: Path) -> None:
    done = subprocess.run(
        [*KTBENCH, "chat", *_NANO],
        cwd=tmp_path,
        input=_PROMPT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
