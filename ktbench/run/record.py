"""Activation profiles: the cell to run, a subprocess that records it, and a summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from ktbench.engine.loading.progress import LoadProgress
from ktbench.results.find import RUNS
from ktbench.run.child import child_exit_code
from ktbench.run.progress import LoadingLine
from ktbench.run.request import new_file, one_cell_request, plan_request, take_word
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from ktbench.engine.hybrid import HybridEngine
    from ktbench.engine.workload.recorded import ActivationProfile

RECORD: tuple[str, ...] = (sys.executable, "-m", "ktbench.run.record")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordRequest:
    """The cell whose routing a child records, and the file that it writes."""

    spec: RunSpec
    output: str


def read_recording(overrides: Sequence[str]) -> tuple[RecordRequest, str]:
    """The request of a command line, and why this machine cannot run it, empty if it can. Raises RequestError."""
    words, output = take_word("record", overrides, "output", "one new file, such as output=profile.npz")
    request = one_cell_request("record", words)
    spec = request.parts[0].spec
    if spec.machine is not None:
        raise RequestError(f"record machine={spec.machine.name}: records on this machine, leave out machine=")
    if spec.workload.phase == "layer":
        raise RequestError("record workload.phase=layer: a layer alone has no router; allowed are prefill and decode")
    if spec.workload.routing != "model":
        routing = spec.workload.routing
        raise RequestError(f"record workload.routing={routing}: runs the model's routers, set workload.routing=model")
    planned = plan_request(request)
    (cell,) = planned.cells
    name = f"profile-{Path(cell.spec.model.name).name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.npz"
    file = new_file("record", output or RUNS / name)
    return RecordRequest(spec=cell.spec, output=str(file)), planned.unsupported.get(cell.key, "")


def summary(profile: ActivationProfile) -> Iterator[str]:
    """What was run, and how unevenly the experts of each MoE layer were selected."""
    layers, experts = profile.counts.shape
    yield profile.source
    yield f"{profile.tokens} tokens, {layers} MoE layers of {experts} experts, {profile.architecture.top_k} a token"
    yield ""
    yield "MoE layer  hottest 10 % of experts  evenness"
    rows = zip(profile.hottest_share().tolist(), profile.evenness().tolist(), strict=True)
    for layer, (share, evenness) in enumerate(rows):
        yield f"{layer:>9}  {f'{share:.1%}':>23}  {evenness:>8.3f}"


def main() -> int:
    """Entry of the child: the request on standard input, progress on standard output."""
    return child_exit_code(_record)


def record_profile(open_engine: Callable[[RunSpec], HybridEngine], spec: RunSpec) -> ActivationProfile:
    """The profile of one cell with routing=model; what the routers chose for padding counts too.

    Raises Unsupported where the engine cannot run the cell.
    """
    import numpy as np

    from ktbench.engine.workload.recorded import ActivationProfile, Architecture, count_selections

    engine = open_engine(spec)
    engine.configure(spec)
    steps = [[layer.ids.cpu().numpy() for layer in step] for step in engine.recorded_routing()]
    experts = spec.model.shape.experts
    counts = [sum(count_selections(ids, experts) for ids in layer) for layer in zip(*steps, strict=True)]
    work = spec.workload
    return ActivationProfile(
        model=spec.model.name,
        architecture=Architecture.of(spec.model),
        counts=np.stack(counts),
        tokens=sum(int((step[0] >= 0).any(axis=1).sum()) for step in steps),
        source=f"{spec.summary}; workload.steps={work.steps}, workload.seed={work.seed}, model.seed={spec.model.seed}",
    )


def _record() -> None:
    from ktbench.host.topology import read_topology

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=RecordRequest)
    os.sched_setaffinity(0, read_topology().core_cpus)  # before PyTorch counts the cores
    record_profile(_open_engine, request.spec).save(Path(request.output))


def _open_engine(spec: RunSpec) -> HybridEngine:
    from ktbench.host.topology import read_topology
    from ktbench.run.worker_process import host_role, open_system, prepare_host

    print(f"loading {spec.summary}", flush=True)
    host = host_role(read_topology())
    prepare_host(host.cpus, [spec])
    system = open_system([spec], host, LoadProgress(LoadingLine(sys.stdout).show))
    print(f"running workload.steps={spec.workload.steps}", flush=True)
    return cast("HybridEngine", system)  # only the hybrid engine has routers


if __name__ == "__main__":
    sys.exit(main())
