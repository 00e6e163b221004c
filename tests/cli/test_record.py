"""`record`, and what the command line says of profiles and placements before anything loads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ktbench.cli import main
from ktbench.config import Request
from ktbench.engine.workload.recorded import ActivationProfile, Architecture, read_profile
from ktbench.run.request import plan_request, read_request
from ktbench.spec.errors import RequestError
from tests.command import at_home

ROOT = Path(__file__).parents[2]
QUICK = ("model=tiny", "workload.prompt=8", "workload.steps=4")
PLACED = ("plan", "model=tiny", "engine.roles=split", "engine.placement.policy=frequency")


def request(*words: str) -> Request:
    return read_request(["model=tiny", *words])


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that refuses a request."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


def child(code: str) -> tuple[str, ...]:
    """A recording's child that runs `code` instead."""
    return (sys.executable, "-c", code)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    model = request().parts[0].spec.model
    counts = np.arange(16).reshape(2, 8)
    kept = ActivationProfile(
        model="tiny", architecture=Architecture.of(model), counts=counts, tokens=60, source="prompts"
    )
    kept.save(tmp_path / "profile.npz")
    return str(tmp_path / "profile.npz")


@pytest.mark.usefixtures("loaded_children")
def test_record_writes_a_profile_and_shows_what_was_selected(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ktbench", "record", *QUICK, "workload.batch=3", "output=made/here.npz"],
        cwd=tmp_path, env=at_home(tmp_path),
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = read_profile(str(tmp_path / "made/here.npz"), request().parts[0].spec.model)
    assert read.tokens == 3 * 4
    assert read.counts.sum(axis=1).tolist() == [3 * 4 * 2] * 2
    lines = done.stdout.splitlines()
    assert "12 tokens, 2 MoE layers of 8 experts, 2 a token" in lines
    assert lines[-1] == "wrote made/here.npz"
    for layer, share in enumerate(read.hottest_share()):
        assert any(line.split()[:2] == [str(layer), f"{share:.1%}"] for line in lines)
    began = [line.split()[0] for line in done.stderr.splitlines() if not line.startswith("...")]
    assert began == ["loading", "running"]


def test_an_interrupt_ends_the_child_and_leaves_nothing(tmp_path: Path) -> None:
    """The terminal sends SIGINT to the whole group; here the child would go on for a minute."""
    script = tmp_path / "started.py"
    script.write_text(
        "import sys; from ktbench.run import record; from ktbench.cli import main\n"
        "code = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
        "record.RECORD = (sys.executable, '-c', code)\n"
        "sys.exit(main(['record', 'model=tiny', 'output=none.npz']))\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.defpath}
    verb = subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, start_new_session=True
    )
    assert verb.stderr is not None
    number = int(verb.stderr.readline())
    os.killpg(verb.pid, signal.SIGINT)
    assert verb.wait(30) == 130
    assert verb.stderr.read() == b""
    verb.stderr.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    assert not (tmp_path / "none.npz").exists()


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
    monkeypatch.setattr("ktbench.cli.record.RECORD", child(code))
    assert main(["record", "model=tiny", f"output={tmp_path / 'p.npz'}"]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ktbench record: ") and why in captured.err and captured.err.count("\n") == 1


def test_a_cell_that_cannot_run_here_is_exit_code_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "model=gpt_oss_20b", "model.layers=1", "engine.cuda_graph=true", "engine.avx512=true"]) == 4
    assert "UNSUPPORTED: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["output="], "output="),
        (["output=a.npz", "output=b.npz"], "output="),
        (["output=."], "output=.: is a folder, name a new file"),
        (["workload=layer"], "a layer alone has no router; allowed are prefill and decode"),
        (["workload.routing=zipf"], "workload.routing=model"),
        (["+ablation=decode", "model.layers=2"], "takes one cell"),
        (["outptu=a.npz"], "outptu"),
    ],
)
def test_wrong_requests_are_refused_before_anything_loads(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in said(capsys, "record", "model=tiny", *words)


def test_nothing_that_is_there_is_overwritten(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(profile).read_bytes()
    assert f"output={profile}" in said(capsys, "record", "model=tiny", f"output={profile}")
    assert "p.npz" in said(capsys, "record", "model=tiny", f"output={profile}/p.npz")
    assert Path(profile).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["engine.placement.ratio=1.5"], "engine.placement.ratio=1.5: allowed are 0 to 1"),
        (["engine.placement.ratio=-0.1"], "engine.placement.ratio=-0.1: allowed are 0 to 1"),
        (["engine.placement.ratio=0.5"], "policy=frequency needs profile=FILE"),
        (["engine.placement.ratio=0.5", "engine.placement.profile=none.npz"], "none.npz: no such file"),
        (
            ["engine.placement.policy=uniform", "engine.placement.ratio=0.01"],
            "engine.placement.ratio=0.01: is less than one of 16 experts (2 MoE layers of 8)",
        ),
    ],
)
def test_placements_that_cannot_be_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in said(capsys, *PLACED, *words)


def test_a_profile_is_read_before_anything_loads(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("engine.placement.ratio=0.5", f"engine.placement.profile={profile}")
    other = said(capsys, *PLACED, *words, "model=qwen3_30b_a3b", "model.layers=1")
    assert "recorded from tiny, this is qwen3_30b_a3b (experts 8, not 128; top_k 2, not 8; hidden 64" in other
    planned = plan_request(request(*PLACED[2:], *words))
    assert len(planned.cells) == 1


def test_every_cell_of_a_sweep_is_checked(profile: str) -> None:
    """Ratios vary along an axis: the last one is less than one expert."""
    placed = request(*PLACED[2:], "engine.placement.ratio=0.5", f"engine.placement.profile={profile}")
    (part,) = placed.parts
    sweep = replace(part.sweep, arms=("base",), control=False, axes={"engine.placement.ratio": (0.5, 0.01)})
    with pytest.raises(RequestError, match=r"engine\.placement\.ratio=0\.01: is less than one of 16 experts"):
        plan_request(replace(placed, parts=(replace(part, sweep=sweep),)))
