"""The threads of both roles: PyTorch's own, and a pool of our own where the host role has cores to itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ktbench.engine.protocol import HostRole
from ktbench.engine.roles import RoleCpus, split_cpus
from ktbench.spec.engine import EngineSpec

if TYPE_CHECKING:
    from ktbench.engine.dense import DenseHost
    from ktbench.engine.fused import FusedHost


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """One cpu of every core that an engine may use."""

    cpus: tuple[int, ...]

    @classmethod
    def of(cls, host: HostRole) -> Threads:
        """Those of a host role; where it names none, as many as it has cores of those that this thread may run on."""
        return cls(cpus=host.cpus or tuple(sorted(os.sched_getaffinity(0)) * host.cores)[: host.cores])

    def roles(self, engine: EngineSpec) -> RoleCpus:
        """Who runs where. Raises ValueError where there are too few cores."""
        return split_cpus(self.cpus, engine)

    def use(self, engine: EngineSpec, host: FusedHost | None, device: DenseHost | None) -> None:
        """From now on everything runs as many threads as `engine` asks for. Raises ValueError for more than cores."""
        roles = self.roles(engine)
        torch.set_num_threads(len(roles.device))
        if host is not None:
            host.run_on(roles.host)
        if device is not None:
            device.resize(len(roles.device))
