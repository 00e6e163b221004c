"""Overrides become frozen specs; every YAML composes; every mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.config import Request, ablation_names, compose, freeze
from ktbench.config.freeze import freeze_model
from ktbench.core.errors import RequestError
from ktbench.plan import plan_cells
from ktbench.resources import data_folder


def requested(*overrides: str) -> Request:
    return freeze(compose(overrides))


@pytest.mark.parametrize("name", ablation_names())
def test_every_ablation_composes_to_cells(name: str) -> None:
    request = requested(f"+ablation={name}")
    cells = plan_cells(request.spec, request.sweep)
    assert len({cell.key for cell in cells}) == len(cells) > 1


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (data_folder("conf") / group).glob("*.yaml"))


@pytest.mark.parametrize("model", options("model"))
def test_every_model_composes(model: str) -> None:
    assert requested(f"model={model}").spec.model.shape.moe_layers > 0


@pytest.mark.parametrize("workload", options("workload"))
def test_every_workload_composes(workload: str) -> None:
    assert requested(f"workload={workload}").spec.workload.phase == workload


def test_breakdown_order_is_the_papers() -> None:
    assert requested("+ablation=decode").sweep.arms == ("base", "+v", "+m", "+v+d", "+v+d+n", "+v+d+n+c")
    assert requested("+ablation=prefill").sweep.arms == ("base", "+v", "+m", "+m+d", "+m+d+n", "+m+d+n+c")


def test_slice_keeps_width_and_the_heads_share() -> None:
    model = requested("model.layers=4").spec.model
    full = requested().spec.model
    assert model.shape.hidden == full.shape.hidden
    assert model.shape.vocab / full.shape.vocab == pytest.approx(4 / 48, rel=0.01)
    assert requested("model.layers=4", "model.vocab=full").spec.model.shape.vocab == full.shape.vocab


def test_lists_kept_per_layer_are_cut_with_the_depth() -> None:
    facts = compose(["model.layers=3"])["model"]
    facts["config"]["layer_types"] = ["full", "sliding"] * 24
    assert freeze_model(facts, checkpoint=None)["config"]["layer_types"] == ["full", "sliding", "full"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+ablation=decodee"], "ablation=decodee: unknown, did you mean decode"),
        (["model=qwen3_30b"], "did you mean qwen3_30b_a3b"),
        (["workload=prefil"], "did you mean prefill"),
        (["engine.vv=true"], "engine.vv: unknown key, did you mean engine.v"),
        (["+enginev=true"], "enginev: unknown key"),
        (["engine.v=maybe"], "engine.v: expected bool, got str"),
        (["precision=int3"], "precision: invalid enum value 'int3'; allowed are bf16"),
        (["engine.deferral=8"], "engine.deferral=8 must leave one of the top_k=8"),
        (["model.layers=0"], "model.layers=0: allowed are 1 to 48"),
        (["model.layers=abc"], "model.layers=abc: must be a number"),
        (["model.vocab=0"], "model.vocab=0: allowed are auto, full and 1 to 151936"),
        (["model=deepseek_v3", "model.layers=3"], "first MoE layer at 4"),
        (["engine.v=[1"], "does not parse"),
        (["foo"], "expected KEY=VALUE"),
        (["~model"], "expected KEY=VALUE"),
        (["sweep.arms=[base,+x]"], "feature 'x'"),
        (["sweep.arms=[+v]"], "sweep.baseline='base' is none of"),
    ],
)
def test_mistake_is_one_line(overrides: list[str], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        requested(*overrides)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_configuration_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert requested("+ablation=decode").sweep.name == "decode"
