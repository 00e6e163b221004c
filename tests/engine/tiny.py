"""Every known architecture shrunk to a size that loads in no time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import yaml

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.load import load_engine
from ktbench.engine.protocol import HostRole
from ktbench.engine.weight_plan import Packing, WeightPlan
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec

MODELS = Path(__file__).parents[2] / "conf" / "model"
# Architectures; a model that ships has weights, and its configuration with them.
NAMES = sorted(path.stem for path in MODELS.glob("*.yaml") if yaml.safe_load(path.read_text())["path"] is None)
EXPERTS = 8

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "vocab_size": 256,
    "num_attention_heads": 4,
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "sliding_window": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


def facts(name: str) -> dict[str, Any]:
    """The model's file as it is."""
    content: dict[str, Any] = yaml.safe_load((MODELS / f"{name}.yaml").read_text())
    return content


def shrunk(name: str) -> dict[str, Any]:
    """The configuration of a known model with tiny sizes: its kinds of layers, router and attention stay."""
    config: dict[str, Any] = facts(name)["config"]
    config |= {key: size for key, size in _SIZES.items() if config.get(key) is not None}
    config["num_hidden_layers"] = min(config.get("first_k_dense_replace", 0), 1) + 2
    config["num_key_value_heads"] = 4 if "kv_lora_rank" in config else 2
    config["intermediate_size"] = 96 if "moe_intermediate_size" in config else 32
    config["num_experts_per_tok"] = min(config["num_experts_per_tok"], 4)
    if "first_k_dense_replace" in config:
        config["first_k_dense_replace"] = 1
    if config.get("n_group", 1) > 1:
        config |= {"n_group": 2, "topk_group": 1}
    if "linear_num_value_heads" in config:
        config["layer_types"] = ["linear_attention", "full_attention"]
    return config


# Of models that shrink to the same, one.
DISTINCT = sorted({repr(sorted(shrunk(name).items())): name for name in NAMES}.values())
PACKABLE = [name for name in DISTINCT if not name.startswith("gpt_oss")]


def tiny_model(name: str = "qwen3_30b_a3b", *, seed: int = 0, path: str | None = None, **changes: Any) -> ModelSpec:
    """A tiny model of a known architecture."""
    config = shrunk(name) | changes
    layers = config["num_hidden_layers"]
    return ModelSpec(name=name, config=config, full_layers=layers, full_vocab=256, seed=seed, path=path)


def spec(model: ModelSpec, workload: WorkloadSpec, **engine: Any) -> RunSpec:
    """A cell on that model, on one thread by default."""
    return RunSpec(model=model, workload=workload, engine=EngineSpec(**({"threads": 1} | engine)))


def decode(batch: int = 1, steps: int = 3, **options: Any) -> WorkloadSpec:
    """Decode after a prompt that is longer than the tiny sliding window."""
    return WorkloadSpec(**{"phase": "decode", "prompt": 11, "batch": batch, "steps": steps} | options)


def prefill(batch: int = 1, steps: int = 2, **options: Any) -> WorkloadSpec:
    """Prefill of a short prompt."""
    return WorkloadSpec(**{"phase": "prefill", "prompt": 13, "batch": batch, "steps": steps} | options)


def layer(batch: int = 2, steps: int = 3, **options: Any) -> WorkloadSpec:
    """One MoE layer alone."""
    options = {"routing": "balanced"} | options
    return WorkloadSpec(phase="layer", prompt=1, batch=batch, steps=steps, **options)


def load(
    model: ModelSpec, *, cores: int | None = None, keep_original: bool = True, packing: Packing | None = None
) -> HybridEngine:
    """The engine with its roles on shared cores, as many as `cores` (None: all that this thread may run on)."""
    host = HostRole(cores=cores or len(os.sched_getaffinity(0)))
    return load_engine(model, WeightPlan(original=keep_original, packing=packing), host)


def logits_of_steps(model: ModelSpec, workload: WorkloadSpec, **engine: Any) -> list[torch.Tensor]:
    """Logits of every step of the engine, the layouts kept that the features need."""
    fused = EngineSpec(**engine).fused
    system = load(model, keep_original=not fused, packing=Packing() if fused else None)
    system.configure(spec(model, workload, **engine))
    return run(system, workload.steps)


def run(system: Any, steps: int) -> list[torch.Tensor]:
    """Logits of every step from the start."""
    system.start()
    seen = []
    for _ in range(steps):
        system.step()
        seen.append(torch.from_numpy(system.logits().copy()))
    return seen
