"""How the fused operator holds its experts, derived from the spec and the machine alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ktbench.engine.protocol import HostRole
from ktbench.spec.engine import EngineSpec
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import Precision


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
        """As the spec requests: `engine.domains` logical domains, or one on each NUMA node where there are several.

        Experts that are mapped from a file lie where its pages do: they are not split.
        """
        if spec.engine.domains is None and len(host.nodes) > 1 and spec.model.packed is None:
            return cls(precision=spec.precision, domains=len(host.nodes), nodes=host.nodes)
        return cls(precision=spec.precision, domains=spec.engine.domains or 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightPlan:
    """What an engine keeps in memory for the cells that it serves.

    `original` experts as Transformers holds them, for base; `packing` says how the fused operator's are held; linear
    layers are packed in the precision `dense`, and kept as they were too with `original_dense`. None: not at all.
    `engine` has the roles.
    """

    original: bool = True
    packing: Packing | None = None
    dense: Precision | None = None
    original_dense: bool = True
    engine: EngineSpec = field(default_factory=EngineSpec)
    inject: InjectSpec = field(default_factory=InjectSpec)

    def __post_init__(self) -> None:
        if not self.original and self.packing is None:
            raise ValueError("neither original nor packed experts are kept: nothing is left to run them with")

    @classmethod
    def of(cls, specs: Sequence[RunSpec], host: HostRole) -> WeightPlan:
        """What cells need that share their weights."""
        first = specs[0]
        lean = [spec.engine.packed_dense for spec in specs]
        return cls(
            original=not all(spec.engine.fused for spec in specs),
            packing=Packing.of(first, host) if any(spec.engine.fused for spec in specs) else None,
            dense=first.device_precision if any(lean) else None,
            original_dense=not all(lean),
            engine=first.engine,
            inject=first.inject,
        )
