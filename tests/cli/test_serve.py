"""`serve` and `chat`: what is refused before weights load, and the commands as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ktbench.cli import main
from ktbench.host.capabilities import machine_capabilities
from ktbench.run.serving.opening import best_serving_spec
from tests.command import KTBENCH

_NANO = ("model=nano", "engine.threads=1")
_PROMPT = "sort: c a b\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "model=tiny"], "synthetic weights"),
        (["serve", "model.path=nowhere"], "nowhere"),
        (["serve", "model=nano", "serve.prot=1"], "did you mean serve.port"),
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


def test_a_cache_folder_in_use_is_refused_before_weights_load(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ktbench.engine.serving.page_folder import PageFolder

    monkeypatch.setattr("ktbench.cli.serve.prepare_process", lambda _: None)  # other tests have imported PyTorch

    with closing(PageFolder(tmp_path, b"other")):
        assert (
            main(
                [
                    "serve",
                    *_NANO,
                    "serve.port=0",
                    f"engine.serving.disk={tmp_path}",
                    "engine.serving.disk_bytes=1000000",
                ]
            )
            == 2
        )
    error = capsys.readouterr().err
    assert "another process" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "on", "off"),
    [
        ([], ("batching", "chunked_prefill", "prefix_cache", "packed_dense", "dynamic"), ("static_batch", "deferral")),
        (
            ["engine.batching=false", "engine.dynamic=false"],
            ("chunked_prefill", "packed_dense"),
            ("batching", "dynamic"),
        ),
        (["engine.static_batch=4"], ("chunked_prefill", "packed_dense"), ("batching",)),
        (["engine.avx2=true"], ("avx2", "batching"), ("avx512", "amx", "packed_dense")),
        (
            ["engine.avx512=false", "engine.amx=false", "engine.avx2=false"],
            ("batching",),
            ("avx512", "avx2", "amx", "packed_dense"),
        ),
    ],
)
def test_features_that_are_not_named_are_the_machines_best(
    words: list[str], on: tuple[str, ...], off: tuple[str, ...]
) -> None:
    spec, unsupported = best_serving_spec("serve", [*_NANO, *words])
    if machine_capabilities()["avx2"]:
        pytest.skip("this machine has no kernels")
    assert not unsupported
    assert all(getattr(spec.engine, name) for name in on)
    assert not any(getattr(spec.engine, name) for name in off)


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
