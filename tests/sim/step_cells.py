"""Steps of real models of few layers on the paper's machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.graph import Graph
from ktbench.sim.simulation import step_seconds
from ktbench.spec.run_spec import RunSpec
from tests.sim.real import real_model

COST = read_calibration("ktransformers")
FREE = COST.changed({name: 0.0 for name, one in COST.constants.items() if one.unit.startswith(("ms", "us", "ns"))})
OFF: dict[str, Any] = {"avx512": False, "amx": False, "dynamic": False, "numa": False, "cuda_graph": False}
V3 = real_model("deepseek_v3", num_hidden_layers=6)  # of which 3 are dense
V2 = real_model("deepseek_v2", num_hidden_layers=4)
QWEN2 = real_model("qwen2_57b_a14b", num_hidden_layers=4)
QWEN3 = real_model("qwen3_30b_a3b", num_hidden_layers=4)
EXPERT = 3 * 7168 * 2048


def step_s(spec: RunSpec, cost: Calibration = COST) -> float:
    return step_seconds(spec, cost)


def names(graph: Graph, kind: str) -> list[str]:
    return [task.name for task in graph.tasks if task.kind == kind]


def host_s(graph: Graph) -> float:
    return sum(task.seconds for task in graph.tasks if task.resource == "host")


def replace_engine(spec: RunSpec, **engine: Any) -> RunSpec:
    return replace(spec, engine=replace(spec.engine, **engine))
