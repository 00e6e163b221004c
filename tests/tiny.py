"""Tiny specs for tests: real objects, sizes that load in no time."""

from __future__ import annotations

from typing import Any

from ktbench.spec.engine import EngineSpec
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import MeasureSpec, ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.wire import spec_id

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "intermediate_size": 96,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
}


def tiny_spec(
    *,
    phase: str = "decode",
    precision: str = "bf16",
    device_precision: str = "bf16",
    system: str = "ktbench",
    peer: PeerSpec | None = None,
    workload: dict[str, Any] | None = None,
    measure: dict[str, Any] | None = None,
    **engine: Any,
) -> RunSpec:
    """A spec of a two-layer model with 8 experts, top-2."""
    work = {"prompt": 1, "routing": "balanced"} if phase == "layer" else {"prompt": 8}
    return RunSpec(
        model=ModelSpec(name="tiny", config=CONFIG, full_layers=2, full_vocab=256),
        workload=WorkloadSpec(phase=phase, **({"steps": 3} | work | (workload or {}))),  # type: ignore[arg-type]
        engine=EngineSpec(**engine),
        measure=MeasureSpec(**({"min_rounds": 2, "max_rounds": 2, "turn_timeout_s": 5.0} | (measure or {}))),
        precision=precision,  # type: ignore[arg-type]
        device_precision=device_precision,  # type: ignore[arg-type]
        system=system,  # type: ignore[arg-type]
        peer=peer or PeerSpec(),
    )


def tiny_cell(label: str = "base", *, part: str = "", **options: Any) -> Cell:
    """A cell of `tiny_spec`."""
    spec = tiny_spec(**options)
    return Cell(label=label, spec=spec, spec_id=spec_id(spec), part=part)
