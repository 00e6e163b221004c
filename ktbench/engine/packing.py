"""How the fused operator holds its experts, told from the spec and the machine alone."""

from __future__ import annotations

from dataclasses import dataclass

from ktbench.core.spec import Precision, RunSpec
from ktbench.engine.protocol import HostRole


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """Precision of the packed weights and the parts that they are split into.

    `nodes` is the NUMA node of each domain; None leaves the memory where the threads touch it first.
    """

    precision: Precision = "bf16"
    domains: int = 1
    nodes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, spec: RunSpec, host: HostRole) -> Packing:
        """As the spec asks: `engine.domains` logical domains, or one on each NUMA node where there are several."""
        if spec.engine.domains is not None:
            return cls(precision=spec.precision, domains=spec.engine.domains)
        if len(host.nodes) > 1:
            return cls(precision=spec.precision, domains=len(host.nodes), nodes=host.nodes)
        return cls(precision=spec.precision)
