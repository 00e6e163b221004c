"""The layers of a step on cores as tasks: attention, routed experts, shared expert, output head."""

from __future__ import annotations

from dataclasses import dataclass

from ktbench.sim.cost_cpu import Device, Experts, Pass, passes_of
from ktbench.sim.executor import Graph
from ktbench.sim.routing import drops, kept_experts, selections
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import Resource


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """Seconds of what a MoE layer is made of; `late` of the `deferred` experts of each token."""

    attention_s: float
    shared_s: float
    dense_s: float
    soon_s: float
    late_s: float
    all_s: float


def layers_graph(spec: RunSpec, device: Device, experts: Experts) -> Graph:
    """The tasks of a step whose deferral is a number."""
    builder = _Builder(spec, device, experts)
    if spec.workload.phase == "layer":
        builder.experts_alone()
    else:
        for one in passes_of(spec):
            builder.add_pass(one)
    return builder.graph


class _Builder:
    """`_last` is what the next task of the device waits for, `_due` the deferred call that the next sum waits for."""

    def __init__(self, spec: RunSpec, device: Device, experts: Experts) -> None:
        self.graph = Graph()
        self._spec, self._shape = spec, experts.shape
        self._device, self._experts = device, experts
        self._last: int | None = None
        self._due: int | None = None
        assert spec.engine.deferral != "auto"
        self._kept = kept_experts(spec, self._shape.top_k)
        self._deferred = spec.engine.deferral if drops(spec) else 0
        self._apart = spec.engine.roles == "split" and spec.engine.fused

    def experts_alone(self) -> None:
        """One call, with no layer around it."""
        drawn = selections(self._spec, self._shape, self._experts.cost, self._spec.workload.batch)
        self.graph.add("experts", "experts", self._host, self._experts.seconds(drawn, 0, self._kept))

    def add_pass(self, work: Pass) -> None:
        """Layer after layer, then the head; nothing stays deferred behind it."""
        shape, seconds = self._shape, self._seconds(work)
        for layer in range(shape.layers):
            attended = self._add("attention", seconds.attention_s, layer, self._last)
            if layer < shape.dense_layers:
                self._last = self._add("dense", seconds.dense_s, layer, attended)
            else:
                self._last = self._moe(layer, attended, seconds)
        self._last = self._add("head", self._device.head_s(work.batch), None, self._last)
        self._due = None

    def _moe(self, layer: int, attended: int, seconds: _Layer) -> int:
        """Experts are submitted before the shared expert runs; on shared cores and in base they are done before it."""
        defers = self._deferred and layer < self._shape.layers - 1
        soon_s = seconds.soon_s if defers else seconds.all_s
        routed = [self.graph.add(f"experts {layer}", "experts", self._host, soon_s, attended, layer=layer)]
        if defers:
            late_s = seconds.late_s
            routed.append(self.graph.add(f"deferred {layer}", "deferred", self._host, late_s, attended, layer=layer))
        before = attended if self._apart else routed[-1]
        shared = self._add("shared", seconds.shared_s, layer, before) if seconds.shared_s else None
        waited = routed[:1] if self._apart else routed
        due, self._due = self._due, routed[-1] if defers else None
        return self._add("sum", 0.0, layer, *waited, shared, due)

    def _seconds(self, work: Pass) -> _Layer:
        shape, experts = self._shape, self._experts
        drawn, soon = selections(self._spec, shape, experts.cost, work.rows), self._kept - self._deferred
        return _Layer(
            attention_s=self._device.attention_s(work),
            shared_s=self._device.mlp_s(shape.shared_ffn, work.rows),
            dense_s=self._device.mlp_s(shape.dense_ffn, work.rows),
            soon_s=experts.seconds(drawn, 0, soon),
            late_s=experts.seconds(drawn, soon, self._kept),
            all_s=experts.seconds(drawn, 0, self._kept),
        )

    @property
    def _host(self) -> Resource:
        """Base submits nothing: all of it runs on the device role's cores."""
        return "host" if self._spec.engine.fused else "device"

    def _add(self, kind: str, seconds: float, layer: int | None, *after: int | None) -> int:
        name = kind if layer is None else f"{kind} {layer}"
        shown = kind if kind in ("attention", "shared") else "other"
        return self.graph.add(name, shown, "device", seconds, *after, layer=layer)
