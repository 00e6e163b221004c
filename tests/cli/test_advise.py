"""`advise`: what it prints for several machines, and what it refuses in one line."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import yaml

from ktbench.cli import main
from ktbench.cli.advise import _most, _reach
from ktbench.run.request import read_request
from ktbench.sim.errors import interval, shipped_errors
from ktbench.spec.machine import MachineSpec
from ktbench.spec.wire import from_plain

DESK = ("cpu=Core i9-14900K", "ram=2x48 DDR5-6000", "gpu=RTX 4090")
SERVER = ("cpu=EPYC 9355", "sockets=2", "ram=24x32 DDR5-6400", "gpu=RTX 4090")
SMALL = ("model=deepseek_v2_lite", "context=512")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["advise", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["advise", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What is advised for a desktop, and the file of its description."""
    file = tmp_path_factory.mktemp("desk") / "box.yaml"
    with redirect_stdout(StringIO()) as out:
        assert main(["advise", *DESK, *SMALL, f"out={file}"]) == 0
    return out.getvalue(), file


def test_every_speed_has_its_interval(desk: tuple[str, Path]) -> None:
    text, _ = desk
    assert "simulated" in text
    found = [[end.replace(",", "") for end in ends] for ends in re.findall(r"([\d.,]+) \[([\d.,]+), ([\d.,]+)\]", text)]
    assert len(found) >= 8
    assert all(float(low) < float(speed) < float(high) for speed, low, high in found)


def test_accuracy_is_published_or_said_to_be_unknown(desk: tuple[str, Path]) -> None:
    lines = [line for line in desk[0].splitlines() if "accuracy:" in line]
    assert lines
    assert all(line.endswith("unknown") for line in lines)


def test_a_large_model_does_not_fit_a_desktop_and_others_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "cpu=Ryzen 9 7950X", "ram=2x16 DDR5-6000", "model=deepseek_v3")
    assert text.count("does not fit: ") == 5
    assert "best:" not in text
    assert "qwen3_30b_a3b fits in int4_g32" in text
    assert "kimi_k2 fits" not in text


def test_a_second_module_in_each_channel_makes_a_model_fit(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "cpu=Ryzen 9 7950X", "ram=2x32 DDR5-6000", "model=qwen3_235b_a22b")
    assert re.search(r"with a second module in each channel \(.*4x32 .*3,600 MT/s\) it fits in int4_g32: ", text)


def test_it_says_how_fast_modules_run_that_share_channels(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("gpu=RTX 4090", *SMALL)
    shared, alone, stated, unknown = (
        said(capsys, f"cpu={cpu}", f"ram={ram}", *small).splitlines()[1]
        for cpu, ram in (
            ("EPYC 9654", "24x64 DDR5-4800"),
            ("EPYC 9654", "12x64 DDR5-4800"),
            ("EPYC 9654", "24x64 DDR5-4800 at 4400"),
            ("EPYC 9355", "24x64 DDR5-6400"),
        )
    )
    assert "3,600" in shared
    assert "https://" in shared
    assert alone == stated
    assert "6,400" in unknown


def test_a_server_is_advised_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *SERVER, "model=deepseek_v3", "target=5")
    assert re.search(r"^bf16 +does not fit: weights take 1,2\d\d GiB", text, re.MULTILINE)
    best = next(line for line in text.splitlines() if line.startswith("best: "))
    assert best.startswith("best: fp8 as released, +v+d+n+c, ")
    assert best.endswith("reaches 5: yes")
    assert "another GPU (2x EPYC 9355, 24x32 DDR5-6400, 2x RTX 4090): " in text
    assert re.search(r"a second module in each channel \(2x EPYC 9355, 48x32 .*; bf16 fits then: ", text)
    assert "as released, deepseek-ai/DeepSeek-V3, " in text
    assert "published" in text


def test_the_machine_is_written_for_other_verbs(desk: tuple[str, Path]) -> None:
    _, file = desk
    machine = from_plain(yaml.safe_load(file.read_text()), MachineSpec)
    assert machine.gpu == "RTX 4090"
    spec = read_request([f"machine={file}", "model=deepseek_v2_lite"]).parts[0].spec
    assert spec.machine == machine


def test_what_is_beyond_the_budget_is_no_upgrade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\ngpu: 1900\nmemory: 300\n")
    text = said(capsys, *DESK, *SMALL, "budget=1000", f"prices={prices}")
    assert "another GPU: 1,900 EUR, beyond the budget" in text
    assert "helps most: none" in text


def test_a_verdict_needs_the_whole_interval() -> None:
    low, high = interval(shipped_errors(), 10.0)
    assert [_reach(10.0, target) for target in (low * 0.99, 10.0, high * 1.01)] == ["yes", "too close to call", "no"]


def test_upgrades_that_are_about_as_good_are_not_ranked() -> None:
    assert _most([(0.5, "a"), (0.1, "b")], 0.1) == "helps most: a"
    assert _most([(0.5, "a"), (0.45, "b"), (0.1, "c")], 0.1) == "helps most: too close to call between a and b"
    assert _most([(0.05, "a")], 0.1).startswith("helps most: none")
    assert _most([], 0.1).startswith("helps most: none")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ("needs cpu=", "cpu=here")),
        (("cpu=EPYC 9355", *SMALL), ("needs ram=",)),
        ((*DESK,), ("needs model=",)),
        (("cpu=EPYC 93", "ram=12x64 DDR5-6400", *SMALL), ("cpu=EPYC 93", "nearest")),
        ((*DESK, "model=deepseek_v33"), ("deepseek_v33", "deepseek_v3")),
        ((*DESK, *SMALL, "gppu=RTX 4090"), ("gppu=RTX 4090", "did you mean gpu?")),
        ((*DESK, *SMALL, "gpu=RTX 3090"), ("given twice",)),
        ((*DESK, *SMALL, "inject=experts"), ("inject=experts",)),
        ((*DESK, *SMALL, "target=fast"), ("target=fast", "above 0")),
        ((*DESK, *SMALL, "target=-1"), ("target=-1", "above 0")),
        ((*DESK, "model=deepseek_v2_lite", "context=0"), ("context=0", "whole number")),
        ((*DESK, "model=deepseek_v2_lite", "context=10000000"), ("context=10000000", "163,840")),
        ((*DESK, *SMALL, "sockets=2"), ("sockets=2", "1 to 1")),
        (("cpu=Core i9-14900K", "ram=6x48 DDR5-6000", *SMALL), ("ram=6x48", "up to 4 modules")),
        ((*DESK, *SMALL, "budget=100"), ("prices=FILE.yaml",)),
        ((*DESK, *SMALL, "budget=100", "prices=nosuch.yaml"), ("nosuch.yaml",)),
        (("cpu=here", "gpu=RTX 4090", *SMALL), ("cpu=here",)),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    text = refused(capsys, *words)
    assert all(part in text for part in parts), text


def test_here_needs_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "probe" in refused(capsys, "cpu=here", *SMALL)


@pytest.mark.parametrize("text", ["currency: EUR\ngpus: 3\n", "currency: EUR\ngpu: much\n", "- gpu\n"])
def test_wrong_prices_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(text)
    assert str(prices) in refused(capsys, *DESK, *SMALL, "budget=100", f"prices={prices}")
