"""The lean device role: packed linear layers and recorded steps give what plain Transformers gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.decode.step import ReplayDecoder
from ktbench.engine.dense import PackedLinear
from ktbench.engine.hybrid import HybridEngine
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.weights import Precision
from tests.engine.engines import (
    FUSED,
    TOLERANCE,
    cell,
    changed,
    engine_for,
    logits,
    needs_vector,
    plain,
    relative,
    saved,
)
from tests.engine.families.zoo import ALL, EXPERTS
from tests.engine.prompts import together
from tests.engine.tiny import decode, prefill, run

pytestmark = [needs_vector(), pytest.mark.peers]

_WINDOW = {"use_sliding_window": True, "sliding_window": 8}
_BY_TURNS = ["full_attention", "sliding_attention"] * 2
_EVERYWHERE = ["full_attention"] * 4
# The prompt of `decode` has 11 tokens: windows of 8 have been left behind before the first step.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe with biases": ("qwen3_moe", {"attention_bias": True}),
    "qwen3_moe with a tied head": ("qwen3_moe", {"tie_word_embeddings": True}),
    "qwen3_moe with a window": ("qwen3_moe", _WINDOW),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen2_moe with windows by turns": ("qwen2_moe", _WINDOW | {"layer_types": _BY_TURNS}),
    "mixtral": ("mixtral", {}),
    "mixtral with a window": ("mixtral", {"sliding_window": 8}),
    "glm4_moe": ("glm4_moe", {"attention_bias": True}),
    "glm4_moe with norms of heads": ("glm4_moe", {"use_qk_norm": True}),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v3": ("deepseek_v3", {}),
    "glm4_moe_lite": ("glm4_moe_lite", {}),
    "gpt_oss": ("gpt_oss", {}),
    "olmoe": ("olmoe", {}),
    "qwen3_next, whose norms have an offset": ("qwen3_next", {"layer_types": _EVERYWHERE}),
}
STEPS = 6
WORKLOADS = {
    "decode": decode(batch=1, steps=STEPS),
    "decode, batch 3": decode(batch=3, steps=STEPS),
    "decode, padded": decode(batch=3, steps=STEPS, shortest=5),
    "prefill": prefill(batch=1),
    "prefill, padded": prefill(batch=3, shortest=6),
}


@dataclass(frozen=True)
class Form:
    """A checkpoint, an engine on it for base and the fused operator, also with +l, and the same in Transformers."""

    model: ModelSpec
    system: HybridEngine
    network: PreTrainedModel

    def cell(self, workload: WorkloadSpec, **engine: Any) -> RunSpec:
        return cell(self.model, workload, **engine)

    def lean(self, workload: WorkloadSpec) -> list[Tensor]:
        return logits(self.system, self.cell(workload, **FUSED, packed_dense=True))


def opened(model: ModelSpec) -> Form:
    cells = [cell(model, decode(), **FUSED, packed_dense=lean) for lean in (False, True)]
    return Form(model, engine_for(cell(model, decode()), *cells), plain(model))


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Form]:
    name, changes = FORMS[request.param]
    yield opened(saved(changed(name, **changes), tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Form:
    return opened(saved(changed("qwen3_moe"), tmp_path_factory.mktemp("qwen3_moe")))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_logits_are_those_of_transformers(form: Form, workload: str) -> None:
    assert relative(form.lean(WORKLOADS[workload]), together(form.network, WORKLOADS[workload])) < TOLERANCE


@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe", "deepseek_v3", "gpt_oss", "olmoe"])
def test_logits_are_as_near_to_float32_as_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Where every token goes to all experts, routers cannot choose otherwise in float32."""
    form = opened(saved(changed(name, **ALL), tmp_path))
    for workload in (decode(batch=3, steps=STEPS), prefill(batch=3)):
        truth = together(plain(form.model).float(), workload)
        assert relative(form.lean(workload), truth) < 1.5 * relative(together(form.network, workload), truth)


def test_steps_are_replayed_and_need_no_mask(form: Form) -> None:
    form.lean(WORKLOADS["decode, padded"])
    assert form.system.notes() == ()
    assert recorded(form.system)
    assert form.system._components.attention is not None
    assert form.system._components.attention.by_mask == 0


def recorded(system: HybridEngine) -> bool:
    runner = system._replayed.runner
    assert isinstance(runner, ReplayDecoder)
    return runner.recorded


def test_observing_and_starting_anew_leave_no_trace(form: Form) -> None:
    workload = WORKLOADS["decode, padded"]
    first = form.lean(workload)
    form.system.start()
    for step in range(workload.steps):
        form.system.step()
        form.system.observe()
        form.system.timeline()
        assert torch.equal(torch.from_numpy(form.system.logits().copy()), first[step])
    assert all(map(torch.equal, run(form.system, workload.steps), first))


def test_settings_take_turns_in_one_engine(form: Form) -> None:
    workload = decode(batch=2, steps=3)
    settings: list[dict[str, Any]] = [{}, FUSED, FUSED | {"packed_dense": True}]
    first = [logits(form.system, form.cell(workload, **engine)) for engine in settings]
    logits(form.system, form.cell(prefill(), **FUSED, packed_dense=True))
    for engine, before in zip(settings[::-1], first[::-1], strict=True):
        assert all(map(torch.equal, logits(form.system, form.cell(workload, **engine)), before))
    assert all(map(torch.equal, first[0], together(form.network, workload)))


def test_logits_of_a_step_outlive_the_next(qwen: Form) -> None:
    qwen.system.configure(qwen.cell(decode(), **FUSED, packed_dense=True))
    qwen.system.step()
    kept = qwen.system.logits()
    copy = kept.copy()
    qwen.system.step()
    assert (kept == copy).all()
    assert (qwen.system.logits() != copy).any()


def test_linear_calls_move_with_it_alone(form: Form) -> None:
    for lean in (True, False):
        for workload in (decode(), prefill()):
            form.system.configure(form.cell(workload, **FUSED, packed_dense=lean))
            before = form.system.counters()["linear_calls"]
            run(form.system, workload.steps)
            assert (form.system.counters()["linear_calls"] > before) == lean


def swap(network: PreTrainedModel, one: str, other: str) -> None:
    """In every layer."""
    for name, module in network.named_modules():
        if name.endswith(f".{one}"):
            twin = network.get_submodule(name.removesuffix(one) + other)
            mine, its = module.get_parameter("weight").data, twin.get_parameter("weight").data
            rows = min(len(mine), len(its))
            mine[:rows], its[:rows] = its[:rows].clone(), mine[:rows].clone()


def forget(network: PreTrainedModel, ending: str, to: float = 0.0) -> None:
    for name, parameter in network.named_parameters():
        if name.endswith(ending):
            parameter.data.fill_(to)


def look_everywhere(network: PreTrainedModel) -> None:
    if getattr(network.config, "layer_types", None):
        network.config.layer_types = _EVERYWHERE
    else:
        network.config.sliding_window = None


def rotate_all(network: PreTrainedModel) -> None:
    rotary: Any = network.get_submodule("model.rotary_emb")
    rotary.inv_freq = torch.cat([rotary.inv_freq, rotary.inv_freq])


MUTANTS: dict[str, tuple[str, Callable[[PreTrainedModel], None]]] = {
    "queries for keys": ("qwen3_moe", lambda network: swap(network, "q_proj", "k_proj")),
    "keys for values": ("mixtral", lambda network: swap(network, "k_proj", "v_proj")),
    "norms of heads that are one": ("qwen3_moe", lambda network: forget(network, "q_norm.weight", 1.0)),
    "no biases": ("qwen3_moe with biases", lambda network: forget(network, ".bias")),
    "no sinks": ("gpt_oss", lambda network: forget(network, "sinks")),
    "no window": ("mixtral with a window", look_everywhere),
    "no windows by turns": ("gpt_oss", look_everywhere),
    "heads rotated as a whole": ("glm4_moe", rotate_all),
    "no shared expert": ("qwen2_moe", lambda network: forget(network, "shared_expert.down_proj.weight")),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_tolerance_rejects_mutants(mutant: str, tmp_path: Path) -> None:
    name, changes = FORMS[MUTANTS[mutant][0]]
    network = plain(saved(changed(name, **changes), tmp_path))
    workload = WORKLOADS["decode, padded"]
    truth = together(network, workload)
    MUTANTS[mutant][1](network)
    wrong = together(network, workload)
    assert min(float((w - t).norm() / t.norm()) for w, t in zip(wrong, truth, strict=True)) > 2 * TOLERANCE


def stand_in(network: PreTrainedModel, system: HybridEngine) -> None:
    """Puts into plain Transformers the weights that the packed layers hold: integers times their scales."""
    for name, packed in packed_layers(system):
        weight = nn.Parameter(stored(packed).bfloat16(), requires_grad=False)
        network.get_submodule(name).weight = weight


def stored(layer: PackedLinear) -> Tensor:
    """[N, K] float32: a layer's rows of the matrix that it shares with its siblings."""
    projection, number = layer.projection, layer._number
    rows = torch.from_numpy(projection.matrix.packed.read())
    return rows.split(list(projection._widths))[number]


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("int8", 0.015), ("int4_g32", 0.015), ("bf16", 0.003)], ids=["int8", "int4", "bf16"]
)
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen2_moe", "gpt_oss", "deepseek_v3"])
def test_packed_layers_multiply_by_what_they_hold(
    name: str, precision: Precision, tolerance: float, tmp_path: Path
) -> None:
    """Every linear layer against float64 on its stored weights; activations have 8 bits where weights are integers."""
    model = saved(changed(name), tmp_path)
    system = engine_for(cell(model, decode(), **FUSED, packed_dense=True, device_precision=precision))
    reference = dict(plain(model).named_modules())
    draw = torch.Generator().manual_seed(0)
    for module_name, layer in packed_layers(system):
        x = torch.randn(2, 3, layer.in_features, generator=draw).bfloat16()
        original: Any = reference[module_name]
        bias = 0.0 if original.bias is None else original.bias.detach().double()
        truth = x.double() @ stored(layer).double().T + bias
        assert error(layer(x), truth) < tolerance
        held = {"bf16": 0.0, "int8": 0.01, "int4_g32": 0.15}[precision]
        assert error(stored(layer), original.weight) <= held


def packed_layers(system: HybridEngine) -> Iterator[tuple[str, PackedLinear]]:
    """By the names that they have in Transformers."""
    for name, module in system._components.network.named_modules():
        if isinstance(module, PackedLinear):
            yield name.replace(".original", ""), module


def error(seen: Tensor, truth: Tensor) -> float:
    exact = truth.detach().double()
    return float((seen.detach().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("precision", "tolerance"), [("int8", 0.05), ("int4_g32", 0.08)], ids=["int8", "int4"])
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_quantised_layers_give_the_logits_of_the_quantised_model(
    name: str, precision: Precision, tolerance: float, tmp_path: Path
) -> None:
    """Transformers on the stored weights routes as it likes: where every token goes to all experts it cannot differ."""
    model = saved(changed(name, num_experts_per_tok=EXPERTS), tmp_path)
    system = engine_for(cell(model, decode(), **FUSED, packed_dense=True, device_precision=precision))
    network = plain(model)
    stand_in(network, system)
    for workload in (decode(batch=3, steps=STEPS), prefill(batch=2)):
        seen = logits(system, cell(model, workload, **FUSED, packed_dense=True, device_precision=precision))
        assert relative(seen, together(network, workload)) < tolerance


def test_work_counts_the_bytes_that_are_packed(tmp_path: Path) -> None:
    """int8 halves the linear layers but for their scales; the output head is one of them."""
    works = {}
    model = saved(changed("qwen3_moe"), tmp_path)
    for precision in ("bf16", "int8"):
        system = engine_for(cell(model, decode(), **FUSED, packed_dense=True, device_precision=precision))  # type: ignore[arg-type]
        system.configure(cell(model, decode(), **FUSED, packed_dense=True, device_precision=precision))  # type: ignore[arg-type]
        works[precision] = system.work()
    layers = [layer for _, layer in packed_layers(system)]
    params = sum(layer.in_features * layer.out_features for layer in layers)
    saved_bytes = works["bf16"].weight_bytes - works["int8"].weight_bytes
    assert works["bf16"].flops == works["int8"].flops
    assert 0.8 * params < saved_bytes <= params
