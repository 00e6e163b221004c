"""The worker's side: load once, then run trials until the parent closes the pipe."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, cast

import msgspec

from ktbench.engine.loading.progress import SILENT, LoadProgress
from ktbench.engine.protocol import HostRole, System, Unsupported
from ktbench.engine.roles import reach, split_cpus
from ktbench.engine.weight_plan import WeightPlan
from ktbench.host.code import code_id, load_extension
from ktbench.host.crossovers import use_crossovers
from ktbench.host.cuda import read_cuda_devices
from ktbench.host.energy import open_meters
from ktbench.host.memory import read_memory
from ktbench.host.pauses import count_pauses
from ktbench.host.roofs import Roofs, bind_openmp, open_pool_roofs, open_roofs
from ktbench.host.topology import Topology, read_topology
from ktbench.host.watch import MachineWatch
from ktbench.run.messages import OpenSession, Response, TrialRequest, WorkerRequest, send
from ktbench.run.serving.system import StreamSystem
from ktbench.run.session import Session, WorkerSpoilt
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.run_spec import RunSpec


def host_role(topology: Topology) -> HostRole:
    """The host role on all cores of a machine: one cpu per core, NUMA nodes, last-level cache, and memory."""
    cpus, nodes = topology.core_cpus, tuple(node.id for node in topology.domains)
    return HostRole(
        cores=len(cpus),
        cpus=cpus,
        nodes=nodes,
        cache_bytes=topology.last_level_cache_bytes or 0,
        memory_bytes=read_memory().total_bytes,
    )


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> System:
    """Opens the peer of cells that share weights and loads them, by `open_peer(specs, host)` of its module.

    Raises Unsupported for a phase that the peer does not run, and whatever its own function raises.
    """
    peer, phase = peer_of(specs[0].system), specs[0].workload.phase
    if phase not in peer.phases:
        raise Unsupported(f"{peer.name} runs {' and '.join(peer.phases)}, not workload.phase={phase}")
    return cast("System", import_module(peer.opener).open_peer(specs, host))


def open_system(specs: Sequence[RunSpec], host: HostRole, progress: LoadProgress = SILENT) -> System:
    """The system for cells that share weights: loads once, in every layout that a cell needs.

    `progress` receives the loading progress of ktbench's own whole networks.
    """
    if specs[0].system != OURS:
        return _open_serving_peer(specs, host) if specs[0].workload.phase == "serve" else open_peer(specs, host)
    if specs[0].workload.phase == "serve":
        return _open_serving(specs, host, progress)
    if specs[0].workload.phase == "train":
        from ktbench.engine.training.load import load_training

        return load_training(specs[0], host, progress)
    plan = WeightPlan.of(specs, host)
    if specs[0].workload.phase == "layer":
        from ktbench.engine.load_layer import load_layer

        return load_layer(specs[0].model, host=host, keep_original=plan.original, packing=plan.packing)
    from ktbench.engine.load import load_engine

    return load_engine(specs[0].model, plan, host, progress)


def _open_serving_peer(specs: Sequence[RunSpec], host: HostRole) -> System:
    """The peer, opened for all cells that differ only in their streams; the first cell's is opened outside any
    trial."""
    peer = peer_of(specs[0].system)
    if not peer.serves:
        raise Unsupported(f"{peer.name} runs {' and '.join(peer.phases)}, not workload.phase=serve")
    module = import_module(peer.serves)
    system = StreamSystem(
        lambda spec: module.open_serving([candidate for candidate in specs if candidate.engine == spec.engine], host)
    )
    system.configure(specs[0])
    return system


def _open_serving(specs: Sequence[RunSpec], host: HostRole, progress: LoadProgress) -> System:
    """Engines with the features and limits of one cell at a time, on weights that are loaded once."""
    from ktbench.engine.load import load_components
    from ktbench.engine.serving.engine import BatchEngine, require_servable

    for spec in specs:
        require_servable(spec)
    components = load_components(specs[0].model, WeightPlan.of(specs, host), host, progress)
    return StreamSystem(lambda spec: BatchEngine(spec, components, host.memory_bytes))


_PR_SET_PDEATHSIG = 1
# Added to the time that a peer's threads spin, until they sleep.
_REST_S = 0.01


def serve(open_session: Callable[[OpenSession], Session], requests: IO[bytes], responses: IO[bytes]) -> int:
    """Serve one parent: returns when its end of the pipe closes."""
    die_with_parent()
    count_pauses()
    opened = msgspec.json.decode(requests.readline(), type=OpenSession)
    try:
        session = open_session(opened)
        send(responses, Response())
        for line in requests:
            send(responses, _response(session, msgspec.json.decode(line, type=WorkerRequest)))
    except WorkerSpoilt as error:
        sys.exit(str(error))
    except Unsupported as error:
        send(responses, Response(unsupported=str(error)))
        return 1
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        send(responses, Response(no_memory=str(error).splitlines()[0] if str(error) else "out of memory"))
        return 1
    return 0


def _response(session: Session, request: WorkerRequest) -> Response:
    if isinstance(request, TrialRequest):
        logits = None if request.logits is None else Path(request.logits)
        return Response(record=session.trial(request.cell, request.round, logits))
    try:
        return Response(timeline=session.timeline(request.cell))
    except Unsupported as error:
        return Response(unsupported=str(error))


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch reports a failed allocation as RuntimeError, our kernels as MemoryError."""
    text = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends in any way (Linux, prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit("the parent ended before the worker started")


def main() -> int:
    """Entry of `python -m ktbench.run.worker_process RESPONSES_FD`: requests on standard input."""
    # One thread for each physical core: PyTorch's OpenMP counts those of this process when it is imported.
    topology = read_topology()
    os.sched_setaffinity(0, topology.core_cpus)
    with os.fdopen(int(sys.argv[1]), "wb") as responses:
        progress = LoadProgress(lambda loading: send(responses, Response(loading=loading)))
        return serve(lambda opened: _load_session(opened, topology, progress), sys.stdin.buffer, responses)


def require_code(expected: str) -> None:
    """End this process, with the reason as its last line, if the code is no longer that of the run.

    Its records would name the wrong code. A peer's Python may be unable to load our kernels, so it is not checked.
    """
    extension = load_extension()
    if extension.module is not None and code_id(extension) != expected:
        sys.exit("the code of ktbench was changed after the run began: resume it, resume_changed=true mixes both")


def _load_session(opened: OpenSession, topology: Topology, progress: LoadProgress) -> Session:
    require_code(opened.ids.code_id)
    specs, host = [cell.spec for cell in opened.cells], host_role(topology)
    if not _brings_threads(specs):
        prepare_host(host.cpus, specs)
    system = open_system(specs, host, progress)
    return Session(system=system, roofs=_roofs(specs, topology), watch=_watch(specs, topology), ids=opened.ids)


def _brings_threads(specs: Sequence[RunSpec]) -> bool:
    """Whether the peer starts threads: they inherit this process's affinity, which is therefore not pinned."""
    return specs[0].system != OURS and peer_of(specs[0].system).own_threads


def prepare_host(cpus: Sequence[int], specs: Sequence[RunSpec]) -> None:
    """Set the kernels' fastest loops for `cpus`, and bind PyTorch's threads to the cpus of the device role.

    Imports PyTorch. Crossovers are measured first if necessary. Unbound, two threads often wake on one core. Raises
    ValueError if there are too few cores, and RuntimeError like `bind_openmp`.
    """
    kernels = load_extension().module
    fused = [spec for spec in specs if spec.system == OURS and spec.engine.fused]
    precisions = [precision for spec in fused for precision in (spec.precision, *spec.inject.precisions_of("experts"))]
    if kernels is not None:
        use_crossovers(kernels, precisions, cpus)
    device = max((split_cpus(cpus, spec.engine).device for spec in specs), key=len)
    bind_openmp(device)
    import torch

    torch.set_num_threads(len(device))


def _roofs(specs: Sequence[RunSpec], topology: Topology) -> Roofs:
    """Roofs of the cell with most threads: on PyTorch's threads, or, if there are others, on a pool that sleeps
    between."""
    cpus = max((topology.core_cpus[: spec.engine.threads] for spec in specs), key=len)
    if not specs[0].engine.roles_concurrent and not _brings_threads(specs):
        return open_roofs(cpus)
    # The threads of a peer sleep after a while, ours at once.
    rest_s = peer_of(specs[0].system).spin_s + _REST_S if _brings_threads(specs) else 0.0
    with reach(cpus):
        return open_pool_roofs(cpus, rest_s=rest_s)


def _watch(specs: Sequence[RunSpec], topology: Topology) -> MachineWatch | None:
    """Watches all cpus, including siblings, and GPUs if cells use them; None for peers in another program."""
    if specs[0].system != OURS and peer_of(specs[0].system).apart:
        return None
    on_cuda = any(spec.engine.device == "cuda" for spec in specs)
    return MachineWatch(topology.cpus, open_meters(read_cuda_devices() if on_cuda else None))


if __name__ == "__main__":
    sys.exit(main())
