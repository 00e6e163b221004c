"""`export`: what is refused before anything loads, and the file that it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.engine.gguf.export import weights_digest
from ktbench.run.export import read_export
from tests.command import at_home


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that refuses a request."""
    assert main(["export", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


def child(code: str) -> tuple[str, ...]:
    """A child that runs `code` instead."""
    return (sys.executable, "-c", code)


@pytest.mark.usefixtures("loaded_children")
def test_export_writes_a_file_and_says_what_it_holds(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    words = ("model=tiny", "precision=q4_0", "device_precision=q8_0", "output=made/here.gguf")
    done = subprocess.run(
        [sys.executable, "-m", "ktbench", "export", *words],
        cwd=tmp_path, env=at_home(tmp_path),
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file = tmp_path / "made/here.gguf"
    digest = weights_digest(read_export([*words[:3], f"output={tmp_path / 'new'}"]).model, "Q4_0", "Q8_0")
    assert done.stdout.splitlines() == [
        "tensors 11 F32, 9 Q8_0, 6 Q4_0, 1 BF16",
        f"{file.stat().st_size:,} bytes",
        f"weights {digest}",
        "",
        "wrote made/here.gguf",
    ]
    assert done.stderr.splitlines() == [f"wrote model.layers.{layer}.mlp.experts" for layer in range(2)]
    assert [one.name for one in file.parent.iterdir()] == ["here.gguf"]


@pytest.mark.parametrize(
    ("words", "types"),
    [
        ((), ("BF16", "BF16")),
        (("precision=q4_0",), ("Q4_0", "BF16")),
        (("precision=q8_0", "device_precision=q4_0"), ("Q8_0", "Q4_0")),
        (("type=F16", "precision=q4_0"), ("F16", "F16")),
    ],
)
def test_types_follow_the_precisions(words: tuple[str, ...], types: tuple[str, str], tmp_path: Path) -> None:
    asked = read_export(["model=qwen3_30b_a3b", "model.layers=2", f"output={tmp_path / 'a.gguf'}", *words])
    assert (asked.experts, asked.dense) == types
    assert asked.model.shape.layers == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("model=tiny",), "name a new file, such as output=model.gguf"),
        (("model=tiny", "output="), "output=: name one new file"),
        (("model=tiny", "output=a", "output=b"), "output=a output=b: name one new file"),
        (("model=tiny", "output=a", "precision=int8"), "precision=int8: GGUF has no such type; allowed are bf16, q8_0"),
        (("model=tiny", "output=a", "device_precision=int4_g32"), "device_precision=int4_g32: GGUF has no such type"),
        (
            ("model=tiny", "output=a", "type=Q4_1"),
            "type=Q4_1: unknown, did you mean Q4_0?; allowed are F16",
        ),
        (("model=tiny", "model.config.model_type=olmoe", "output=a"), "model_type=olmoe as GGUF"),
        (("+ablation=decode", "output=a"), "takes one cell"),
        (("model=nothing", "output=a"), "nothing"),
    ],
)
def test_a_wrong_request_is_refused(words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why in said(capsys, *words)


def test_a_file_that_is_there_is_refused_before_a_child_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ktbench.cli.export.EXPORT", child("raise SystemExit('started')"))
    (tmp_path / "there.gguf").touch()
    assert "there.gguf: exists" in said(capsys, "model=tiny", f"output={tmp_path / 'there.gguf'}")
    assert f"output={tmp_path}" in said(capsys, "model=tiny", f"output={tmp_path}")
    assert "in.gguf" in said(capsys, "model=tiny", f"output={tmp_path / 'there.gguf/in.gguf'}")


@pytest.mark.usefixtures("loaded_children")
def test_what_can_never_be_written_is_a_wrong_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, "model=kimi_k2", "model.layers=2", f"output={tmp_path / 'a.gguf'}")
    assert line == "ktbench: export deepseek_v3 as GGUF: beta_fast=1.0, llama.cpp supports 32.0\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise MemoryError('no room')", "MemoryError: no room"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import sys; sys.stdin.read(); sys.exit(3)", "exited with 3"),
    ],
)
def test_a_child_that_fails_is_exit_code_4_with_its_reason(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ktbench.cli.export.has_gguf", lambda: True)
    monkeypatch.setattr("ktbench.cli.export.EXPORT", child(code))
    assert main(["export", "model=tiny", f"output={tmp_path / 'a.gguf'}"]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ktbench export: ") and why in captured.err and captured.err.count("\n") == 1


def test_without_the_package_the_command_that_brings_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ktbench.cli.export.has_gguf", lambda: False)
    assert main(["export", "model=tiny", f"output={tmp_path / 'a.gguf'}"]) == 4
    assert capsys.readouterr().err == "ktbench export: gguf is not installed; bring it with: pip install gguf\n"


def test_an_export_asks_for_no_memory_for_the_whole_model(tmp_path: Path) -> None:
    asked = read_export(["model=qwen3_235b_a22b", f"output={tmp_path / 'a.gguf'}"])
    assert asked.model.shape.layers == 94
