"""Cells of the paper's models on its machines, and runs of them with the speeds that a test chooses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ktbench.resources import data_folder
from ktbench.results import Run, read_published
from ktbench.spec.engine import EngineSpec, PlacementSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Cell, Environment, Header, Outcome, Part, Record, RoleTimes, Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.shape import moe_shape
from ktbench.spec.sweep import arm_features, arm_peer, arm_precision
from ktbench.spec.wire import from_plain, spec_id

KT = "+v+m+d+n+c"


def content(group: str, name: str) -> dict[str, Any]:
    text = (data_folder("conf") / group / f"{name}.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def machine(name: str) -> MachineSpec:
    return from_plain(content("machine", name), MachineSpec)


def model(name: str, layers: int | None = None) -> ModelSpec:
    config = content("model", name)["config"]
    whole = moe_shape(config)
    config = config if layers is None else config | {"num_hidden_layers": layers}
    return ModelSpec(name=name, config=config, full_layers=whole.layers, full_vocab=whole.vocab)


def spec(
    arm: str = KT, *, on: MachineSpec | str | None = "paper_a100", of: str = "deepseek_v3", layers: int | None = None,
    phase: str = "decode", prompt: int = 288, placement: PlacementSpec | None = None, **workload: Any,
) -> RunSpec:  # fmt: skip
    """A cell of an arm, whose words may name a precision."""
    label = arm.removesuffix(" (A/A)")
    work = {"prompt": 1 if phase == "layer" else prompt, "steps": 1} | workload
    if phase == "layer":
        work |= {"routing": "balanced"}
    return RunSpec(
        model=model(of, layers),
        workload=WorkloadSpec(phase=phase, **work),  # type: ignore[arg-type]
        engine=EngineSpec(**arm_features(label), device="cuda", placement=placement or PlacementSpec()),  # type: ignore[arg-type]
        system=arm_peer(label) or "ktbench",  # type: ignore[arg-type]
        precision=arm_precision(label) or "bf16",
        machine=machine(on) if isinstance(on, str) else on,
    )


def cell(arm: str = KT, **options: Any) -> Cell:
    asked = spec(arm, **options)
    return Cell(label=arm, spec=asked, spec_id=spec_id(asked))


def record(of: Cell, step_s: float, **changes: Any) -> Record:
    """A turn of one step, simulated where its cell names a machine."""
    blank = Record(
        cell=of.key,
        label=of.label,
        round=0,
        outcome=Outcome.OK,
        provenance="measured" if of.spec.machine is None else "simulated",
        code_id="code",
        env_id="env",
        worker_session="",
        started="",
        samples_s=(step_s,),
        work=Work(weight_bytes=10**9, flops=10**12, tokens=of.spec.workload.tokens_per_step),
        roles=RoleTimes(host_busy_s=0.7 * step_s, device_wait_s=0.6 * step_s, total_s=step_s),
    )
    return replace(blank, **changes)


def run_of(timed: Iterable[tuple[Cell, Record | None]], *figures: str) -> Run:
    """A run of one part that shows `figures`; a cell without a record has not had its turn."""
    listed = list(timed)
    cells = tuple(cell for cell, _ in listed)
    part = Part(name=cells[0].part, title="The paper", baseline="base", published=figures)
    header = Header(
        run="r", title="The paper", ablation="paper", created="", command=("ktbench", "sweep"), parts=(part,),
        cells=cells, measure=cells[0].spec.measure, code_id="code", env_id="env",
    )  # fmt: skip
    return Run(
        folder=Path("r"),
        header=header,
        environments=(Environment(env_id="env", code_id="code"),),
        records=tuple(record for _, record in listed if record is not None),
        published=read_published(*figures),
    )
