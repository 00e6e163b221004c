"""Machines as a group: presets, files, changes of constants, axes over machines and models, the device that follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore

from ktbench.config import Request, compose, freeze
from ktbench.resources import checkout, data_folder
from ktbench.spec.cells import plan_cells
from ktbench.spec.errors import RequestError
from ktbench.spec.machine import CONSTANTS, MachineSpec
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import from_plain

FOLDER = data_folder("conf") / "machine"
PRESETS = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "here")
TINY = ("model=tiny", "sweep.control=false")


def requested(*overrides: str, local: Mapping[str, Any] | None = None) -> Request:
    return freeze(compose(overrides) if local is None else compose(overrides, lambda: local))


def spec_of(*overrides: str, local: Mapping[str, Any] | None = None) -> RunSpec:
    (part,) = requested(*overrides, local=local).parts
    return part.spec


def machine_of(*overrides: str, local: Mapping[str, Any] | None = None) -> MachineSpec:
    machine = spec_of("model=tiny", *overrides, local=local).machine
    assert machine is not None
    return machine


def cells_of(*overrides: str) -> tuple[Cell, ...]:
    (part,) = requested(*overrides).parts
    return plan_cells(part.spec, part.sweep)


def described(**changes: Any) -> dict[str, Any]:
    """A description of one's own: the paper's box under another name."""
    content: dict[str, Any] = yaml.safe_load((FOLDER / "paper_a100.yaml").read_text())
    return content | {"name": "mine"} | changes


def written(folder: Path, content: Any) -> str:
    file = folder / "mine.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return f"machine={file}"


def refusal(*overrides: str) -> str:
    with pytest.raises(RequestError) as raised:
        cells_of(*overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_description_that_has_changed_is_read_again(tmp_path: Path) -> None:
    word = written(tmp_path, described())
    before = machine_of(word)
    assert machine_of(written(tmp_path, described(cores=7))) == replace(before, cores=7)


def test_without_a_machine_a_cell_is_measured_here() -> None:
    spec = spec_of("model=tiny")
    assert (spec.machine, spec.engine.device) == (None, "cpu")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_freezes_as_it_is_written(name: str) -> None:
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert machine_of(f"machine={name}") == from_plain(content, MachineSpec)
    assert content["name"] == name
    assert set(content) == set(yaml.safe_load((FOLDER / "here.yaml").read_text()))


@pytest.mark.parametrize("name", PRESETS)
def test_peaks_are_the_products_that_their_sources_name(name: str) -> None:
    machine = from_plain(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()), MachineSpec)
    for constant in ("vector_tflops", "vector_int8_tops", "amx_tflops", "amx_int8_tops"):
        value = getattr(machine, constant)
        if value is None or machine.sources[constant].startswith("Measured"):
            continue
        found = re.search(r"(\d+) cores x ([\d.]+) GHz.*? x (\d+)", machine.sources[constant])
        assert found, constant
        cores, ghz, per_cycle = map(float, found.groups())
        assert cores == machine.cores
        assert value == pytest.approx(cores * ghz * per_cycle / 1000, rel=0.005)


def test_the_papers_box_is_the_papers() -> None:
    machine = machine_of("machine=paper_a100")
    assert (machine.domains, machine.cores, machine.read_gb_per_s, machine.remote_gb_per_s) == (2, 36, 220, 125)
    assert (machine.amx_tflops, machine.gpu_memory_gib, machine.link_gb_per_s) == (73.7, 40, 32)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    word = written(tmp_path, described(cores=48))
    assert machine_of(word) == from_plain(described(cores=48), MachineSpec)
    changed = machine_of(word, "machine.cores=64")
    assert (changed.cores, changed.sources["cores"]) == (64, "changed by the request (mine: 48)")


def test_a_file_may_leave_out_what_a_machine_need_not_have(tmp_path: Path) -> None:
    host = [constant.name for constant in CONSTANTS if constant.of == "host" and not constant.optional]
    content = {key: value for key, value in described().items() if key in ("name", "title", "vector", *host)}
    content["sources"] = dict.fromkeys(host, "measured")
    word = written(tmp_path, content)
    assert machine_of(word).gpu is None
    assert spec_of("model=tiny", word).engine.device == "cpu"
    assert machine_of(word, "machine.amx_tflops=50", "machine.amx_int8_tops=100").amx_tflops == 50


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({key: value for key, value in described().items() if key != "cores"}, "the key cores is missing"),
        (described(core=4), "unknown key 'core', did you mean cores?"),
        (described(cores=0), "machine.cores=0: must be above 0"),
        (described(read_gb_per_s=-1), "machine.read_gb_per_s=-1.0: must be above 0"),
        (described(read_gb_per_s="fast"), "read_gb_per_s: expected float, got str"),
        (described(vector="sse"), "vector: invalid enum value 'sse'; allowed are avx512, avx2"),
        (described(gpu_ghz=None), "machine.gpu_ghz: missing, machine.gpu=A100 40 GB PCIe needs it"),
        (described(sources={}), "machine.domains=2: has no source"),
        (described(sources=None), "machine.domains=2: has no source"),
        (described(sources=described()["sources"] | {"cores": None}), "machine.cores=36: has no source"),
        (described(sources=described()["sources"] | {"core": "?"}), "machine.sources.core: no such constant"),
        (described(sources=3), "sources: expected object, got int"),
        (described(name="paper_4080"), "paper_4080 is a shipped machine with other constants"),
        (described(name="here"), "here is a shipped machine with other constants"),
        ("a: [", "is not YAML of a machine"),
        ("3", "must be a mapping with the keys name, title"),
        ("- 1", "must be a mapping with the keys name, title"),
        ("cores: 1\ncores: 2", "is not YAML of a machine"),
    ],
)
def test_a_file_is_refused_by_its_name_and_the_constants(tmp_path: Path, content: Any, says: str) -> None:
    word = written(tmp_path, content)
    said = refusal("model=tiny", word)
    assert said.startswith(f"{word}: ")
    assert says in said


def test_what_probe_wrote_is_called_local() -> None:
    machine = machine_of("machine=local", "machine.read_gb_per_s=44", local=described(name="local"))
    assert (machine.name, machine.read_gb_per_s) == ("local", 44)
    assert machine.sources["read_gb_per_s"] == "changed by the request (local: 220 GB/s)"
    assert "machine=local: the key cores is missing" in _refused_local({})
    assert "run `python -m ktbench probe` first" in refusal("model=tiny", "machine=local")


def _refused_local(content: dict[str, Any]) -> str:
    missing = {key: value for key, value in described().items() if key != "cores"} | content
    with pytest.raises(RequestError) as raised:
        requested("machine=local", local=missing)
    return str(raised.value)


def test_a_changed_constant_says_so_in_its_source_and_no_other_does() -> None:
    plain, changed = machine_of("machine=paper_4080"), machine_of("machine=paper_4080", "machine.read_gb_per_s=300")
    assert changed.read_gb_per_s == 300
    assert changed.sources == plain.sources | {"read_gb_per_s": "changed by the request (paper_4080: 220 GB/s)"}
    same = machine_of("machine=paper_4080", "machine.read_gb_per_s=220.0", "machine.title=Mine")
    assert (same.sources, same.title) == (plain.sources, "Mine")
    said = machine_of("machine=paper_4080", "machine.cores=48", "machine.sources.cores=my own count")
    assert said.sources["cores"] == "my own count"
    assert machine_of("machine=paper_4080", "machine.amx_tflops=null", "machine.amx_int8_tops=null").amx_tflops is None


def test_a_list_of_a_constant_is_an_axis_whose_cells_say_what_it_was() -> None:
    cells = cells_of(*TINY, "machine=paper_a100", "machine.cores=48,36", "machine.read_gb_per_s=300")
    machines = [cell.spec.machine for cell in cells]
    assert [machine and machine.cores for machine in machines] == [48, 36]
    assert [machine and machine.sources["cores"] for machine in machines] == [
        "changed by the request (paper_a100: 36)",
        machine_of("machine=paper_a100").sources["cores"],
    ]
    assert {machine and machine.read_gb_per_s for machine in machines} == {300}


def test_a_list_of_machines_has_each_cell_on_its_device() -> None:
    cells = cells_of(*TINY, "machine=paper_a100,here")
    assert [(cell.spec.machine and cell.spec.machine.name, cell.spec.engine.device) for cell in cells] == [
        ("paper_a100", "cuda"),
        (None, "cpu"),
    ]


def test_machines_and_their_constants_vary_together_in_any_order(tmp_path: Path) -> None:
    written(tmp_path, described())
    words = ["machine.cores=8,16", f"machine=paper_4080,{tmp_path}/mine.yaml", "machine.read_gb_per_s=100"]
    found = [cell.spec.machine for cell in cells_of(*TINY, *words)]
    assert [(one.name, one.cores, one.read_gb_per_s) for one in found if one] == [
        ("paper_4080", 8, 100),
        ("mine", 8, 100),
        ("paper_4080", 16, 100),
        ("mine", 16, 100),
    ]
    assert found[3] and found[3].sources["cores"] == "changed by the request (mine: 36)"


def test_overrides_of_a_model_are_for_every_model_of_a_list() -> None:
    cells = cells_of("model=deepseek_v3,qwen2_57b_a14b", "model.layers=4", "sweep.control=false")
    models = [cell.spec.model for cell in cells]
    assert [(model.name, model.shape.layers, model.full_layers) for model in models] == [
        ("deepseek_v3", 4, 61),
        ("qwen2_57b_a14b", 4, 28),
    ]
    for model in models:
        assert model == spec_of(f"model={model.name}", "model.layers=4").model


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> str:
    """An ablation over models, each with the precision and the machine that it is shown with."""
    axis = [
        {"model": "deepseek_v3", "precision": "bf16", "machine": "paper_a100"},
        {"model": "tiny", "precision": "int8", "machine": "paper_4080"},
        {"model": "tiny", "engine.dynamic": True, "machine": "core_14900kf_4090", "engine.device": "cpu"},
        {"model": "tiny", "machine": "here"},
    ]
    sweep = {"arms": ["+v"], "baseline": "+v", "control": False, "axes": {"model": axis}}
    ConfigStore.instance().store(group="ablation", name="models", node={"sweep": sweep}, package="_global_")
    composing = import_module("ktbench.config.compose")
    groups = composing.group_options()
    monkeypatch.setattr(composing, "group_options", lambda words: groups | {"ablation": ["models"]})
    return "+ablation=models"


def _shown(cells: tuple[Cell, ...]) -> list[tuple[str, str, str | None, str]]:
    specs = [cell.spec for cell in cells]
    return [(spec.model.name, spec.precision, spec.machine and spec.machine.name, spec.engine.device) for spec in specs]


def test_models_bring_precision_and_machine_with_them(models: str) -> None:
    assert _shown(cells_of(models)) == [
        ("deepseek_v3", "bf16", "paper_a100", "cuda"),
        ("tiny", "int8", "paper_4080", "cuda"),
        ("tiny", "bf16", "core_14900kf_4090", "cpu"),
        ("tiny", "bf16", None, "cpu"),
    ]


def test_an_override_takes_its_key_from_the_axis_and_the_rest_stays(models: str) -> None:
    assert _shown(cells_of(models, "model=deepseek_v3")) == [("deepseek_v3", "bf16", "paper_a100", "cuda")]
    assert _shown(cells_of(models, "model=qwen2_57b_a14b,deepseek_v3", "engine.device=cpu")) == [
        ("qwen2_57b_a14b", "bf16", None, "cpu"),
        ("deepseek_v3", "bf16", "paper_a100", "cpu"),
    ]


def test_a_device_that_is_set_or_varied_stays() -> None:
    assert spec_of("model=tiny", "machine=paper_a100").engine.device == "cuda"
    assert spec_of("model=tiny", "machine=paper_a100", "engine.device=cpu").engine.device == "cpu"
    cells = cells_of(*TINY, "engine.device=cuda,cpu", "machine=paper_a100,core_14900kf_4090")
    assert [cell.spec.engine.device for cell in cells] == ["cuda", "cuda", "cpu", "cpu"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["machine=paper_a10"], "machine=paper_a10: unknown, did you mean paper_a100?"),
        (["machine=paper_a10"], " local, FILE.yaml"),
        (["machine=nowhere.yaml"], "machine=nowhere.yaml: No such file or directory"),
        (["machine=paper_a100,paper_a10"], "machine=paper_a10: unknown"),
        (["machine=paper_a100,paper_a100"], "are the same cell"),
        (["machine=paper_a100,3"], "sweep.axes: machine: 3 must be a name"),
        (["machine.cores=48"], "machine.cores=48: only described machines can change"),
        (["machine.cores=24,48"], "sweep.axes.machine.cores: the machine here is measured as it is"),
        (["machine=paper_a100,here", "machine.cores=48"], "machine.cores=48: only described machines can change"),
        (["machine=paper_a100", "machine.core=4"], "machine.core: unknown key, did you mean machine.cores?"),
        (["machine=paper_a100", "machine.cores=0"], "machine.cores=0: must be above 0 (cores of a domain)"),
        (["machine=paper_a100", "machine.cores=many"], "machine.cores: expected int, got str"),
        (["machine=paper_a100", "machine.cores=8,0"], "machine.cores=0: must be above 0"),
        (["machine=paper_a100", "machine.cores=8,many"], "machine.cores: expected int, got str"),
        (["machine=paper_a100", "machine.gpu=null"], "machine.gpus=1: name the GPU with machine.gpu"),
        (["machine=paper_a100", "machine.sources=null"], "machine.sources: expected object, got null"),
        (["machine=paper_a100", "machine.sources.cores=''"], "machine.cores=36: has no source"),
        (["calibration=ktransformers"], "calibration: unknown key"),
    ],
)
def test_mistake_is_one_line(overrides: list[str], says: str) -> None:
    assert says in refusal(*TINY, *overrides)


def test_every_model_of_a_list_must_be_there() -> None:
    assert refusal("model=tiny,tinny").startswith("model=tinny: unknown, did you mean tiny?")


def test_the_docs_name_every_constant_and_preset_and_their_example_is_a_machine(tmp_path: Path) -> None:
    text = (checkout() / "docs" / "machines.md").read_text()
    rows = {name for line in text.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    assert {*PRESETS, *(constant.name for constant in CONSTANTS)} <= rows
    (example,) = re.findall(r"```yaml\n(name: .*?)```", text, re.DOTALL)
    assert machine_of(written(tmp_path, example)).name == "my_box"
