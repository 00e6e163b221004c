"""One MoE layer run by kt-kernel, tuned to each workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import sleep

from ktbench.engine.layer import CacheColdReplicas, LayerSystem, LoadedLayer, Trial
from ktbench.engine.load_layer import LayerWeights
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.kt_kernel.library import (
    KtExperts,
    KtLibrary,
    Pool,
    Setting,
    as_stored,
    load_experts,
    settings_for,
)
from ktbench.peers.layers import other_form, output_lost
from ktbench.peers.tuning import StepsBench, Tuned, Tuner
from ktbench.spec.peers import BY_NAME
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.support import unsupported
from ktbench.spec.weights import Precision

# By then the workers of other settings sleep; before that they would disturb the next ones.
_ASLEEP_S = BY_NAME["kt-kernel"].spin_s + 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class KtLoader:
    """Loads copies of a layer for calls of up to `most_tokens` tokens; `kind` is kt-kernel's format of `precision`."""

    library: KtLibrary
    kind: str
    precision: Precision
    weights: LayerWeights
    host: HostRole
    most_tokens: int

    @property
    def name(self) -> str:
        """What runs, for notes."""
        return f"kt-kernel {self.library.version} ({self.library.variant})"

    def settings(self, cores: int) -> dict[Setting, CacheColdReplicas]:
        """The copies for each setting that may be tried on this many cores: weights belong to one setting's pools."""
        cpus = self.host.usable_cpus[:cores]
        copies_bytes = self.weights.count(self.precision, self.host) * self.weights.nbytes(self.precision)
        settings = settings_for(cores, self.host.nodes, copies_bytes)
        return {setting: self._copies(setting, cpus) for setting in settings}

    def _copies(self, setting: Setting, cpus: Sequence[int]) -> CacheColdReplicas:
        pool = Pool(self.library, setting, cpus)
        return self.weights.copies(partial(self._copy, pool, len(setting.workers)), self.precision, self.host)

    def _copy(self, pool: Pool, pools: int, number: int) -> KtExperts:
        store = self.weights.passing(number)
        shape = self.weights.model.shape
        experts = load_experts(self.library, self.kind, pool, shape, store, self.most_tokens)
        return KtExperts(
            experts=experts, pool=pool, store=store, kind=self.kind, pools=pools, most_tokens=self.most_tokens
        )

    def lost(self) -> float:
        expert = self.weights.passing(0)(0)
        return output_lost(expert, as_stored(expert, self.kind, 1))


class KtLayer(LoadedLayer):
    """Made by `open_peer`. `held` has the copies for each setting by number of cores."""

    def __init__(self, loader: KtLoader, held: Mapping[int, Mapping[Setting, CacheColdReplicas]]) -> None:
        self._loader, self._held = loader, dict(held)
        self._lost = loader.lost()
        self._tuned: dict[tuple[WorkloadSpec, int], Tuned[Setting]] = {}

    def choose(self, spec: RunSpec, trial: Trial) -> CacheColdReplicas:
        """See `LoadedLayer`. The first trial of a workload tries the settings for up to `peer.tune_s` seconds."""
        if why := unsupported(spec):
            raise Unsupported(why)
        cores = self._loader.host.threads_of(spec.engine)
        if cores not in self._held:
            raise ValueError(f"engine.threads={cores}: no weights were loaded for that many threads")
        held, key = self._held[cores], (spec.workload, cores)
        if key not in self._tuned:
            first, *others = held
            walks = [lambda _best, other=other: [other] for other in others]  # all of them are tried

            def steps_on(setting: Setting) -> Iterator[None]:
                sleep(_ASLEEP_S)
                return trial(held[setting])

            self._tuned[key] = Tuner(StepsBench(steps_on), spec.peer.tune_s).tune(first, walks)
        return held[self._tuned[key].settings]

    def notes(self, spec: RunSpec) -> tuple[str, ...]:
        tuned = self._tuned[spec.workload, self._loader.host.threads_of(spec.engine)]
        choice = tuned.explain(self._loader.name)
        return (choice,) if self._loader.kind == "bf16" else (choice, self._quantisation)

    @property
    def _quantisation(self) -> str:
        return (
            f"kt-kernel quantises to {self._loader.kind} itself, one scale a row, and is checked against what it "
            f"stores: that alone puts an expert's output {self._lost:.2g} off that of the bf16 weights (relative "
            "Frobenius error)"
        )

    def close(self) -> None:
        """See `LoadedLayer`. Ends threads, but weights stay until the process ends: kt-kernel does not free them."""
        self._held.clear()


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> LayerSystem:
    """The first MoE layer of a model for cells that share it, loaded once for each setting that may be tried.

    Raises Unsupported if kt-kernel is missing, or cannot run this format, activation, size or set of NUMA nodes;
    ValueError for more threads than cores.
    """
    weights = LayerWeights.of(specs[0].model)
    if why := unsupported(specs[0]) or other_form(weights, "kt-kernel"):
        raise Unsupported(why)
    loader = KtLoader(
        library=KtLibrary.load(),
        kind=BY_NAME["kt-kernel"].types[specs[0].precision],
        precision=specs[0].precision,
        weights=weights,
        host=host,
        most_tokens=max(spec.workload.batch for spec in specs),
    )
    layer = KtLayer(
        loader, {cores: loader.settings(cores) for cores in {host.threads_of(spec.engine) for spec in specs}}
    )
    return LayerSystem(weights.model, weights.number, layer)
