"""Builds one MoE layer with synthetic weights, held as often as it takes to leave the cache."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ktbench.engine.components import use_threads
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import ExpertsForm, expert_positions, read_form
from ktbench.engine.layer import BindableBackend, CacheColdReplicas, LayerSystem, Trial
from ktbench.engine.load import open_host
from ktbench.engine.loading.source import fill_experts
from ktbench.engine.protocol import HostRole
from ktbench.engine.synthetic import TransientExperts, WeightPool, skeleton
from ktbench.engine.weight_plan import Packing, WeightPlan
from ktbench.spec.cells import layer_copies
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.weights import Precision, expert_bytes

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedHost


def load_layer(
    model: ModelSpec, *, host: HostRole, keep_original: bool = True, packing: Packing | None = None
) -> LayerSystem:
    """The first MoE layer of a model with its weights in memory.

    `keep_original` holds the experts as Transformers does, for `base`; `packing` holds them packed, for the fused
    operator. Raises ValueError where neither is wanted and for a checkpoint: a layer alone has synthetic weights.
    """
    plan, cpus = WeightPlan(original=keep_original, packing=packing), host.usable_cpus
    weights = LayerWeights.of(model)
    original = packed = fused = None
    if keep_original:
        original = weights.copies(weights.original, "bf16", host)
    if packing is not None:
        fused = open_host(cpus, plan, CallRecorder())
        pack, form = fused.pack, weights.form
        packed = weights.copies(lambda number: pack(weights.passing(number), form), packing.precision, host)
    held = EngineLayer(original=original, packed=packed, host=fused, cpus=cpus)
    return LayerSystem(model, weights.number, held)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """Content for the copies of one experts module, which is on `meta`: copies of equal number are equal.

    `number` is the decoder layer that it is in.
    """

    model: ModelSpec
    module: nn.Module
    form: ExpertsForm
    name: str
    number: int
    pool: WeightPool

    @classmethod
    def of(cls, model: ModelSpec) -> LayerWeights:
        """Those of the first MoE layer of a model. Raises ValueError for a checkpoint."""
        if model.path is not None:
            raise ValueError(f"model.path={model.path}: a layer alone has synthetic weights, leave model.path=null")
        network = skeleton(model)
        name, position = expert_positions(network)[0]
        module, pool = network.get_submodule(name), WeightPool.of(model)
        return cls(model=model, module=module, form=read_form(module), name=name, number=position.layer, pool=pool)

    def copies(self, hold: Callable[[int], BindableBackend], precision: Precision, host: HostRole) -> CacheColdReplicas:
        """As many as it takes to leave the last-level cache, copy number n as `hold(n)` holds it."""
        count = self.count(precision, host)
        return CacheColdReplicas([hold(number) for number in range(count)], self.form.experts, precision)

    def count(self, precision: Precision, host: HostRole) -> int:
        """How many copies that takes."""
        return layer_copies(self.nbytes(precision), host.cache_bytes)

    def nbytes(self, precision: Precision) -> int:
        """Bytes of one copy."""
        return self.form.experts * expert_bytes(self.model.shape, precision)

    def original(self, number: int) -> OriginalExperts:
        """A copy as Transformers holds it."""
        module = copy.deepcopy(self.module)
        fill_experts(module, self.passing(number))
        return OriginalExperts(module.requires_grad_(False))

    def passing(self, number: int) -> TransientExperts:
        """A copy of which one expert at a time is in memory."""
        return TransientExperts(self.module, f"{self.name}.{number}", self.pool)


@dataclass(kw_only=True, slots=True)
class EngineLayer:
    """Implements `LoadedLayer` for our engine: copies as Transformers holds them for base, packed for +v and +m."""

    original: CacheColdReplicas | None
    packed: CacheColdReplicas | None
    host: FusedHost | None
    cpus: tuple[int, ...]

    def choose(self, spec: RunSpec, _trial: Trial) -> CacheColdReplicas:
        use_threads(self.cpus, spec.engine, self.host, None)
        fused = spec.engine.fused
        copies = self.packed if fused else self.original
        if copies is None:
            raise ValueError(f"{'packed' if fused else 'original'} expert weights were not kept at load")
        if fused and self.host is not None:
            self.host.require(spec)
            self.host.choose(spec.engine)
        return copies

    def counters(self) -> Mapping[str, int]:
        return Counter[str]() if self.host is None else self.host.counters()

    def notes(self, spec: RunSpec) -> tuple[str, ...]:
        return () if self.host is None else self.host.notes(spec.engine)

    def close(self) -> None:
        self.original = self.packed = self.host = None
