"""Runs engines on the asynchronous device and on CPU cores: `python -m tests.engine.cuda.async_engine`.

A process of its own, for the device is one for all of PyTorch. Reads lines of `MODEL:CASE` and answers each with one of
JSON: the largest relative error of the logits, notes, and how often Python waited and dispatched in each timed step.
`MODEL:CASE:fork` and `:join` leave out that order of the streams, of which the one to wait for does nothing before
that. With `:late` the stream that brings experts does nothing before it is asked for them, with `:done` nobody asks it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from typing import Any

import torch
from torch import Tensor

from ktbench.engine import load as loading
from ktbench.engine.cuda import streamed
from ktbench.engine.cuda.role import CudaRole
from ktbench.engine.cuda.stream import Streams
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.protocol import HostRole
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import ModelSpec, WorkloadSpec
from ktbench.spec.weights import Precision
from tests.engine.cuda.async_device import AsyncDevice, FactoryMode
from tests.engine.cuda.fakes import no_pins
from tests.engine.engines import FUSED, LEAN
from tests.engine.tiny import decode, prefill, run, spec, tiny_model

HALF = PlacementSpec(policy="uniform", ratio=0.5)
MOVING = PlacementSpec(policy="dynamic", ratio=0.5, every=1)
DECODE = decode(batch=2, steps=3, routing="balanced", shortest=5)


@dataclass(frozen=True)
class Case:
    """What is run on the device, and which features the same on CPU cores has."""

    workload: WorkloadSpec
    features: dict[str, Any] = field(default_factory=dict)
    same: dict[str, Any] = field(default_factory=dict)
    precision: Precision = "bf16"
    inject: InjectSpec = field(default_factory=InjectSpec)


PREFILL = prefill(batch=2, steps=2, routing="balanced", shortest=5)
# Two whole chunks and what is left, and three whole ones.
CHUNKS, WHOLE = (
    prefill(batch=2, steps=2, routing="balanced", shortest=5, prompt=prompt, chunk=5) for prompt in (13, 15)
)
LATE: dict[str, Any] = {"deferral": 1, "defer_prefill": True}
FLAGS: dict[str, Any] = {"handover": "flags"}
WAITED_FOR = {"fork": "main", "join": "side", "done": "transfers", "late": "transfers"}
CASES = {
    "base": Case(DECODE),
    "steps": Case(DECODE, FUSED, FUSED),
    "graph": Case(DECODE, FUSED | {"cuda_graph": True}, FUSED),
    "deferral": Case(DECODE, FUSED | {"deferral": 1}, FUSED | {"deferral": 1}),
    "graph_deferral": Case(DECODE, FUSED | {"cuda_graph": True, "deferral": 1}, FUSED | {"deferral": 1}),
    "skipping": Case(DECODE, FUSED | {"cuda_graph": True, "skipping": 1}, FUSED | {"skipping": 1}),
    "placement": Case(DECODE, FUSED | {"cuda_graph": True, "deferral": 1, "placement": HALF}, FUSED | {"deferral": 1}),
    "moving": Case(DECODE, FUSED | {"cuda_graph": True, "placement": MOVING}, FUSED),
    "prefill": Case(PREFILL, FUSED, FUSED),
    "streamed": Case(PREFILL, FUSED | {"device_prefill_tokens": 1}, FUSED),
    "flags": Case(DECODE, FUSED | FLAGS, FUSED),
    "flags_deferral": Case(DECODE, FUSED | FLAGS | {"deferral": 1}, FUSED | {"deferral": 1}),
    "flags_graph": Case(DECODE, FUSED | FLAGS | {"cuda_graph": True}, FUSED),
    "flags_graph_deferral": Case(
        DECODE, FUSED | FLAGS | {"cuda_graph": True, "deferral": 2, "placement": HALF}, FUSED | {"deferral": 2}
    ),
    "flags_prefill": Case(PREFILL, FUSED | FLAGS | LATE, FUSED | LATE),
    "chunks": Case(CHUNKS, FUSED, FUSED),
    "graph_chunks": Case(CHUNKS, FUSED | {"cuda_graph": True}, FUSED),
    "graph_chunks_deferral": Case(WHOLE, FUSED | LATE | {"cuda_graph": True}, FUSED | LATE),
    "graph_chunks_placement": Case(WHOLE, FUSED | {"cuda_graph": True, "placement": HALF}, FUSED),
    "flags_graph_chunks": Case(WHOLE, FUSED | FLAGS | {"cuda_graph": True}, FUSED),
    "streamed_deferral": Case(PREFILL, FUSED | LATE | {"device_prefill_tokens": 1}, FUSED | LATE),
}

# Packed experts that live with the device: fewer pairs than experts, and more of them; experts come in the second turn.
FEW, MANY = (decode(batch=batch, steps=4, routing="zipf") for batch in (1, 5))
COMING = PlacementSpec(policy="dynamic", ratio=0.5, every=FEW.steps + 1)
GRAPH = FUSED | {"cuda_graph": True}
PRECISIONS: tuple[Precision, ...] = ("bf16", "int8", "int4_g32", "fp8")
CASES |= {
    f"{name}_{precision}": Case(workload, GRAPH | {"placement": placement}, FUSED, precision)
    for precision in PRECISIONS
    for name, workload, placement in (("few", FEW, HALF), ("many", MANY, HALF), ("moving", MANY, COMING))
}
CASES |= {
    # The device does not unpack these: the host does, in the step.
    "moving_unpacked": Case(MANY, GRAPH | {"placement": COMING}, FUSED, "q8_0"),
    # Norms and latent attention of the device.
    "rules": Case(DECODE, GRAPH, FUSED, inject=LEAN),
}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """`waits` and `operations` of every step of the second turn."""

    model: str
    case: str
    error: float
    notes: tuple[str, ...]
    waits: tuple[int, ...]
    operations: tuple[int, ...]
    counters: dict[str, int]


def engine(model: ModelSpec, case: Case, features: dict[str, Any]) -> HybridEngine:
    plain = spec(model, case.workload, threads=None, **features)
    requested = replace(plain, precision=case.precision, inject=case.inject)
    cpus = tuple(sorted(os.sched_getaffinity(0)))[: 2 if "device" in features else 1]
    host = HostRole(cores=len(cpus), cpus=cpus)
    system = loading.load_engine(model, WeightPlan.of([requested], host), host)
    system.configure(requested)
    return system


def on_device(model: ModelSpec, case: Case, missing: str) -> tuple[list[Tensor], HybridEngine, list[tuple[int, int]]]:
    """Logits of all steps of two turns, the engine, and what each step of the second waited and dispatched."""
    device = AsyncDevice(slow=WAITED_FOR.get(missing, ""))
    if missing in ("fork", "join"):
        setattr(device.side, missing, lambda: None)
    if missing == "done":
        device.transfers.done = lambda: True  # type: ignore[method-assign]

    def opened(recorder: CallRecorder) -> CudaRole:
        device.__enter__()
        streams = Streams(current=device, side=device.side, transfers=device.transfers)  # type: ignore[arg-type]
        return CudaRole(recorder, device.device, streams, device, no_pins())  # type: ignore[arg-type]

    loading.open_cuda = opened
    streamed.STREAMED_CHUNK_BYTES = 1  # an expert at a time, so that both buffers are filled again and again
    try:
        system = engine(model, case, case.features | {"device": "cuda"})
        logits = run(system, case.workload.steps)
        system.start()
        counts = []
        for _ in range(case.workload.steps):
            before = device.waits, device.operations
            system.step()
            counts.append((device.waits - before[0], device.operations - before[1]))
            logits.append(torch.from_numpy(system.logits().copy()))
        return logits, system, counts
    finally:
        device.__exit__(None, None, None)


_EXPECTED: dict[str, list[Tensor]] = {}


def on_cores(model: ModelSpec, case: Case) -> list[Tensor]:
    """Logits of all steps of two turns, which cases have in common."""
    key = repr((model.name, case.workload, case.same, case.precision, case.inject))
    if key not in _EXPECTED:
        _EXPECTED[key] = 2 * run(engine(model, case, case.same), case.workload.steps)
    return _EXPECTED[key]


def seen(name: str, kind: str, missing: str = "") -> Seen:
    model, case = tiny_model(name), CASES[kind]
    expected = on_cores(model, case)
    try:
        logits, system, counts = on_device(model, case, missing)
    except IndexError as error:  # the host reads ids that were never written
        if not missing or "expert id" not in str(error):
            raise
        return Seen(model=name, case=kind, error=float("inf"), notes=(), waits=(), operations=(), counters={})
    with AsyncDevice.now:  # type: ignore[union-attr]
        counters = {key: int(value) for key, value in system.counters().items()}
        notes = system.notes()
    errors = [float((one - truth).norm() / truth.norm()) for one, truth in zip(logits, expected, strict=True)]
    return Seen(
        model=name,
        case=kind,
        error=float("inf") if any(map(isnan, errors)) else max(errors),
        notes=notes,
        waits=tuple(waits for waits, _ in counts),
        operations=tuple(operations for _, operations in counts),
        counters=counters,
    )


def main() -> None:
    torch.set_num_threads(1)  # threads that wait for each other crawl on a busy machine
    with FactoryMode():
        for request in map(str.strip, sys.stdin):
            print(json.dumps(asdict(seen(*request.split(":")))), flush=True)
    os._exit(0)  # the device's threads never end


if __name__ == "__main__":
    main()
