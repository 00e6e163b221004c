"""Timelines that were never measured: layers of attention, shared and routed experts, some of those deferred."""

from __future__ import annotations

from ktbench.spec.timeline import Span, Timeline

MS = 1e-3


def decode_step(
    layers: int = 4, *, deferred: bool = False, device_ms: float = 0.5, host_ms: float = 1.6, link: bool = False
) -> Timeline:
    """A step whose device role submits experts after attention and waits for them; deferred ones run on meanwhile."""
    spans: list[Span] = []
    now = host_free = 0.0

    def did(resource: str, name: str, kind: str, ms: float, at: float, layer: int | None) -> float:
        spans.append(
            Span(resource=resource, name=name, kind=kind, begin_s=at, end_s=at + ms * MS, layer=layer)  # type: ignore[arg-type]
        )
        return at + ms * MS

    now = did("device", "embedding", "other", 0.2, now, None)
    for layer in range(layers):
        now = did("device", "attention", "attention", device_ms, now, layer)
        if link:
            now = did("link", "to host", "other", 0.08, now, layer)
        on_time = host_ms * (0.5 if deferred and layer < layers - 1 else 1.0)
        needed = host_free = did("host", "experts", "experts", on_time, max(now, host_free), layer)
        if deferred and layer < layers - 1:
            host_free = did("host", "deferred", "deferred", host_ms / 2, host_free, layer)
        now = did("device", "shared expert", "shared", device_ms * 0.8, now, layer)
        if needed > now:
            now = did("device", "wait", "wait", (needed - now) / MS, now, layer)
    now = did("device", "lm_head", "other", 0.6, now, None)
    title = f"Decode step of {layers} layers{', 3 deferred' if deferred else ''}"
    return Timeline(title=title, spans=tuple(sorted(spans, key=lambda span: span.begin_s)), step_s=now)
