"""`serve` and `chat`: what is refused before weights load."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.cli import main


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
