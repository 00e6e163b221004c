"""Fiddler's scheme in our engine: base, but experts with many tokens are copied to the CUDA device and run there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ktbench.engine.components import use_threads
from ktbench.engine.cuda.fiddler import FiddlerCosts, FiddlerRuntime, measure_costs
from ktbench.engine.cuda.stream import Pins, cuda_runtime
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.load import load_engine
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.support import unsupported


class Fiddler(HybridEngine):
    """Implements `ktbench.engine.protocol.System`; made by `open_peer`.

    The costs of an expert are measured before the first trial with each number of threads.
    """

    def __init__(self, engine: HybridEngine, pins: Pins | None) -> None:
        """Use the parts of an engine loaded for base on a CUDA device; for `pins` see `FiddlerRuntime`."""
        parts = engine._components
        super().__init__(engine.model, parts)
        assert parts.cuda is not None
        self._copier = FiddlerRuntime(parts.cuda.device, parts.cuda.stream, parts.state.counted, pins)
        self._layers = [self._copier.experts(original) for original in parts.cuda.originals]
        for operator, experts in zip(parts.operators, self._layers, strict=True):
            operator.original = experts
        self._costs: dict[int, FiddlerCosts] = {}

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model or thread count that is not loaded."""
        if why := unsupported(spec):
            raise Unsupported(why)
        self._copier.costs = self._costs_of(spec.engine)
        super().configure(spec)

    def _costs_of(self, engine: EngineSpec) -> FiddlerCosts:
        use_threads(self._components.cpus, engine, None, None)
        threads = torch.get_num_threads()
        if threads not in self._costs:
            self._costs[threads] = measure_costs(self._layers[0])
        return self._costs[threads]

    def notes(self) -> tuple[str, ...]:
        notes = list(super().notes())
        if self._copier.costs is not None:
            notes.append(f"fiddler: {self._copier.costs.explain()}")
        if self._copier.pins is not None and (left := self._copier.pins.note):
            notes.append(f"fiddler: {left}")
        return tuple(notes)

    def close(self) -> None:
        self._copier.stream.finish()
        if self._copier.pins is not None:
            self._copier.pins.release()
        del self._layers
        super().close()


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> Fiddler:
    """Fiddler's scheme for cells of prefill and decode, on the cores of `host` and PyTorch's current CUDA device.

    Raises ValueError for an incomplete checkpoint, OSError if no CUDA runtime is loaded.
    """
    engine = load_engine(specs[0].model, WeightPlan(engine=EngineSpec(device="cuda")), host)
    return Fiddler(engine, Pins(cuda_runtime()))
