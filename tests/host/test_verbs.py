"""The verbs `doctor` and `probe`: what they answer, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ktbench.cli import doctor, probe
from ktbench.core.errors import RequestError
from ktbench.core.features import FEATURES
from ktbench.host import gauges
from ktbench.host.describe import Constant, MachineDescription, load_description
from ktbench.host.extension import Extension, load_extension

MIB = 2**20


def test_doctor_has_a_line_for_every_feature(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run([]) == 0
    out = capsys.readouterr().out
    for feature in FEATURES:
        assert feature.title in out
    assert [line for line in out.splitlines() if not line.startswith(" ")] == ["machine", "features", "health"]
    assert all(line == line.rstrip() for line in out.splitlines())


def test_doctor_loads_nothing_heavy() -> None:
    ask = "import sys; from ktbench.cli import doctor; doctor.run([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not {"torch", "transformers", "numpy", "pandas", "hydra"} & loaded


def test_doctor_answers_without_the_extension(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Extension(module=None, reason="the kernel extension is not built: run pip install -e .")
    monkeypatch.setattr("ktbench.host.grants.load_extension", lambda: missing)
    monkeypatch.setattr("ktbench.host.extension.load_extension", lambda: missing)
    assert doctor.run([]) == 0
    out = capsys.readouterr().out
    assert f"AVX-512: {missing.reason}" in out
    assert f"- ({missing.reason})" in out


@pytest.mark.parametrize("argument", ["fast", "out=x", "--json"])
def test_doctor_takes_no_argument(argument: str) -> None:
    with pytest.raises(RequestError, match=f"^doctor {argument}: unknown argument"):
        doctor.run([argument])


@pytest.mark.parametrize("argument", ["fast", "out=", "to=x.yaml"])
def test_probe_refuses_unknown_arguments(argument: str) -> None:
    with pytest.raises(RequestError, match=f"^probe {argument}: unknown argument; allowed is out=FILE$"):
        probe.run([argument])


def test_probe_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="this is a folder"):
        probe.run([f"out={tmp_path}"])


def test_probe_refuses_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Extension(module=None, reason="the kernel extension is not built")
    monkeypatch.setattr("ktbench.host.extension.load_extension", lambda: missing)
    with pytest.raises(RequestError, match=r"^probe: the kernel extension is not built$"):
        probe.run([])


def test_probe_refuses_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    if load_extension().module is None:
        pytest.skip("the kernel extension is not built")
    monkeypatch.setattr("ktbench.host.memory.available_memory_bytes", lambda: 2**30)
    with pytest.raises(RequestError, match=r"needs \d+\.0 GiB of memory, 1\.0 GiB are free"):
        probe.run([])


def test_probe_prints_a_table_and_saves_the_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if load_extension().module is None:
        pytest.skip("the kernel extension is not built")
    opened = gauges.open_instruments
    monkeypatch.setattr(gauges, "open_instruments", lambda *given: opened(*given, buffer_bytes=32 * MIB))
    path = tmp_path / "machine.yaml"
    assert probe.run([f"out={path}"]) == 0
    out, machine = capsys.readouterr().out, load_description(path)
    assert out.splitlines()[-1] == f"wrote {path}"
    for constant in machine.constants.values():
        assert constant.title in out
        assert constant.why in out


def test_the_table_shows_units_intervals_and_reasons() -> None:
    read = Constant(
        title="read bandwidth",
        unit="bytes/s",
        value=3e10,
        source="measured",
        samples=tuple(n * 1e9 for n in range(25, 37)),
    )
    machine = MachineDescription(
        name="Test CPU",
        env_id="abc",
        created="2026-11-20",
        placement="near",
        facts={},
        constants={"read.all": read, "gpu.launch": Constant(title="launch", unit="ns", why="no CUDA device")},
    )
    lines = probe.table(machine)
    assert lines[0] == "Test CPU (env abc); first two cores near"
    assert lines[2].split() == ["read", "bandwidth", "30.5", "GB/s", "27", "to", "34"]
    assert lines[3].split() == ["launch", "-", "no", "CUDA", "device"]
