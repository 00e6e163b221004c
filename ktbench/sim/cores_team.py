"""What a role's cores reach of a machine: how fast they read, and how fast they multiply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ktbench.sim.calibration import Calibration
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import Dtype, RunSpec

Isa = tuple[str, Dtype]
VECTOR, AMX = "vector", "amx"


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """`cores` that work together: read bandwidth in bytes/s, arithmetic peaks in operations/s by unit and dtype."""

    cores: int
    read_bytes_per_s: float
    peaks: Mapping[Isa, float]

    @property
    def torch_unit(self) -> str:
        """The unit that PyTorch (oneDNN) multiplies bf16 on: AMX where there is any."""
        return AMX if (AMX, "bf16") in self.peaks else VECTOR

    def reading(self, bytes_per_s: float) -> Team:
        """The same cores at another read bandwidth."""
        return replace(self, read_bytes_per_s=bytes_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Teams:
    """Who runs the routed experts and who runs the rest; `host_crowded` and `device_crowded` while both do."""

    host: Team
    device: Team
    host_crowded: Team
    device_crowded: Team


def teams_of(spec: RunSpec, cost: Calibration) -> Teams:
    """The teams of both roles of a cell. Raises ValueError where there are too few cores for them."""
    machine, engine = _machine(spec), spec.engine
    device, host = role_cores(spec)
    everywhere = _spread_bytes_per_s(machine)
    host_bytes_per_s = machine.domains * machine.read_gb_per_s * 1e9 if engine.numa else everywhere
    teams = (_team(machine, host, host_bytes_per_s, cost), _team(machine, device, everywhere, cost))
    if engine.roles == "shared":
        return Teams(host=teams[0], device=teams[1], host_crowded=teams[0], device_crowded=teams[1])
    wanted = sum(team.read_bytes_per_s for team in teams)
    share = min(1.0, everywhere / wanted)
    crowded = [team.reading(share * team.read_bytes_per_s) for team in teams]
    return Teams(host=teams[0], device=teams[1], host_crowded=crowded[0], device_crowded=crowded[1])


def role_cores(spec: RunSpec) -> tuple[int, int]:
    """Cores of the device role and of the host role; the same where they share them.

    Raises ValueError where the machine has too few.
    """
    machine, engine = _machine(spec), spec.engine
    there = machine.domains * machine.cores
    if engine.threads is not None and engine.threads > there:
        raise ValueError(f"engine.threads={engine.threads}: allowed are 1 to {there}, the cores of {machine.name}")
    used = engine.threads or there
    if engine.roles == "shared":
        return used, used
    device = engine.device_threads or used // 2
    if not 1 <= device < used:
        raise ValueError(f"engine.roles=split: needs a core for each role, {machine.name} gives them {used}")
    return device, used - device


def _team(machine: MachineSpec, cores: int, bytes_per_s: float, cost: Calibration) -> Team:
    """Some of the cores: their share of the peaks; what they read is bounded by their own limit as well."""
    share = cores / (machine.domains * machine.cores)
    own = max(cores * cost["core_read_gb_per_s"] * 1e9, share * bytes_per_s)
    return Team(
        cores=cores,
        read_bytes_per_s=min(bytes_per_s, own),
        peaks={isa: share * machine.domains * tera * 1e12 for isa, tera in _tera_peaks(machine).items() if tera},
    )


def _tera_peaks(machine: MachineSpec) -> dict[Isa, float | None]:
    return {
        (VECTOR, "bf16"): machine.vector_tflops,
        (VECTOR, "int8"): machine.vector_int8_tops,
        (AMX, "bf16"): machine.amx_tflops,
        (AMX, "int8"): machine.amx_int8_tops,
    }


def _spread_bytes_per_s(machine: MachineSpec) -> float:
    """All domains reading memory that is interleaved over them: the harmonic mean of local and remote reads."""
    domains = machine.domains
    per_gb = (1 / machine.read_gb_per_s + (domains - 1) / machine.remote_gb_per_s) / domains
    return domains / per_gb * 1e9


def _machine(spec: RunSpec) -> MachineSpec:
    if spec.machine is None:
        raise ValueError("machine: names no machine to simulate on")
    return spec.machine
