"""Cells of real models on machines that come with ktbench."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import yaml

from ktbench.resources import data_folder
from ktbench.spec.engine import EngineSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.wire import from_plain


def real_model(name: str, **changes: Any) -> ModelSpec:
    """A model of `conf/model`; `changes` are of its configuration, such as `num_hidden_layers`."""
    content = yaml.safe_load((data_folder("conf") / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    config = content["config"]
    return ModelSpec(
        name=name,
        config=config | changes,
        full_layers=config["num_hidden_layers"],
        full_vocab=config["vocab_size"],
    )


@cache
def _preset(name: str) -> MachineSpec:
    text = (data_folder("conf") / "machine" / f"{name}.yaml").read_text(encoding="utf-8")
    return from_plain(yaml.safe_load(text), MachineSpec)


def real_machine(name: str = "paper_a100", **changes: Any) -> MachineSpec:
    """A machine of `conf/machine` with other values."""
    return replace(_preset(name), **changes)


def real_cell(
    model: str | ModelSpec = "deepseek_v3",
    *,
    machine: MachineSpec | None = None,
    precision: str = "bf16",
    phase: str = "decode",
    work: dict[str, Any] | None = None,
    **engine: Any,
) -> RunSpec:
    """A cell with `+v+d+n+c` in decode and `+m+d+n` in prefill, where `engine` does not say otherwise."""
    arm = (
        {"amx": True, "dynamic": True, "numa": True}
        if phase == "prefill"
        else {"avx512": True, "dynamic": True, "numa": True, "cuda_graph": True}
    )
    asked: dict[str, Any] = {"prompt": 512, "steps": 1} if phase == "prefill" else {"prompt": 32, "steps": 8}
    asked = {"prompt": 1, "steps": 1, "routing": "balanced"} if phase == "layer" else asked
    return RunSpec(
        model=real_model(model) if isinstance(model, str) else model,
        workload=WorkloadSpec(phase=phase, **(asked | (work or {}))),  # type: ignore[arg-type]
        engine=EngineSpec(device="cuda", **(arm | engine)),
        precision=precision,  # type: ignore[arg-type]
        device_precision=precision,  # type: ignore[arg-type]
        machine=machine or real_machine(),
    )
