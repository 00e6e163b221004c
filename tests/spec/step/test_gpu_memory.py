"""Bytes of a GPU by purpose against the arithmetic of released models, and cells that do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ktbench.cli import plan
from ktbench.run import feasibility as module
from ktbench.run.feasibility import Machine, feasibility, unsupported_locally
from ktbench.spec.engine import EngineSpec, PlacementSpec
from ktbench.spec.features import FEATURES
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.step.memory import GpuMemory, MachineMemory, estimate_memory, gpu_memory
from ktbench.spec.step.work import trained_bytes
from ktbench.spec.wire import spec_id
from tests.engine.tiny import facts

GIB = 2**30
# Of DeepSeek-V3: bytes of a token's latent and rotated key in a layer, and of its keys and values for all heads.
LATENT, EXPANDED = 2 * (512 + 64), 2 * 128 * (128 + 64 + 128)
EXPERT = 3 * 7168 * 2048
HALF = PlacementSpec(policy="uniform", ratio=0.5)
BIG = Machine(cpus=range(64), no_cuda="", gpu_bytes=2**50, features_missing={feature.name: "" for feature in FEATURES})


def cell_of(
    model: str, workload: WorkloadSpec, *, precision: Any = "bf16", system: Any = "ktbench", **engine: Any
) -> RunSpec:
    config = facts(model)["config"]
    layers = config["num_hidden_layers"]
    spec = ModelSpec(name=model, config=config, full_layers=layers, full_vocab=config["vocab_size"])
    features = {"device": "cuda"} | ({"avx512": True} if system == "ktbench" else {}) | engine
    return RunSpec(model=spec, workload=workload, engine=EngineSpec(**features), precision=precision, system=system)


def decode(prompt: int = 8192, batch: int = 1, steps: int = 16) -> WorkloadSpec:
    return WorkloadSpec(phase="decode", prompt=prompt, batch=batch, steps=steps)


def prefill(prompt: int = 8192, **options: Any) -> WorkloadSpec:
    return WorkloadSpec(phase="prefill", prompt=prompt, steps=1, **options)


def needs(*specs: RunSpec, nodes: int = 1) -> GpuMemory:
    return gpu_memory(specs, nodes)


def test_latents_are_cached_and_expanded_one_layer_after_the_other() -> None:
    """The prompt's cache is kept beside that of the steps. Keys and values of all layers would take 41 GB."""
    found = needs(cell_of("deepseek_v3", decode()))
    assert found.cache == 61 * LATENT * (2 * 8192 + 16) + (8192 + 16) * EXPANDED
    assert found.cache < 0.05 * 61 * EXPANDED * 8192


def test_grouped_heads_are_cached_as_they_are() -> None:
    found = needs(cell_of("qwen3_30b_a3b", decode(4096, batch=3, steps=8)))
    token = 2 * 2 * 4 * 128  # keys and values of four heads of 128 in bf16
    assert found.cache == 3 * token * (48 * (2 * 4096 + 8) + 4096 + 8)


@pytest.mark.parametrize(("chunk", "layers"), [(None, 0), (1024, 61)])
def test_prefill_in_one_pass_caches_nothing(chunk: int | None, layers: int) -> None:
    found = needs(cell_of("deepseek_v3", prefill(chunk=chunk)))
    assert found.cache == 8192 * (layers * LATENT + EXPANDED)


def test_cells_of_a_worker_share_weights_and_keep_their_prompts() -> None:
    depths = [cell_of("deepseek_v3", decode(prompt)) for prompt in (64, 512, 2048, 4096, 8192)]
    found, deepest = needs(*depths), needs(depths[-1])
    assert found.weights == deepest.weights == 2 * depths[0].model.shape.other_params
    assert found.cache - deepest.cache == 61 * LATENT * (512 + 2048 + 4096)  # of four workloads


@pytest.mark.parametrize(("precision", "nbytes"), [("bf16", 2 * EXPERT), ("int8", EXPERT + 8 * (2 * 2048 + 7168))])
def test_experts_live_there_as_the_host_packs_them(precision: str, nbytes: int) -> None:
    """Beside them there is room for eight copies in bf16."""
    found = needs(cell_of("deepseek_v3", decode(), precision=precision, placement=HALF))
    assert found.experts == 58 * 128 * nbytes + 8 * 2 * EXPERT
    assert needs(cell_of("deepseek_v3", decode(), precision=precision)).experts == 0


@pytest.mark.parametrize(
    ("precision", "changes", "nodes"), [("q4_0", {}, 1), ("int4_g32", {}, 2), ("int4_g32", {"domains": 2}, 1)]
)
def test_experts_that_the_device_cannot_unpack_are_in_bf16(precision: str, changes: dict[str, Any], nodes: int) -> None:
    """Those of formats that it does not know, and those that are split over domains."""
    spec = cell_of("deepseek_v3", decode(), precision=precision, placement=HALF, **changes)
    assert needs(spec, nodes=nodes).experts == 58 * 128 * 2 * EXPERT + 8 * 2 * EXPERT


def test_experts_that_stream_need_two_buffers_and_a_chunk_unpacked() -> None:
    found = needs(cell_of("deepseek_v3", prefill(), device_prefill_tokens=1))
    assert found.experts == 2 * (2 * EXPERT) + 2 * EXPERT  # an expert is more than a chunk


def test_fiddler_is_refused_as_the_engine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peer_reason", lambda *_, **__: "")
    spec = cell_of("qwen3_30b_a3b", WorkloadSpec(phase="decode", prompt=64, steps=4, routing="model"), system="fiddler")
    needed = needs(spec)
    assert needed.experts == 2 * 3 * 2048 * 768
    assert feasibility(spec, replace(BIG, gpu_bytes=needed.total)) is None
    assert "that pass through" in str(feasibility(spec, replace(BIG, gpu_bytes=needed.total - 1)))


def cell(spec: RunSpec, label: str) -> Cell:
    return Cell(label=label, spec=spec, spec_id=spec_id(spec))


def test_workers_of_cells_that_are_compared_have_to_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = WorkloadSpec(phase="decode", prompt=64, steps=4, routing="model")
    specs = [cell_of("qwen3_30b_a3b", model, precision=precision) for precision in ("bf16", "int8")]
    cells = [cell(spec, label) for spec, label in zip(specs, ("+v bf16", "+v int8"), strict=True)]
    both = sum(needs(spec).total for spec in specs)
    for free, missing in ((both, set()), (both - 1, {one.key for one in cells})):
        monkeypatch.setattr(Machine, "local", lambda free=free, **_: replace(BIG, gpu_bytes=free))
        assert set(unsupported_locally(cells, cuda_is_needed=True)) == missing


def test_plan_says_what_workers_take_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Machine, "local", lambda **_: replace(BIG, gpu_bytes=80 * GIB))
    words = ["model=qwen3_30b_a3b", "model.layers=2", "engine.avx512=true"]
    assert plan.run([*words, "engine.device=cuda"]) == 0
    seen = capsys.readouterr().out
    assert "worker on the GPU: qwen3_30b_a3b bf16: weights" in seen
    assert "of 80.0 GiB" in seen
    assert plan.run(words) == 0
    assert "GPU" not in capsys.readouterr().out


@pytest.mark.parametrize("adapters", ["attention", "experts"])
def test_training_adds_its_network_to_the_gpu_and_its_experts_to_the_host(adapters: Any) -> None:
    work = WorkloadSpec(phase="train", prompt=512, steps=1, adapters=adapters, lora_rank=8, recompute=True)
    spec = cell_of("deepseek_v3", work)
    need, adds = needs(spec), trained_bytes(spec)
    assert (need.cache, need.trained) == (0, adds.network)
    assert need.total == need.weights + adds.network + need.reserve
    assert estimate_memory([cell(spec, "+v")], MachineMemory()).trained == adds.experts
    on_cores = replace(spec, engine=replace(spec.engine, device="cpu"))
    assert estimate_memory([cell(on_cores, "+v")], MachineMemory()).trained == adds.experts + adds.network
    said = str(feasibility(spec, replace(BIG, gpu_bytes=need.total - 1)))
    assert "what training adds" in said and "cache" not in said
