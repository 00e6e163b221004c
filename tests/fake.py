"""A scripted system: right by default, and able to lie, go stale, go mad, hang, crash or drift on request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.protocol import ExpertsObservation, Survey, Surveyed, Unsupported
from ktbench.host.roofs import Ceiling
from ktbench.spec.features import FEATURES
from ktbench.spec.record import RoofSample, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import Span, Timeline

EXPERTS, HIDDEN, TOKENS, TOP_K = 6, 16, 4, 2
LAYERS, CALLS = 2, EXPERTS // TOP_K
HOST_BUSY_NS, DEVICE_WAIT_NS = 700_000, 200_000  # of a step, where the roles are apart


class FakeSystem:
    """Six linear experts. `scripts` maps a cell's feature label to what it does wrong; others do right."""

    def __init__(self, scripts: Mapping[str, str], step_s: float = 0.001) -> None:
        self.scripts, self.step_s = scripts, step_s
        self.weights = np.random.default_rng(0).normal(size=(EXPERTS, HIDDEN, HIDDEN)).astype(np.float32)
        self.counts = {feature.counter: 0 for feature in FEATURES}
        self.remarks: tuple[str, ...] = ()
        self.choice = 3
        self.script, self.at, self.steps = "", 0, 0
        self.first: NDArray[np.float32] | None = None
        self.copies: dict[int, NDArray[np.float32]] = {}
        self.renewed: list[int | None] = []

    def configure(self, spec: RunSpec) -> None:
        self.spec, self.script = spec, self.scripts.get(spec.label, "")
        if self.script == "unsupported":
            raise Unsupported("the fake engine has no such feature")
        if self.script == "no_memory":
            raise MemoryError("could not allocate 1 PiB")

    def start(self) -> None:
        self.at = 0

    def step(self) -> None:
        self.at += 1
        self.steps += 1
        if self.script == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.script == "raise":
            raise RuntimeError("the fake engine broke")
        if self.script == "hang":
            signal.pause()
        drift = 1 + self.steps / 10 if self.script == "drift" else 1
        time.sleep(self.step_s * drift)
        for feature, _ in self.spec.engine.on:
            if self.script != "lie":
                self.counts[feature.counter] = self.counts.get(feature.counter, 0) + 1
        if self.script == "sneak":
            self.counts["amx_tiles"] += 1
        if self.spec.engine.roles_concurrent:
            self._count_roles()

    def _count_roles(self) -> None:
        seen = {"host_busy_ns": HOST_BUSY_NS}
        if self.spec.engine.device == "cpu":
            seen["device_wait_ns"] = DEVICE_WAIT_NS
        for name, ns in seen.items():
            self.counts[name] = self.counts.get(name, 0) + ns

    def renew(self, number: int | None) -> None:
        self.renewed.append(number)

    def keep(self) -> None:
        self.copies[self.at - 1] = self.logits()

    def kept(self, step: int) -> NDArray[np.float32]:
        return self.copies[step]

    def survey(self, seed: int, most: int) -> Survey:
        units = tuple((layer, call) for layer in range(min(LAYERS, most // EXPERTS)) for call in range(CALLS))
        return Survey(seed=seed, units=units, experts=len(units) * TOP_K, of_experts=LAYERS * EXPERTS)

    def meet(self, unit: tuple[int, int]) -> Surveyed:
        ids = np.arange(TOP_K * unit[1], TOP_K * (unit[1] + 1))[None]
        hidden = np.ones((1, HIDDEN), np.float32)
        gates = np.full((1, TOP_K), 1 / TOP_K, np.float32)
        seen = ExpertsObservation(layer=unit[0], hidden=hidden, ids=ids, gates=gates, output=hidden)
        truth = self.reference(seen)
        wrong = self.script == "expert 3" and 3 in ids
        seen = replace(seen, output=np.zeros_like(truth) if wrong else truth)
        return Surveyed(seen=seen, truth=truth, met=frozenset((unit[0], int(one)) for one in ids[0]))

    def logits(self) -> NDArray[np.float32]:
        jitter = 1000 * self.steps if self.script == "cached logits" else 0
        tokens = np.linspace(0, 3, 8, dtype=np.float32)[None]
        return (tokens[:, ::-1] if self.script == "other weights" else tokens) + (1 + self.at + jitter)

    def observe(self, step: int | None = None, _seed: int | None = None) -> tuple[ExpertsObservation, ...]:
        self.at = self.at if step is None else step + 1
        if self.script == "blind":
            return ()
        self.steps += 1
        random = np.random.default_rng(self.at + 100 * self.steps)
        hidden = random.normal(size=(TOKENS, HIDDEN)).astype(np.float32)
        ids = np.array([random.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)])
        gates = np.tile(np.array([0.7, 0.3], dtype=np.float32), (TOKENS, 1))
        seen = ExpertsObservation(layer=0, hidden=hidden, ids=ids, gates=gates, output=np.zeros_like(hidden))
        return (self._output(seen),)

    def _output(self, seen: ExpertsObservation) -> ExpertsObservation:
        right = self.reference(seen)
        self.first = right if self.first is None else self.first
        wrong = {"zeros": np.zeros_like(right), "stale": self.first, "nan": right * np.float32("nan")}
        output = wrong.get(self.script, right)
        return ExpertsObservation(layer=0, hidden=seen.hidden, ids=seen.ids, gates=seen.gates, output=output)

    def reference(self, seen: ExpertsObservation) -> NDArray[np.float32]:
        if self.script == "vacuous":
            return np.ones_like(seen.hidden)
        chosen = self.weights[seen.ids]
        result: NDArray[np.float32] = np.einsum("tk,tkhi,ti->th", seen.gates, chosen, seen.hidden).astype(np.float32)
        return result

    def counters(self) -> Mapping[str, int]:
        return self.counts

    def timeline(self) -> Timeline:
        if self.script == "no timeline":
            raise Unsupported("the fake engine keeps no time")
        experts = Span(resource="host", name="experts", kind="experts", layer=0, begin_s=0.001, end_s=0.003)
        attention = Span(resource="device", name="attention", kind="attention", layer=0, begin_s=0.0, end_s=0.002)
        return Timeline(title=f"step {self.at} of {self.spec.engine.label}", spans=(attention, experts), step_s=0.003)

    def chosen(self) -> Mapping[str, int]:
        return {"deferral": self.choice} if self.spec.engine.deferral == "auto" else {}

    def notes(self) -> tuple[str, ...]:
        return self.remarks

    def work(self) -> Work:
        return Work(weight_bytes=1000, flops=2000, tokens=1)

    def close(self) -> None:
        pass


class FakeRoofs:
    """A machine whose limits never move, and on which nothing is too fast."""

    def ceiling(self, _weight_bytes: int, *, again: bool = False) -> Ceiling:
        return Ceiling(read_bytes_per_s=1e15, peak_flops=1e18)

    def sample(self, isa: str | None, dtype: str = "bf16") -> RoofSample:
        return RoofSample(
            read_bytes_per_s=1e7, peak_flops=1e8, peak_isa=isa or "amx", peak_dtype=dtype, ping_pong_ns=50.0
        )
