"""Runs of single layers that were never measured, in several parts: speeds are shares of roofs that a test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from random import Random

from ktbench.results import Run
from ktbench.spec.engine import EngineSpec
from ktbench.spec.record import Cell, Outcome, Part, Record, RoofSample, Work
from ktbench.spec.run_spec import ModelSpec, Routing, RunSpec, WorkloadSpec
from ktbench.spec.sweep import arm_features, arm_precision
from ktbench.spec.wire import spec_id
from tests.report.synthetic import CONFIG, blank, header_of, seen, system_of, written

TOP_K, EXPERTS = 8, 64
EXPERT_WEIGHTS = 3 * 2048 * 768
BYTES = {"bf16": 2.0, "int8": 1.0, "int4_g32": 0.5625, "int4_g64": 0.53125, "int4_g128": 0.515625}
READ = 25e9
PEAKS = {("avx512", "bf16"): 0.42e12, ("avx512", "int8"): 0.8e12, ("amx", "bf16"): 6.2e12, ("amx", "int8"): 12e12}
NEAR, FAR, SAME = 60.0, 155.0, 10.0


@dataclass(frozen=True, kw_only=True)
class LayerArm:
    """An arm that reaches `share` of the nearer roof; `call_s` comes on top of every call."""

    label: str
    share: float = 0.9
    call_s: float = 0.0
    noise: float = 0.01
    outcome: Outcome = Outcome.OK
    why: str = ""


BASE = LayerArm(label="base", share=0.3, call_s=4e-3)
KERNELS = (
    BASE,
    LayerArm(label="+v+d", share=0.96),
    LayerArm(label="+m+d", share=0.88, call_s=2e-4),
    LayerArm(label="+v+d int8", share=0.92),
    LayerArm(label="+m+d int8", share=0.82, call_s=2e-4),
    LayerArm(label="+v+d int4_g32", share=0.82),
    LayerArm(label="+m+d int4_g32", share=0.70, call_s=2e-4),
    LayerArm(label="+v+d int4_g64", share=0.86),
)
OCTAVES = tuple(2**n for n in range(11))


@dataclass(frozen=True, kw_only=True)
class LayerPart:
    """One part: its arms at every number of tokens per expert and every routing, its baseline the first arm."""

    name: str = ""
    title: str = "Throughput against tokens per expert"
    figure: str = "throughput"
    arms: tuple[LayerArm, ...] = KERNELS
    tokens: tuple[int, ...] = OCTAVES
    routings: tuple[Routing, ...] = ("balanced",)
    domains: int | None = None
    control: bool = True

    def part(self) -> Part:
        return Part(name=self.name, title=self.title, baseline=self.arms[0].label, figure=self.figure)  # type: ignore[arg-type]

    def cells(self) -> Iterator[Cell]:
        for routing in self.routings:
            for tokens in self.tokens:
                cells = [self._cell(arm.label, tokens, routing) for arm in self.arms]
                yield from cells
                if self.control:
                    yield replace(cells[0], label=f"{cells[0].label} (A/A)", role="control")

    def _cell(self, label: str, tokens: int, routing: Routing) -> Cell:
        active = TOP_K if routing == "balanced" else None
        spec = RunSpec(
            model=ModelSpec(
                name="qwen3_30b_a3b",
                config=CONFIG | {"num_experts": EXPERTS, "num_hidden_layers": 48, "vocab_size": 151936},
                full_layers=48,
                full_vocab=151936,
            ),
            workload=WorkloadSpec(
                phase="layer",
                prompt=1,
                steps=16 if tokens < 64 else 2,
                batch=tokens if active else tokens * EXPERTS // TOP_K,
                routing=routing,
                active_experts=active,
                trace="traces/deepseek_v3.npz" if routing == "recorded" else None,
            ),
            engine=EngineSpec(**arm_features(label), domains=self.domains),  # type: ignore[arg-type]
            precision=arm_precision(label) or "bf16",
            **system_of(label),
        )
        return Cell(label=label, spec=spec, spec_id=spec_id(spec), part=self.name)


@dataclass(frozen=True, kw_only=True)
class LayerStore:
    """What to write into a run folder. `places` is what the rounds' ping-pong takes before and after, in ns."""

    parts: tuple[LayerPart, ...] = (LayerPart(),)
    rounds: int = 12
    seed: int = 0
    places: tuple[tuple[float, float], ...] = ((NEAR, NEAR),)
    roof_noise: float = 0.03
    peaks: dict[tuple[str, str], float] | None = None
    run: str = "kernels"

    def write(self, folder: Path) -> Run:
        """Write the run into a folder and read it back."""
        parts = tuple(part.part() for part in self.parts)
        cells = tuple(cell for part in self.parts for cell in part.cells())
        header = header_of(self.run, "kernels", parts, cells)
        title = "MoE kernels against the roofs of this machine"
        return written(folder, replace(header, title=title), self._records())

    def _records(self) -> Iterator[Record]:
        rng = Random(self.seed)
        for part in self.parts:
            arms = {arm.label: arm for arm in part.arms}
            for cell in part.cells():
                yield from self._of_cell(cell, arms[cell.label.removesuffix(" (A/A)")], rng)

    def _of_cell(self, cell: Cell, arm: LayerArm, rng: Random) -> Iterator[Record]:
        if not arm.outcome.timed:
            yield replace(blank(cell, 0), outcome=arm.outcome, why=arm.why)
            return
        for number in range(self.rounds):
            yield self._timed(blank(cell, number), cell.spec, arm, rng)

    def _timed(self, record: Record, spec: RunSpec, arm: LayerArm, rng: Random) -> Record:
        work = work_of(spec)
        isa = spec.engine.isa or "amx"
        peak = (self.peaks or PEAKS)[isa, spec.dtype]
        least_s = max(work.weight_bytes / READ, work.flops / peak)
        step_s = (least_s / arm.share + arm.call_s) * exp(arm.noise * rng.gauss(0, 1))
        steps = spec.workload.steps
        roofs = tuple(self._roof(isa, spec.dtype, peak, ns, rng) for ns in self.places[record.round % len(self.places)])
        return replace(
            record,
            outcome=Outcome.OK,
            took_s=1.0,
            samples_s=tuple(round(step_s, 7) for _ in range(steps)),
            evidence=seen(spec, 128 * steps),
            error=0.0031 if spec.precision == "bf16" else 0.014,
            work=work,
            roofs=roofs,
        )

    def _roof(self, isa: str, dtype: str, peak: float, ns: float, rng: Random) -> RoofSample:
        return RoofSample(
            read_bytes_per_s=round(READ * exp(self.roof_noise * rng.gauss(0, 1))),
            peak_flops=round(peak * exp(0.5 * self.roof_noise * rng.gauss(0, 1))),
            peak_isa=isa,
            peak_dtype=dtype,
            ping_pong_ns=ns,
        )


def work_of(spec: RunSpec) -> Work:
    """Every active expert's weights once, two operations for each weight and token."""
    active = spec.workload.active_experts or EXPERTS
    stored = BYTES[spec.precision if spec.is_quantised else "bf16"]
    return Work(
        weight_bytes=round(active * EXPERT_WEIGHTS * stored),
        flops=2 * EXPERT_WEIGHTS * spec.workload.batch * TOP_K,
        tokens=spec.workload.batch,
    )
