"""The task graph of one step of KTransformers with a GPU, and of Fiddler's scheme as its base."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cost_gpu import Part, StepModel, call_s, step_model
from ktbench.sim.executor import Graph, play
from ktbench.sim.placement import ALL_ON_HOST, Coverage, coverage
from ktbench.sim.routing import SAMPLES, loads_of
from ktbench.spec.run_spec import RunSpec

_BF16 = 2


def step_graph(spec: RunSpec, cost: Calibration) -> Graph:
    """The tasks of one step, layer by layer, then the output head; in the layer phase one call of the experts."""
    model = step_model(spec, cost)
    return _one_call(model) if spec.workload.phase == "layer" else _Builder(model).built()


def step_seconds(spec: RunSpec, cost: Calibration) -> float:
    """Seconds of one step."""
    return play(step_graph(spec, cost).tasks).total_s


def _one_call(model: StepModel) -> Graph:
    graph, spec = Graph(), model.spec
    each = [
        call_s(model, loads, ALL_ON_HOST)
        for loads in loads_of(spec, model.cost, spec.workload.batch, spec.model.shape.top_k)
    ]
    graph.add("experts", "experts", "host", float(np.mean(each)))
    return graph


class _Builder:
    """Adds layer after layer; `_last` is what the next layer's attention waits for."""

    def __init__(self, model: StepModel) -> None:
        self._model, self._graph = model, Graph()
        self._last: int | None = None
        self._deferred: int | None = None
        self._calls: dict[tuple[int, int, Coverage], float] = {}
        work, engine = model.spec.workload, model.spec.engine
        self._tokens = work.prompt if model.prefill else 1
        self._context = 0 if model.prefill else work.prompt
        self._rows = work.batch * self._tokens
        top_k = model.spec.model.shape.top_k
        acts = not model.prefill or engine.defer_prefill
        deferral = engine.deferral if acts and engine.deferral != "auto" else 0
        self._kept = top_k - (engine.skipping if acts else 0)
        self._late = int(deferral)

    def built(self) -> Graph:
        shape, model = self._model.spec.model.shape, self._model
        if not model.prefill:
            self._last = self._graph.add("step", "other", "launch", model.cost["step_ms"] * 1e-3)
        for layer in range(shape.layers):
            attended = self._device(f"attention {layer}", "attention", self._attend(), layer, self._last)
            if layer < shape.dense_layers:
                self._last = self._device(f"dense {layer}", "other", model.gpu.dense(self._rows), layer, attended)
            else:
                self._last = self._moe(layer, attended)
        self._device("head", "other", model.gpu.head(model.spec.workload.batch), None, self._last)
        return self._graph

    def _attend(self) -> Part:
        return self._model.gpu.attend(self._tokens, self._model.spec.workload.batch, self._context)

    def _device(self, name: str, kind: str, part: Part, layer: int | None, *after: int | None) -> int:
        gpu, before = self._model.gpu, after
        if launch_s := gpu.launch_s(part):
            before = (self._graph.add(f"launch {name}", "launch", "launch", launch_s, *after, layer=layer),)
        return self._graph.add(name, kind, "device", gpu.seconds(part), *before, layer=layer)

    def _moe(self, layer: int, attended: int) -> int:
        """Hand-over, experts, and the shared expert before, beside or after them; then the sum."""
        model, graph = self._model, self._graph
        shared: int | None = None
        if not model.overlaps_shared and not model.base:
            attended = self._shared(layer, attended)
        sent = graph.add(f"submit {layer}", "copy", "link", self._hand_over_s / 2, attended, layer=layer)
        routed, late = self._routed(layer, sent)
        own = self._at_device(layer, sent)
        if model.overlaps_shared:
            shared = self._shared(layer, attended)
        back = graph.add(f"return {layer}", "copy", "link", self._hand_over_s / 2, routed, layer=layer)
        if model.base:
            shared = self._shared(layer, back)
        due, self._deferred = self._deferred, late
        return graph.add(f"sum {layer}", "other", "device", 0.0, back, shared, own, due, layer=layer)

    def _shared(self, layer: int, after: int) -> int:
        part = self._model.gpu.shared(self._rows)
        return self._device(f"shared {layer}", "shared", part, layer, after) if part.kernels else after

    def _routed(self, layer: int, sent: int) -> tuple[int, int | None]:
        """The call that this layer waits for, and the one that the next layer waits for, where there is one.

        Of the last layer nothing is deferred (section 4.1). In base every call is waited for.
        """
        last = layer == self._model.spec.model.shape.layers - 1
        late = 0 if last else self._late
        placed = self._placed(layer)
        soon = self._host(f"experts {layer}", "experts", self._host_s(layer, self._kept - late, placed), layer, sent)
        deferred = None
        if late:
            deferred_s = self._host_s(layer, late, placed)
            deferred = self._host(f"deferred {layer}", "deferred", deferred_s, layer, sent)
        if self._model.base and deferred is not None:
            soon = deferred
        return soon, deferred

    def _at_device(self, layer: int, sent: int) -> int | None:
        """Experts that live at the device, beside those of the host."""
        placed = self._placed(layer)
        if not placed.device:
            return None
        loads = self._loads(self._kept)[layer % SAMPLES]
        part = self._model.gpu.experts(int((loads > 0).sum()) * placed.device, int(loads.sum()) * placed.device)
        return self._device(f"device experts {layer}", "experts", part, layer, sent)

    def _placed(self, layer: int) -> Coverage:
        spec = self._model.spec
        return coverage(spec, self._model.cost, layer - spec.model.shape.dense_layers)

    def _host(self, name: str, kind: str, seconds: float, layer: int, after: int) -> int:
        return self._graph.add(name, kind, "host", seconds, after, layer=layer)

    def _host_s(self, layer: int, picks: int, placed: Coverage) -> float:
        key = (layer % SAMPLES, picks, placed)
        if key not in self._calls:
            self._calls[key] = call_s(self._model, self._loads(picks)[layer % SAMPLES], placed) if picks else 0.0
        return self._calls[key]

    def _loads(self, picks: int) -> NDArray[np.int64]:
        return loads_of(self._model.spec, self._model.cost, self._rows, picks)

    @property
    def _hand_over_s(self) -> float:
        """Both copies of a layer; in prefill through memory that is not pinned, and mapped anew where it is large."""
        model = self._model
        if not model.prefill:
            return model.cost["sync_ms"] * 1e-3
        moved_mb = self._rows * model.sizes.hidden * _BF16 * 1e-6
        copy_s = moved_mb * 1e-3 / min(model.cost["pageable_gb_per_s"], model.machine.link_gb_per_s or 0.0)
        fresh_s = moved_mb * model.cost["fresh_ms_per_mb"] * 1e-3 if moved_mb > model.cost["fresh_mb"] else 0.0
        return model.cost["sync_ms"] * 1e-3 + 2 * (copy_s + fresh_s)
