"""One cell with a GPU, as its task graph sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.gpu import Gpu
from ktbench.sim.host_base import HostBase
from ktbench.sim.host_decode import HostDecode
from ktbench.sim.host_prefill import HostPrefill
from ktbench.sim.placement import Coverage
from ktbench.sim.sizes import Sizes, sizes_of
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec

# Their modules launch the shared expert before a blocking copy, and beside the experts only while a graph is captured;
# others copy first.
_BLOCKING_FAMILIES = ("deepseek_v2", "deepseek_v3")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepModel:
    """One cell as the graph sees it."""

    spec: RunSpec
    machine: MachineSpec
    cost: Calibration
    sizes: Sizes
    gpu: Gpu

    @property
    def prefill(self) -> bool:
        """Whether a step is a forward pass over prompts."""
        return self.spec.workload.phase == "prefill"

    @property
    def base(self) -> bool:
        """Whether experts run one after the other through PyTorch."""
        return not self.spec.engine.fused

    @property
    def overlaps_shared(self) -> bool:
        """Whether the shared expert runs beside the routed ones."""
        if self.base:
            return False
        blocking = self.sizes.family in _BLOCKING_FAMILIES
        return not blocking or self.gpu.graph


def step_model(spec: RunSpec, cost: Calibration) -> StepModel:
    """The model behind a cell. Raises ValueError for a cell that is not on a machine with a GPU."""
    machine = spec.machine
    if machine is None or machine.gpu is None:
        raise ValueError("a step with a GPU needs a machine that has one")
    sizes = sizes_of(spec)
    # A graph holds the decode step alone.
    graph = spec.engine.cuda_graph and spec.workload.phase == "decode"
    gpu = Gpu(machine=machine, cost=cost, sizes=sizes, graph=graph, base=not spec.engine.fused)
    return StepModel(spec=spec, machine=machine, cost=cost, sizes=sizes, gpu=gpu)


def call_s(model: StepModel, loads: NDArray[np.int64], placed: Coverage) -> float:
    """Seconds of one call of a layer's experts, `loads` [E] being the tokens of each."""
    spec, machine, cost, sizes = model.spec, model.machine, model.cost, model.sizes
    active = loads[loads > 0].astype(float)
    if model.base:
        prefill = spec.workload.phase == "prefill"
        return HostBase(machine=machine, cost=cost, sizes=sizes).seconds(active, prefill=prefill)
    if spec.workload.phase != "decode":
        many = HostPrefill(spec=spec, machine=machine, cost=cost, sizes=sizes)
        return many.seconds(loads) * (1.0 - placed.device)
    return HostDecode(spec=spec, machine=machine, cost=cost, sizes=sizes).seconds(active, placed)
