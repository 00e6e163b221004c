"""Activation profiles: the cell to run, a process of its own that records it, and what it found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from ktbench.results.find import RUNS
from ktbench.run.child import run_subprocess
from ktbench.run.request import new_file, one_cell_request, plan_request, take_word
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from ktbench.engine.workload.recorded import ActivationProfile, Recordable

RECORD: tuple[str, ...] = (sys.executable, "-m", "ktbench.run.record")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What a child is to record, and the file that it writes."""

    spec: RunSpec
    output: str


def read_recording(overrides: Sequence[str]) -> tuple[Recording, str]:
    """What a command line asks to be recorded, and why this machine cannot, empty where it can. Raises RequestError."""
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
    file = new_file("record", output or _default_output(cell.spec.model.name))
    return Recording(spec=cell.spec, output=str(file)), planned.unsupported.get(cell.key, "")


def _default_output(model: str) -> Path:
    return RUNS / f"profile-{Path(model).name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.npz"


def summary(profile: ActivationProfile) -> Iterator[str]:
    """What was run, then of each MoE layer how unevenly its experts were selected."""
    layers, experts = profile.counts.shape
    yield profile.source
    yield f"{profile.tokens} tokens, {layers} MoE layers of {experts} experts, {profile.architecture.top_k} a token"
    yield ""
    yield "MoE layer  hottest 10 % of experts  evenness"
    rows = zip(profile.hottest_share().tolist(), profile.evenness().tolist(), strict=True)
    for layer, (share, evenness) in enumerate(rows):
        yield f"{layer:>9}  {f'{share:.1%}':>23}  {evenness:>8.3f}"


def record_in_subprocess(asked: Recording, say: Callable[[str], None]) -> None:
    """Have a child write the profile; `say` gets its lines of progress. Raises ChildFailed."""
    run_subprocess(RECORD, asked, say)


def main() -> int:
    """Entry of the child: what to record on standard input, progress on standard output."""
    from ktbench.engine.workload.recorded import record_profile
    from ktbench.host.topology import read_topology
    from ktbench.run.serve import die_with_parent

    die_with_parent()
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Recording)
    os.sched_setaffinity(0, read_topology().core_cpus)  # before PyTorch counts the cores
    record_profile(_open_engine, asked.spec).save(Path(asked.output))
    return 0


def _open_engine(spec: RunSpec) -> Recordable:
    from ktbench.host.topology import read_topology
    from ktbench.run.serve import open_system, pin_device_role

    print(f"loading {spec.summary}", flush=True)
    topology = read_topology()
    cpus, nodes = topology.core_cpus, [node.id for node in topology.domains]
    pin_device_role(cpus, [spec])
    system = open_system([spec], cpus, topology.last_level_cache_bytes or 0, nodes)
    print(f"running workload.steps={spec.workload.steps}", flush=True)
    return cast("Recordable", system)  # of the systems only the hybrid engine has routers


if __name__ == "__main__":
    sys.exit(main())
