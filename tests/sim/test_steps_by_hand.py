"""Steps of two layers, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.sim.executor import play
from ktbench.sim.simulation import step_graph
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.sim.real import real_cell
from tests.sim.step_cells import (
    COST,
    OFF,
    replace_engine,
    step_s,
)

TWO_LAYERS = ModelSpec(
    name="two layers",
    config={
        "model_type": "qwen2_moe", "num_hidden_layers": 2, "hidden_size": 1000, "num_experts": 25,
        "num_experts_per_tok": 2, "moe_intermediate_size": 500, "shared_expert_intermediate_size": 500,
        "intermediate_size": 500, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 100,
        "vocab_size": 500,
    },
    full_layers=2,
    full_vocab=500,
)  # fmt: skip
# 100 GB/s from both domains together, from one in base, and from the device's memory; arithmetic takes next to nothing.
ROUND = COST.changed(
    {"decode_stream": 100 / 440, "base_stream": 100 / 220, "gpu_stream": 100 / 1555, "attention": 1.0,
     "gemm": 1.0, "base_peak": 1.0, "step_ms": 0.1, "sync_ms": 0.02, "call_ms": 0.005, "base_expert_ms": 0.005,
     "kernels_grouped": 26, "kernel_us": 0.5, "base_kernels_grouped": 26, "base_launch_us": 0.5}
)  # fmt: skip
# In us: an expert 3 MB, 30; attention 4 MB, its cache 1 MB, the router 0.1 MB, 20 kernels, 61; the shared expert 3 MB,
# 6 kernels, 33; the head 1 MB, 2 kernels, 11; each way of a hand-over 10; a call of the experts 5, an expert in base 5.
DEFERRED_US = [
    ("launch", "step", 0, 100),
    ("device", "attention 0", 100, 161),
    ("link", "submit 0", 161, 171),
    ("host", "experts 0", 171, 206),
    ("host", "deferred 0", 206, 241),
    ("device", "shared 0", 161, 194),
    ("link", "return 0", 206, 216),
    ("device", "sum 0", 216, 216),
    ("device", "attention 1", 216, 277),
    ("link", "submit 1", 277, 287),
    ("host", "experts 1", 287, 352),
    ("device", "shared 1", 277, 310),
    ("link", "return 1", 352, 362),
    ("device", "sum 1", 362, 362),
    ("device", "head", 362, 373),
]
BASE_US = [
    ("launch", "step", 0, 100),
    ("device", "attention 0", 100, 161),
    ("link", "submit 0", 161, 171),
    ("host", "experts 0", 171, 241),
    ("link", "return 0", 241, 251),
    ("device", "shared 0", 251, 284),
    ("device", "sum 0", 284, 284),
    ("device", "attention 1", 284, 345),
    ("link", "submit 1", 345, 355),
    ("host", "experts 1", 355, 425),
    ("link", "return 1", 425, 435),
    ("device", "shared 1", 435, 468),
    ("device", "sum 1", 468, 468),
    ("device", "head", 468, 479),
]


@pytest.mark.parametrize(("engine", "wanted"), [({"deferral": 1}, DEFERRED_US), (OFF, BASE_US)])
def test_a_small_step_is_the_one_written_by_hand(
    engine: dict[str, Any], wanted: list[tuple[str, str, float, float]]
) -> None:
    graph = step_graph(real_cell(TWO_LAYERS, work={"prompt": 500, "steps": 1}, **engine), ROUND)
    played = play(graph.tasks)
    assert [(task.resource, task.name) for task in graph.tasks] == [(where, name) for where, name, *_ in wanted]
    assert [begin * 1e6 for begin in played.begin_s] == pytest.approx([begin for *_, begin, _ in wanted], abs=0.5)
    assert [end * 1e6 for end in played.end_s] == pytest.approx([end for *_, end in wanted], abs=0.5)


def test_launches_come_before_what_they_launch_where_no_graph_holds_them() -> None:
    cost = ROUND.changed({"launch_us": 1.0})
    graph = step_graph(real_cell(TWO_LAYERS, work={"prompt": 500, "steps": 1}, cuda_graph=False), cost)
    launched = {task.name: task.seconds for task in graph.tasks if task.kind == "launch"}
    kernels = {"attention 0": 20, "shared 0": 6, "attention 1": 20, "shared 1": 6, "head": 2}
    assert launched == pytest.approx({f"launch {name}": count * 1e-6 for name, count in kernels.items()})
    # A shared expert hides its launches and itself behind two experts; nothing hides those of attention and head.
    assert step_s(replace_engine(graph_spec(), cuda_graph=False), cost) - step_s(graph_spec(), cost) == pytest.approx(
        42e-6
    )


def graph_spec() -> RunSpec:
    return real_cell(TWO_LAYERS, work={"prompt": 500, "steps": 1})
