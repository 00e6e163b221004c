"""Runs that were never measured: real objects through the real log, with speeds that a test chooses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from math import exp, sin
from pathlib import Path
from random import Random
from typing import Any

from ktbench.results import Log, Run, published_of, read_run
from ktbench.spec.engine import EngineSpec, PlacementSpec
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import IMPLEMENTATIONS, PeerSpec, peer_of
from ktbench.spec.record import (
    Agreement,
    Cell,
    Environment,
    Evidence,
    Header,
    Outcome,
    Part,
    Record,
    RoleTimes,
    RoofSample,
    Work,
    collect,
)
from ktbench.spec.run_spec import MeasureSpec, ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.sweep import FigureKind, arm_features, arm_peer
from ktbench.spec.system_metrics import Energy, InterferenceCounters, PeakMemory, SystemMetrics
from ktbench.spec.weights import Precision
from ktbench.spec.wire import spec_id

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 12672,
}
NO_NUMA = (
    "+n: one NUMA node: needs a machine with two or more sockets, or node-per-socket (NPS, SNC) set in the firmware"
)
NO_CUDA = f"{NO_NUMA}; +c: no CUDA device: libcuda is not installed (install the NVIDIA driver)"
MACHINE = Environment(
    env_id="3e35237a811c",
    code_id="38e7737d2451",
    facts={
        "cpu_model": "Intel(R) Xeon(R) Processor (family 6, model 173, stepping 1)",
        "cpus": [0, 1],
        "cores": 2,
        "numa_nodes": [[0, 1]],
        "memory_total_gib": 24,
        "gpus": [],
        "hypervisor": "KVM",
        "versions": {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
        "commit": "63846e47d090cdffaac0f3b6d798ac49e1e25513",
        "dirty": False,
    },
)


STARTED = "2026-01-01T00:00:00+00:00"


def header_of(run: str, ablation: str, parts: tuple[Part, ...], cells: tuple[Cell, ...], verb: str = "sweep") -> Header:
    """The plan of a run of an ablation, with the title of its first part."""
    return Header(
        run=run,
        title=parts[0].title,
        ablation=ablation,
        created=STARTED,
        command=("python", "-m", "ktbench", verb, f"+ablation={ablation}"),
        parts=parts,
        cells=cells,
        measure=MeasureSpec(),
        code_id=MACHINE.code_id,
        env_id=MACHINE.env_id,
    )


def written(folder: Path, header: Header, facts: Iterable[Any]) -> Run:
    """The run, written into a folder and read back."""
    log = Log(folder / header.run)
    log.append(header, *published_of(header.parts), MACHINE, *facts)
    log.close()
    return read_run(folder / header.run)


def blank(cell: Cell, number: int) -> Record:
    """A trial of a cell that crashed."""
    return Record(
        cell=cell.key,
        label=cell.label,
        round=number,
        outcome=Outcome.CRASHED,
        provenance="measured",
        code_id=MACHINE.code_id,
        env_id=MACHINE.env_id,
        worker_session="a1b2c3d4",
        started=STARTED,
    )


def seen(spec: RunSpec, count: int) -> tuple[Evidence, ...]:
    """Evidence of a spec whose features were each counted so often."""
    features = spec.engine.features
    return collect(features, {f.counter: count * int(features[f.name] != f.off) for f in FEATURES})


def system_of(label: str) -> dict[str, Any]:
    """The fields of a spec that say which system an arm runs."""
    implementation = next((word for word in label.split() if word in IMPLEMENTATIONS), "grouped_mm")
    return {"system": arm_peer(label) or "ktbench", "peer": PeerSpec(implementation=implementation)}  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """How an arm behaves: median `step_ms`, relative noise of its rounds; from `fails_at` on it ends as `outcome`.

    `roles` are the shares of a step in which the host was busy and the device waited. `call_ms` comes on top of every
    step; `lacking` says by precision why it is UNSUPPORTED there. `agreement` is the same in all rounds.
    """

    label: str
    step_ms: float = 100.0
    noise: float = 0.01
    outcome: Outcome = Outcome.OK
    why: str = ""
    fails_at: int = 0
    roles: tuple[float, float | None] | None = None
    notes: tuple[str, ...] = ()
    call_ms: float = 0.0
    lacking: dict[str, str] = field(default_factory=dict)
    agreement: Agreement | None = None


# Bits of a weight decide about the speed; what cannot be looked into has no such values work.
_BITS = {"bf16": 16.0, "int8": 8.0, "int4_g32": 4.5, "q8_0": 8.5, "q4_0": 4.5}
_OPAQUE: dict[str, Any] = {"error": None, "evidence": (), "work": None}
DECODE = (
    Arm(label="base", step_ms=182.0),
    Arm(label="+v", step_ms=61.0),
    Arm(label="+m", step_ms=70.5),
    Arm(label="+v+d", step_ms=60.2),
    Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why=NO_NUMA),
    Arm(label="+v+d+n+c", outcome=Outcome.UNSUPPORTED, why=NO_CUDA),
)


@dataclass(frozen=True, kw_only=True)
class Store:
    """What to write into a run folder: all arms at all prompts, batches, placements and precisions.

    Linear layers have the precision of the experts.
    """

    arms: tuple[Arm, ...] = DECODE
    rounds: int = 12
    phase: str = "decode"
    prompts: tuple[int, ...] = (64,)
    batches: tuple[int, ...] = (1,)
    placements: tuple[PlacementSpec, ...] = (PlacementSpec(),)
    precisions: tuple[Precision, ...] = ("bf16",)
    engine: dict[str, Any] = field(default_factory=dict)
    figure: FigureKind = "bars"
    steps: int = 4
    control: bool = True
    copies: int = 0
    seed: int = 0
    ping_pong_ns: tuple[float | None, ...] = (60.0,)
    measure: MeasureSpec = field(default_factory=MeasureSpec)
    title: str = "Decode breakdown"
    run: str = "decode-20260101-000000"
    drift: float = 0.05
    roofs: bool = True

    def cells(self) -> tuple[Cell, ...]:
        """Cells in the order of the plan."""
        points = product(self.precisions, self.prompts, self.batches, self.placements)
        return tuple(cell for point in points for cell in self._cells_at(*point))

    def _cells_at(self, precision: Precision, prompt: int, batch: int, placement: PlacementSpec) -> list[Cell]:
        cells = [self._cell(arm.label, precision, prompt, batch, placement) for arm in self.arms]
        if self.control:
            cells.append(replace(cells[0], label=f"{cells[0].label} (A/A)", role="control"))
        arms = cells[: len(self.arms)]
        for copy, cell in product(range(1, self.copies + 1), arms):
            cells.append(replace(cell, label=f"{cell.label} (A/A {copy + 1})", role="control", copy=copy))
        return cells

    def _cell(self, label: str, precision: Precision, prompt: int, batch: int, placement: PlacementSpec) -> Cell:
        spec = RunSpec(
            model=ModelSpec(name="qwen3_30b_a3b", config=CONFIG, full_layers=48, full_vocab=151936),
            workload=WorkloadSpec(phase=self.phase, prompt=prompt, steps=self.steps, batch=batch),  # type: ignore[arg-type]
            engine=EngineSpec(**arm_features(label), **self.engine, placement=placement),  # type: ignore[arg-type]
            measure=self.measure,
            precision=precision,
            device_precision=precision,
            **system_of(label),
        )
        return Cell(label=label, spec=spec, spec_id=spec_id(spec))

    def header(self) -> Header:
        """The plan of the run."""
        part = Part(name="", title=self.title, baseline=self.arms[0].label, figure=self.figure)
        return replace(header_of(self.run, "decode", (part,), self.cells()), measure=self.measure)

    def write(self, folder: Path) -> Run:
        """Write the run into a folder and read it back."""
        return written(folder, self.header(), self.records())

    def records(self) -> list[Record]:
        """Records of all rounds: common drift, own noise; nothing after a failed turn."""
        rng = Random(self.seed)
        arms = {arm.label: arm for arm in self.arms}
        found = []
        for cell in self.cells():
            arm = arms[cell.arm]
            for number in range(self.rounds):
                slower = 1 + self.drift * sin(number)
                step_s = self._step_s(arm, cell.spec) * slower
                round_s = step_s * exp(arm.noise * rng.gauss(0, 1))
                # Whole microseconds: the last digit of exp is not the same on every machine.
                samples = tuple(round(round_s * (1 + 0.002 * rng.random()), 6) for _ in range(self.steps))
                if not arm.outcome.timed and number >= arm.fails_at:
                    found.append(self._failed(cell, number, arm))
                    break
                if why := arm.lacking.get(cell.spec.precision):
                    lacking = replace(arm, outcome=Outcome.UNSUPPORTED, why=why)
                    found.append(self._failed(cell, number, lacking))
                    break
                found.append(self._timed(cell, number, samples, arm))
        return found

    def _step_s(self, arm: Arm, spec: RunSpec) -> float:
        """Longer with the context, shorter with experts at the device."""
        deeper = 1 + (spec.workload.prompt - 64) / 8192 if spec.workload.phase == "decode" else 1
        nearer = 1 - spec.engine.placement.ratio / 2
        tokens_ms = arm.step_ms * spec.workload.tokens_per_step * deeper * nearer * _BITS[spec.precision] / 16
        return (tokens_ms + arm.call_ms) / 1e3

    def _timed(self, cell: Cell, number: int, samples: tuple[float, ...], arm: Arm) -> Record:
        roof = RoofSample(
            read_bytes_per_s=28e9 + 1e8 * number,
            peak_flops=2.1e12,
            peak_isa="amx",
            ping_pong_ns=self.ping_pong_ns[number % len(self.ping_pong_ns)],
        )
        timed = replace(
            blank(cell, number),
            outcome=Outcome.OK,
            took_s=sum(samples) + 1,
            samples_s=samples,
            evidence=seen(cell.spec, 128 * len(samples)),
            error=0.0031,
            work=Work(weight_bytes=1_100_000_000, flops=900_000_000, tokens=cell.spec.workload.tokens_per_step),
            roofs=(roof, roof) if self.roofs else (),
            roles=_role_times(arm, sum(samples)),
            notes=arm.notes,
            agreement=arm.agreement,
        )
        return replace(timed, **_OPAQUE) if _is_black_box(cell.spec) else timed

    def _failed(self, cell: Cell, number: int, arm: Arm) -> Record:
        error = 0.127 if arm.outcome is Outcome.WRONG else None
        return replace(blank(cell, number), outcome=arm.outcome, why=arm.why, error=error)


def _is_black_box(spec: RunSpec) -> bool:
    return spec.system != "ktbench" and peer_of(spec.system).black_box


def _role_times(arm: Arm, total_s: float) -> RoleTimes | None:
    if arm.roles is None:
        return None
    host, wait = arm.roles
    waited_s = None if wait is None else wait * total_s
    return RoleTimes(host_busy_s=host * total_s, device_wait_s=waited_s, total_s=total_s)


def watched_run(folder: Path) -> Run:
    """A run whose trials were watched on a machine with bad settings: other programs, energy, memory, a slower roof."""
    run = Store(arms=DECODE[:2], rounds=6, drift=0.0, run="watched").write(folder)
    calm = InterferenceCounters(
        seconds=1.0, cpus=2, preemptions=3, minor_faults=0, major_faults=0, others_s=0.0, clock_hz=3e9
    )
    found = {
        "base": SystemMetrics(
            disturbance=replace(calm, others_s=0.2),
            memory=PeakMemory(process_bytes=8 << 30, of_turn=False),
            energy=Energy(joules={"package-0": 6.0, "dram-0": 2.0, "psys": 20.0}, seconds=0.5),
        ),
        "+v": SystemMetrics(
            disturbance=replace(calm, stolen_s=0.5),
            memory=PeakMemory(process_bytes=5 << 30, of_turn=True, node_bytes={"node 0": 4 << 30, "node 1": 1 << 30}),
            missing={"energy": "processors: no RAPL in /sys/class/powercap"},
        ),
    }
    records = [replace(one, system_metrics=found[one.label.removesuffix(" (A/A)")]) for one in run.records]
    slow = [replace(one, roofs=tuple(replace(r, read_bytes_per_s=19.7e9) for r in one.roofs)) for one in records]
    missing = {"missing": {"clock": "no cpufreq", "boost": "no cpufreq", "heat": "no counters"}}
    settings = ({"governor": "powersave", "thp": "never"}, {"governor": "powersave", "load": 9.0})
    sessions = tuple(replace(MACHINE, facts=MACHINE.facts | missing | one) for one in settings)
    every = tuple(late if one.round in (2, 5) else one for one, late in zip(records, slow, strict=True))
    return replace(run, environments=sessions, records=every)
