"""Engines that hold what several cells need, on models in which no parameter can be left out unnoticed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from ktbench.config.inject import read_rules
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.load import load_engine
from ktbench.engine.protocol import HostRole
from ktbench.engine.weight_plan import WeightPlan
from ktbench.host.code import isa_reasons, load_extension
from ktbench.resources import data_folder
from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import BY_NAME
from ktbench.spec.peers import BY_NAME as PEERS
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.weights import Precision
from tests.engine.families.plain import build
from tests.engine.families.zoo import tiny
from tests.engine.tiny import run

LEAN = read_rules(data_folder("conf") / "inject" / "lean.yaml")
# Between two ways to compute in bf16, which rounds at 2^-9, where rounding errors grow over four layers: either is
# within 0.02 of float32.
TOLERANCE = 0.03
CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
PACKED_DENSE = pytest.mark.parametrize("lean", [False, True], ids=["packed experts", "all packed"])
TWO_CORES = pytest.mark.skipif(len(CPUS) < 2, reason="concurrent roles need a core each, this process may use one")


def granted(isa: str) -> Any:
    """Skips a module where the kernels are not built, its tests where the machine does not run them."""
    kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    missing = kernels.grants()[isa]
    return pytest.mark.skipif(bool(missing), reason=f"{isa}: {missing}")


# The fused operator of tests that are not about one instruction set: on the widest vectors of this machine.
VECTOR = BY_NAME["avx512" if isa_reasons(load_extension()).get("avx512") == "" else "avx2"]
FUSED: dict[str, Any] = {VECTOR.name: True}


def needs_vector() -> Any:
    """`granted` of VECTOR."""
    return granted(VECTOR.name)


def peer_lacks(name: str, precision: str) -> str:
    """Which instructions a format of a peer needs that this machine does not grant; empty for those it can run."""
    missing = isa_reasons(load_extension()).get("avx512", "")
    return missing if precision in PEERS[name].avx512 else ""


def changed(name: str, **changes: Any) -> ModelSpec:
    """The tiny model of a family with other facts."""
    model = tiny(name)
    return replace(model, config=model.config | changes)


def stirred(network: PreTrainedModel) -> PreTrainedModel:
    """Norms away from one, biases and sinks away from zero: a model that was initialised only would not show them."""
    draw = torch.Generator().manual_seed(5)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            drawn = torch.randn(parameter.shape, generator=draw)
            parameter.data.add_(0.25 * drawn if "sinks" not in name else drawn)
    return network


def saved(model: ModelSpec, folder: Path) -> ModelSpec:
    """The same architecture as a checkpoint in `folder`, its norms, biases and sinks stirred."""
    stirred(build(model)).save_pretrained(folder)
    return replace(model, path=str(folder))


def plain(model: ModelSpec) -> PreTrainedModel:
    """What `saved` wrote, in an untouched network of Transformers."""
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model.path, dtype=torch.bfloat16, experts_implementation="eager"
    )
    return network


def cell(
    model: ModelSpec,
    workload: WorkloadSpec,
    *,
    precision: Precision = "bf16",
    device_precision: Precision = "bf16",
    threads: int | None = 1,
    **engine: Any,
) -> RunSpec:
    """A cell under the rules of the lean device role, on one thread by default."""
    return RunSpec(
        model=model,
        workload=workload,
        engine=EngineSpec(threads=threads, **engine),
        precision=precision,
        device_precision=device_precision,
        inject=LEAN,
    )


def split_cell(model: ModelSpec, workload: WorkloadSpec, **engine: Any) -> RunSpec:
    """A cell of the fused operator whose roles have cores of their own."""
    return cell(model, workload, threads=None, roles="split", **FUSED, **engine)


def engine_for(*cells: RunSpec, cpus: tuple[int, ...] = ()) -> HybridEngine:
    """An engine for these cells, which share their weights; on one core, or on `cpus`."""
    host = HostRole(cores=len(cpus) or 1, cpus=cpus)
    return load_engine(cells[0].model, WeightPlan.of(cells, host), host)


def logits(system: HybridEngine, requested: RunSpec) -> list[Tensor]:
    """Logits of every step of a cell."""
    system.configure(requested)
    return run(system, requested.workload.steps)


def relative(seen: list[Tensor], truth: list[Tensor]) -> float:
    """The largest error of a step."""
    assert all(torch.isfinite(one).all() and one.std() > 0 for one in seen)
    return max(float((s - t).norm() / t.norm()) for s, t in zip(seen, truth, strict=True))


def modules_of(network: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    """Modules of a class, in the order of the network."""
    return [module for module in network.modules() if isinstance(module, kind)]
