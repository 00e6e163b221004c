"""One step of our engine where the device role runs on cores: its task graph, its work, its counters."""

from __future__ import annotations

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores_layers import layers_graph
from ktbench.sim.cost_cpu import Device, Experts, Team, teams_of
from ktbench.sim.deferral import LEAST_ON_TIME, with_deferral
from ktbench.sim.executor import Graph, busy_share, settled
from ktbench.spec.run_spec import RunSpec

# As `deferral=auto` of the engine chooses (ktbench/engine/choosing.py).
_AS_GOOD = 0.97


def cores_graph(spec: RunSpec, cost: Calibration) -> Graph:
    """The tasks of one step, on resources `host` and `device`.

    With shared roles they run one after the other; apart, both read the same memory, and a task takes longer while the
    other role works. Raises ValueError in one line for what is not simulated on cores.
    """
    _require(spec)
    return _graph(with_deferral(spec, chosen_deferral(spec, cost)), cost)


def chosen_deferral(spec: RunSpec, cost: Calibration) -> int:
    """Experts that a token defers; for `auto` the smallest number that keeps the host role about as busy as any."""
    if spec.engine.deferral != "auto":
        return spec.engine.deferral
    numbers = range(spec.model.shape.top_k - LEAST_ON_TIME + 1)
    busy = [busy_share(_graph(with_deferral(spec, number), cost).tasks, "host") for number in numbers]
    return next(number for number, share in zip(numbers, busy, strict=True) if share >= _AS_GOOD * max(busy))


def _require(spec: RunSpec) -> None:
    policy = spec.engine.placement.policy
    if spec.system != "ktbench":
        raise ValueError(f"system={spec.system}: without a GPU only system=ktbench is simulated")
    if policy != "host":
        raise ValueError(f"engine.placement.policy={policy}: without a GPU only policy=host is simulated")


def _graph(spec: RunSpec, cost: Calibration) -> Graph:
    teams = teams_of(spec, cost)
    alone = _graph_of(spec, cost, teams.host, teams.device)
    if spec.engine.roles == "shared":
        return alone
    return settled(alone, _graph_of(spec, cost, teams.host_crowded, teams.device_crowded))


def _graph_of(spec: RunSpec, cost: Calibration, host: Team, device: Team) -> Graph:
    shape = spec.model.shape
    experts = Experts(spec=spec, shape=shape, cost=cost, team=host if spec.engine.fused else device)
    return layers_graph(spec, Device(spec=spec, shape=shape, cost=cost, team=device), experts)
