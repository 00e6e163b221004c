"""The verbs `doctor` and `probe`: what they answer, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ktbench.cli import doctor, probe
from ktbench.host.code import Extension, load_extension
from ktbench.host.describe import Constant, MachineDescription, load_description
from ktbench.run import probe as measuring
from ktbench.spec.core_layout import CoreLayout
from ktbench.spec.errors import RequestError
from ktbench.spec.features import FEATURES
from tests.command import python_output

MIB = 2**20
NEEDS_KERNELS = pytest.mark.skipif(load_extension().module is None, reason=load_extension().reason)


def test_doctor_has_a_line_for_every_feature(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run([]) == 0
    out = capsys.readouterr().out
    for feature in FEATURES:
        assert feature.title in out
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        "machine",
        "features",
        "kernels",
        "peers",
        "health",
    ]
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (
            (),
            [
                "runs: bf16 +a runs avx2; +v runs the faster of avx512 and avx512_bf16; +m runs amx",
                "runs: other formats "
                "+a runs the faster of avx2 and avx2_vnni; +v runs the faster of avx512 and avx512_vnni; +m runs amx",
            ],
        ),
        (
            ("amx", "avx512_bf16"),
            [
                "amx - (the CPU has no amx)",
                "avx512_bf16 - (the CPU has no avx512_bf16)",
                "runs: bf16 +a runs avx2; +v runs avx512",
            ],
        ),
        (
            ("amx", "avx512", "avx512_vnni", "avx512_vbmi", "avx512_bf16"),
            [
                "instruction sets reference, avx2, avx2_vnni, amx_emulated",
                "runs: other formats +a runs the faster of avx2 and avx2_vnni",
            ],
        ),
    ],
)
def test_doctor_tells_which_instruction_sets_the_kernels_use(
    refused: Sequence[str], said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = pytest.importorskip("ktbench._kernels", reason="the extension is not built", exc_type=ImportError)
    module: Any = ModuleType("_kernels")
    module.grants = lambda: {isa: f"the CPU has no {isa}" if isa in refused else "" for isa in real.grants()}
    module.formats, module.isas, module.isa_of = real.formats, real.isas, real.isa_of
    module.crossovers, module.build_id = real.crossovers, real.build_id
    monkeypatch.setattr("ktbench.cli.doctor.load_extension", lambda: Extension(module=module))
    monkeypatch.setattr("ktbench.cli.doctor.core_to_core_ns", lambda kernels, cpus: 10.0)
    assert doctor.run([]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert set(said) <= set(lines)
    assert any("the first two cores share one physical core now (10 ns" in line for line in lines)


def test_doctor_loads_nothing_heavy() -> None:
    ask = "import sys; from ktbench.cli import doctor; doctor.run([]); print(*sys.modules)"
    printed = python_output(ask)
    loaded = set(printed.splitlines()[-1].split())
    assert not {"torch", "transformers", "numpy", "pandas", "hydra"} & loaded


def test_doctor_answers_without_the_extension(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Extension(module=None, reason="the kernel extension is not built: run pip install -e .")
    monkeypatch.setattr("ktbench.host.capabilities.load_extension", lambda: missing)
    monkeypatch.setattr("ktbench.cli.doctor.load_extension", lambda: missing)
    assert doctor.run([]) == 0
    out = capsys.readouterr().out
    assert f"AVX-512: {missing.reason}" in out
    assert f"- ({missing.reason})" in out


@pytest.mark.parametrize(
    ("verb", "argument", "says"),
    [
        *[(doctor, argument, "unknown argument") for argument in ("fast", "out=x", "--json")],
        *[(probe, argument, "unknown argument; allowed are out, wait") for argument in ("fast", "to=x.yaml")],
        (probe, "out=", "give it a value"),
    ],
)
def test_wrong_arguments_are_refused(verb: ModuleType, argument: str, says: str) -> None:
    name = verb.__name__.rpartition(".")[2]
    with pytest.raises(RequestError, match=f"^{name} {argument}: {says}"):
        verb.run([argument])


def test_probe_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="this is a folder"):
        probe.run([f"out={tmp_path}"])


def test_probe_refuses_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Extension(module=None, reason="the kernel extension is not built")
    monkeypatch.setattr(measuring, "load_extension", lambda: missing)
    with pytest.raises(RequestError, match=r"^probe: the kernel extension is not built$"):
        probe.run([])


@NEEDS_KERNELS
def test_probe_refuses_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "available_memory_bytes", lambda: 2**30)
    with pytest.raises(RequestError, match=r"needs \d+\.0 GiB of memory, 1\.0 GiB are free"):
        probe.run([])


@NEEDS_KERNELS
def test_probe_prints_a_table_and_saves_the_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loops of one format are timed; how they are, of any format, is the subject of test_crossovers.py."""
    opened, timed, formats = measuring.open_instruments, measuring.use_crossovers, list[str]()

    def use_crossovers(kernels: Any, precisions: list[str], cpus: Sequence[int], *, anew: bool) -> None:
        formats.extend(precisions)
        if precisions == ["bf16"]:
            timed(kernels, precisions, cpus, anew=anew)

    monkeypatch.setattr(measuring, "use_crossovers", use_crossovers)
    monkeypatch.setattr(measuring, "open_instruments", lambda *given: opened(*given, buffer_bytes=32 * MIB))
    monkeypatch.setattr(measuring, "_SECONDS", 0.0)
    path = tmp_path / "machine.yaml"
    assert probe.run([f"out={path}"]) == 0
    out, machine = capsys.readouterr().out, load_description(path)
    assert out.splitlines()[-1] == f"wrote {path}"
    assert "bf16" in formats and len(formats) == len({*formats}) > 10
    for constant in machine.constants.values():
        assert constant.title in out
        assert constant.why in out


def probed(*placements: CoreLayout) -> MachineDescription:
    """A machine that read 25, 26, 27 … GB/s while its cores were there."""
    read = Constant(
        title="read bandwidth",
        unit="bytes/s",
        value=3e10,
        source="measured",
        samples=tuple((25 + n) * 1e9 for n in range(len(placements) or 12)),
        placements=placements,
    )
    return MachineDescription(
        name="Test CPU",
        env_id="abc",
        created="2026-11-20",
        placement=placements[0] if placements else None,
        facts={},
        constants={"read.all": read, "gpu.launch": Constant(title="launch", unit="ns", why="no CUDA device")},
    )


def test_the_table_shows_units_intervals_and_reasons() -> None:
    lines = measuring.table(probed())
    assert lines[0] == "Test CPU (env abc), measured 2026-11-20"
    assert lines[1] == "medians with distribution-free 95 % intervals, 12 interleaved repeats"
    assert lines[2].split() == ["read", "bandwidth", "30.5", "GB/s", "27", "to", "34"]
    assert lines[3].split() == ["launch", "-", "no", "CUDA", "device"]
    assert lines[4] == "placement of the cores: - (one usable core)"


def test_one_placement_is_named_with_its_range() -> None:
    lines = measuring.table(probed(*["near"] * 12))
    assert lines[1].endswith(", of which those with the cores near count")
    assert lines[-1] == (
        "placement of the cores: near throughout (one last-level cache); "
        "read bandwidth: 30.5 GB/s, 25 to 36 in 12 samples"
    )


def test_each_of_several_placements_has_its_own_bandwidth() -> None:
    lines = measuring.table(probed("far", "near", "far", "far", "moved", "same core"))
    assert lines[2].split() == ["read", "bandwidth", "27", "GB/s", "25", "to", "28"], "the commonest one's"
    assert lines[-5:] == [
        "placement of the cores changed; read bandwidth, median and range at each:",
        "  same core  30 GB/s, 30 to 30 in 1 sample (two threads of one core: arithmetic halves)",
        "  near       26 GB/s, 26 to 26 in 1 sample (one last-level cache)",
        "  far        27 GB/s, 25 to 28 in 3 samples (two last-level caches)",
        "  moved      29 GB/s, 29 to 29 in 1 sample (changed between two readings: not used)",
    ]
