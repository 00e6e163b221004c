"""Overrides become frozen specs; every YAML composes; every mistake is one line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ktbench.config import ModelFiles, Request, ablation_names, compose, freeze
from ktbench.config.freeze import freeze_model
from ktbench.resources import data_folder, option_files
from ktbench.spec.cells import plan_cells
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.weights import Precision
from tests.tiny import CONFIG

CHECKPOINT = {"somewhere": CONFIG}
SHIPPED = {"evals/nano": json.loads((data_folder("evals") / "nano" / "config.json").read_text())}


def requested(*overrides: str) -> Request:
    return freeze(compose(overrides), ModelFiles(checkpoints=SHIPPED))


def spec_of(*overrides: str) -> RunSpec:
    (part,) = requested(*overrides).parts
    return part.spec


def arms_of(ablation: str) -> tuple[str, ...]:
    (part,) = requested(f"+ablation={ablation}").parts
    return part.sweep.arms


@pytest.mark.parametrize("name", ablation_names())
def test_every_ablation_composes_to_cells(name: str) -> None:
    request = requested(f"+ablation={name}")
    cells = [cell for part in request.parts for cell in plan_cells(part.spec, part.sweep, part.name)]
    least = 0 if all(part.sweep.is_published_alone for part in request.parts) else 2
    assert len({cell.key for cell in cells}) == len(cells) >= least


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (data_folder("conf") / group).glob("*.yaml"))


@pytest.mark.parametrize("model", options("model"))
def test_every_model_composes(model: str) -> None:
    assert spec_of(f"model={model}").model.shape.moe_layers > 0


@pytest.mark.parametrize("workload", options("workload"))
def test_every_workload_composes(workload: str) -> None:
    assert spec_of(f"workload={workload}").workload.phase == workload


def test_breakdown_order_is_the_papers() -> None:
    assert arms_of("decode") == ("base", "+v", "+m", "+v+d", "+v+d+n", "+v+d+n+c")
    assert arms_of("prefill") == ("base", "+v", "+m", "+m+d", "+m+d+n", "+m+d+n+c")


@pytest.mark.parametrize("name", ["formats", "accuracy_precision"])
def test_ablations_of_formats_have_all_of_them(name: str) -> None:
    assert requested(f"+ablation={name}").parts[0].sweep.axes["precision"] == get_args(Precision)
    fewer = requested(f"+ablation={name}", "precision=int8,q4_0")
    assert fewer.parts[0].sweep.axes["precision"] == ("int8", "q4_0")


def test_formats_are_timed_in_both_phases_with_one_baseline() -> None:
    (part,) = requested("+ablation=formats", "suite=null", "model=tiny").parts
    cells = plan_cells(part.spec, part.sweep)
    assert [cell.spec.workload.phase for cell in cells[:: len(cells) // 2]] == ["prefill", "decode"]
    assert (cells[0].label, cells[0].spec.precision) == (part.sweep.baseline, "bf16")


def test_routings_of_one_layer_are_general_over_formats() -> None:
    (part,) = requested("+ablation=kernels/routing").parts
    assert part.spec.precision == "mxfp4"
    assert {point["workload.routing"] for point in part.sweep.points} == {"balanced", "zipf", "concentrated"}
    (other,) = requested("+ablation=kernels/routing", "precision=int8").parts
    assert {cell.spec.precision for cell in plan_cells(other.spec, other.sweep)} == {"int8"}


MODELS = sorted(option_files("model").keys() - {"nano", "tiny"})


@pytest.mark.parametrize("name", MODELS)
def test_the_work_of_a_whole_model_over_its_slice_is_that_of_its_weights(name: str) -> None:
    """None where the first layers are dense, of which a slice has another share."""
    part, whole = (spec_of(f"model={name}", f"model.layers={layers}").model for layers in ("4", "null"))
    factor = part.whole_over_slice
    assert whole.whole_over_slice is None
    assert (factor is None) == (part.shape.dense_layers > 0)
    if factor:
        assert factor == pytest.approx(_met_by_a_token(whole.shape) / _met_by_a_token(part.shape), rel=0.01)
    full = replace(part, config=part.config | {"vocab_size": whole.shape.vocab})
    assert full.whole_over_slice is None


def _met_by_a_token(shape: MoEShape) -> int:
    """Weights that a token passes: of every layer, and the output head's."""
    experts = shape.moe_layers * (shape.top_k * shape.expert_params + 3 * shape.hidden * shape.shared_ffn)
    dense = shape.dense_layers * 3 * shape.hidden * shape.dense_ffn
    return shape.layers * shape.attention_params + experts + dense + shape.vocab * shape.hidden


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        ([], {4}),
        (["machine=paper_a100"], {48}),
        (["machine=paper_a100,paper_4080"], {48}),
        (["machine=paper_a100,here"], {4}),
        (["machine=paper_a100", "model.layers=4"], {4}),
        (["machine=paper_a100", "model=qwen3_30b_a3b,mixtral_8x7b"], {48, 32}),
    ],
)
def test_where_nothing_is_measured_models_are_whole(words: list[str], layers: set[int]) -> None:
    (part,) = requested("+ablation=decode", *words).parts
    assert {cell.spec.model.shape.layers for cell in plan_cells(part.spec, part.sweep)} == layers


def test_slice_keeps_width_and_the_heads_share() -> None:
    model, full = spec_of("model.layers=4").model, spec_of().model
    assert model.shape.hidden == full.shape.hidden
    assert model.shape.vocab / full.shape.vocab == pytest.approx(4 / 48, rel=0.01)
    assert spec_of("model.layers=4", "model.vocab=full").model.shape.vocab == full.shape.vocab


@pytest.mark.parametrize(("model", "built"), [("qwen3_30b_a3b", 16), ("deepseek_v3", 16), ("mixtral_8x7b", 8)])
def test_a_layer_is_built_with_fewer_experts_under_the_familys_own_key(model: str, built: int) -> None:
    spec = spec_of("workload=layer", f"model={model}", "model.experts=16")
    assert spec.model.shape.experts == built
    assert set(spec.model.config) == set(spec_of(f"model={model}").model.config)


def test_a_checkpoint_brings_its_own_configuration() -> None:
    composed = compose(["model.path=somewhere"])
    config = composed.run["model"]["config"] | {"hidden_size": 1024}
    model = freeze(composed, ModelFiles(checkpoints={"somewhere": config})).parts[0].spec.model
    assert (model.name, model.shape.hidden) == ("somewhere", 1024)


def test_what_is_made_of_one_composition_is_not_in_the_next() -> None:
    compose(["model=tiny"]).run["model"]["config"]["hidden_size"] = 8
    assert spec_of("model=tiny").model.shape.hidden != 8


def test_lists_kept_per_layer_are_cut_with_the_depth() -> None:
    facts = compose(["model.layers=3"]).run["model"]
    facts["config"]["layer_types"] = ["full", "sliding"] * 24
    assert freeze_model(facts, ModelFiles(), phase="decode")["config"]["layer_types"] == ["full", "sliding", "full"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+ablation=decodee"], "ablation=decodee: unknown, did you mean decode"),
        (["model=qwen3_30b"], "did you mean qwen3_30b_a3b"),
        (["workload=prefil"], "did you mean prefill"),
        (["engine.avx51=true"], "engine.avx51: unknown key, did you mean engine.avx512"),
        (["+enginev=true"], "enginev: unknown key"),
        (["engine.avx512=maybe"], "engine.avx512: expected bool, got str"),
        (["precision=int3"], "precision: invalid enum value 'int3', did you mean int8?"),
        (["engine.deferral=9"], "engine.deferral=9: qwen3_30b_a3b has top_k=8 experts a token"),
        (["model.layers=0"], "model.layers=0: allowed are 1 to 48"),
        (["model.layers=abc"], "model.layers=abc: must be a number"),
        (["model.vocab=0"], "model.vocab=0: allowed are auto, full and 1 to 151936"),
        (["model=deepseek_v3", "model.layers=3"], "first MoE layer at 4"),
        (["engine.avx512=[1"], "does not parse"),
        (["foo"], "expected KEY=VALUE"),
        (["~model"], "expected KEY=VALUE"),
        (["sweep.arms=[base,+x]"], "feature 'x'"),
        (["sweep.arms=[base,+v int9]"], "feature 'int9'"),
        (["model.experts=16"], "model.experts=16: is for workload.phase=layer"),
        (["workload=layer", "model.experts=4"], "allowed are 8 to 128 and null"),
        (["workload=layer", "model.experts=few"], "model.experts=few: qwen3_30b_a3b routes a token to 8 experts"),
        (["workload=layer", "model.experts=16", "model.path=somewhere"], "leave model.experts=null"),
        (["workload=layer", "model.layers=4"], "runs one layer anyway, leave model.layers=null"),
        (["workload=layer", "workload.prompt=4"], "workload.prompt=4: must be 1"),
        (["workload=layer", "workload.routing=model"], "a layer alone has no router"),
        (["workload=layer", "workload.active_experts=4"], "workload.active_experts=4: allowed are 8 to 128"),
        (["workload.active_experts=8"], "active_experts is for phase=layer"),
        (["engine=3"], "engine=3: must be a mapping"),
        (["model.path={a: 1}"], "model.path={'a': 1}: must be the name of a folder or a file"),
        (["model.path=[[a]]"], "model.path=[['a']]: must be the name of a folder or a file"),
        (["workload.trace={a: 1}"], "workload.trace={'a': 1}: must be the name of a file"),
        ([f"model.seed={'9' * 4400}"], "does not parse"),
        ([f"sweep.arms={'[' * 3000}{']' * 3000}"], "does not parse"),
        ([f"model.name={'a' * 20_000}"], "is longer than 10,000 characters"),
        (["run_name=.."], "run_name='..': must be a name without folders"),
        (["run_name=../x"], "run_name='../x': must be a name without folders"),
        (["run_name=/tmp/x"], "run_name='/tmp/x': must be a name without folders"),
        (["run_name=."], "run_name='.': must be a name without folders"),
        (["run_name='a\tb'"], "of printable characters"),
        (["run_name=''"], "run_name='': must have 1 to 100 characters"),
        (["run_name=.hidden"], "of which the first is no dot"),
        ([f"run_name={'x' * 300}"], "must have 1 to 100 characters"),
        (["run_name=latest"], "run_name=latest: stands for the run that was started last"),
        (["sweep.name=../x"], "sweep.name='../x': must be a name without folders"),
        (["workload.trace=file.npz"], "workload.trace=file.npz: set workload.routing=recorded"),
        (["sweep.arms=[+v]"], "sweep.baseline='base' is none of"),
    ],
)
def test_mistake_is_one_line(overrides: list[str], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        freeze(compose(overrides), ModelFiles(checkpoints=CHECKPOINT))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_configuration_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert requested("+ablation=decode").sweep.name == "decode"
    assert requested("+ablation=kernels/domains").sweep.name == "domains"


BOMB = "a0: &a0 [x, x, x]\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))
BROKEN = {
    "half a list": "sweep: [a",
    "a bomb": BOMB,
    "no mapping": "- 1",
    "too long": "#" * 1_000_000,
    "deep": "[" * 9999,
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data folders of an installation that the test may change."""
    for name in ("conf", "ablations", "evals"):
        shutil.copytree(data_folder(name), tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setattr("ktbench.resources._PACKAGE", tmp_path / "ktbench")
    return tmp_path


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("ablations/mine.yaml", "+ablation=mine"),
        ("evals/mine.yaml", "+suite=mine"),
        ("conf/model/mine.yaml", "model=mine"),
        ("conf/workload/mine.yaml", "workload=mine"),
    ],
)
def test_a_broken_option_breaks_only_requests_that_name_it(what: str, file: str, word: str, installed: Path) -> None:
    (installed / file).write_text(BROKEN[what])
    with pytest.raises(RequestError) as raised:
        compose([word])
    assert str(installed / file) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert requested("model=tiny").parts[0].spec.model.name == "tiny"
    assert requested("+ablation=decode").parts[0].sweep.arms


def test_options_that_an_option_names_are_read_with_it(installed: Path) -> None:
    (installed / "ablations/mine.yaml").write_text("defaults: [override /suite: broken]")
    (installed / "evals/broken.yaml").write_text("tasks: [")
    with pytest.raises(RequestError, match=r"suite=broken: .*broken\.yaml: is not YAML"):
        compose(["+ablation=mine"])
