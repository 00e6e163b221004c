"""Whether a machine, this one or a described one, can run a cell, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ktbench.engine.checkpoint import require_tokenizer
from ktbench.engine.gguf.export import no_file
from ktbench.engine.loading.packed_folder import PackedPart, packed_parts, require_room, split_experts
from ktbench.engine.placement import place_experts
from ktbench.engine.roles import split_cpus
from ktbench.engine.training.adapter_folder import require_adapter
from ktbench.engine.training.examples import read_examples
from ktbench.engine.workload.arrays import require_arrays
from ktbench.engine.workload.recorded import read_profile, read_trace
from ktbench.engine.workload.stream import draw_stream, longest_request
from ktbench.host.capabilities import feature_reasons, machine_capabilities
from ktbench.host.cuda import read_cuda_devices
from ktbench.host.software import peer_reason
from ktbench.host.topology import read_topology
from ktbench.resources import install_command
from ktbench.sim import as_judged, not_simulated, rules_not_simulated
from ktbench.spec.cells import points_of
from ktbench.spec.engine import EngineSpec, all_features
from ktbench.spec.errors import RequestError, refusing
from ktbench.spec.limits import Reason
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.memory import MachineMemory, gpu_memory, gpu_workers, worker_bytes
from ktbench.spec.step.work import cache_bytes, device_bytes, linear_bytes, routed_bytes, trained_bytes
from ktbench.spec.support import features_missing, rules_broken
from ktbench.spec.weights import BY_ACCURACY, DEVICE_UNPACKS, Precision

_GIB = 2**30
_CUDA = "engine.device=cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a machine offers. `no_cuda` and `features_missing` (by feature name) hold reasons, empty for what it has.

    `nodes` counts NUMA nodes, `gpu_bytes` is the memory of the first GPU. `spec` is None for this machine, which is not
    simulated and has peers. With `starts`, the programs of peers are started to identify them.
    """

    cpus: Sequence[int]
    no_cuda: str
    features_missing: Mapping[str, str]
    nodes: int = 1
    gpu_bytes: int = 0
    spec: MachineSpec | None = None
    starts: bool = True

    @classmethod
    def local(cls, *, starts: bool = True) -> Machine:
        """What the machine of this process offers."""
        capabilities, cuda, topology = machine_capabilities(), read_cuda_devices(), read_topology()
        return cls(
            cpus=topology.core_cpus,
            nodes=len(topology.domains),
            no_cuda=capabilities["cuda"],
            features_missing=feature_reasons(capabilities),
            gpu_bytes=cuda.gpus[0].memory_bytes if cuda.gpus else 0,
            starts=starts,
        )

    @classmethod
    def described(cls, spec: MachineSpec) -> Machine:
        """A machine that is simulated."""
        return cls(
            cpus=range(spec.domains * spec.cores),
            no_cuda=f"{spec.name} has no GPU" if spec.gpu is None else "",
            features_missing=spec.feature_reasons,
            spec=spec,
        )


def best_engine(engine: EngineSpec, machine: MachineSpec | None, phase: str) -> EngineSpec:
    """An engine with every feature that a machine (None: this one) has and that acts in a phase of a workload."""
    target = Machine.local() if machine is None else Machine.described(machine)
    return all_features(engine, target.features_missing, phase=phase, device=engine.device)


def feasibility(spec: RunSpec, machine: Machine) -> Reason | None:
    """The first reason why `machine` cannot run `spec`; None if it can.

    The memory of this machine is not considered: it depends on what runs together (see `memory_missing`).
    """
    return next(_reasons(spec, machine), None)


def _reasons(spec: RunSpec, machine: Machine) -> Iterator[Reason]:
    if machine.spec is not None and spec.machine != machine.spec:
        spec = replace(spec, machine=machine.spec)  # rows of what is not simulated ask the spec alone
    if machine.spec is not None and spec.system != OURS:
        yield Reason(f"system={spec.system}", "is not simulated; published numbers are shown where there are any")
    if spec.engine.device == "cuda" and machine.no_cuda:
        yield Reason(_CUDA, machine.no_cuda)
    if spec.system != OURS:
        yield from rules_broken(spec)
        yield from _peer_reasons(spec, machine)
        if machine.spec is None and spec.engine.device == "cuda":
            yield from _gpu_memory_reasons(spec, machine)
        return
    if machine.spec is not None:
        yield from not_simulated(spec)
    yield from features_missing(spec, machine.features_missing)
    yield from rules_broken(spec if machine.spec is None else as_judged(spec))
    if spec.workload.phase == "train" and machine.spec is None and find_spec("peft") is None:
        yield Reason("workload.phase=train", f"needs PEFT: {install_command('train')}")
    yield from _core_reasons(spec, machine.cpus)
    if machine.spec is not None:
        yield from _memory_reasons(spec, machine.spec)
    elif spec.engine.device == "cuda":
        yield from _gpu_memory_reasons(spec, machine)


def _gpu_memory_reasons(spec: RunSpec, machine: Machine) -> Iterator[Reason]:
    """What a cell takes of the memory of this machine's GPU."""
    needs = gpu_memory([spec], machine.nodes)
    if needs.total > machine.gpu_bytes:
        place = "of engine.placement" if spec.engine.placement.ratio else "that pass through"
        experts = f", experts {place} {gib(needs.experts)}" if needs.experts else ""
        kept = f"a cache of {gib(needs.cache)}"
        if spec.workload.phase == "train":
            kept = f"what training adds, {gib(needs.trained)}"
        yield Reason(
            f"model={spec.model.name}",
            f"the GPU keeps weights of {gib(needs.weights)}{experts} and {kept}, "
            f"it has {gib(machine.gpu_bytes)}, of which CUDA takes up to {gib(needs.reserve)}",
        )


def _peer_reasons(spec: RunSpec, machine: Machine) -> Iterator[Reason]:
    """What a peer lacks here: instructions, a readable model file, or its installation."""
    missing = machine.features_missing["avx512"]
    if missing and spec.precision in peer_of(spec.system).avx512:
        yield Reason(f"system={spec.system} precision={spec.precision}", missing)
    if why := no_file(spec) or peer_reason(peer_of(spec.system), spec.peer, starts=machine.starts):
        yield Reason(f"system={spec.system}", why)


def _core_reasons(spec: RunSpec, cpus: Sequence[int]) -> Iterator[Reason]:
    try:
        split_cpus(cpus, spec.engine)
    except ValueError as error:
        where, _, why = str(error).partition(": ")
        yield Reason(where, why)


def _memory_reasons(spec: RunSpec, machine: MachineSpec) -> Iterator[Reason]:
    """Why weights, keys and values, and the memory that training adds do not fit.

    Activations of other phases are small compared with the memory of such machines.
    """
    host, memory = _at_host(spec), machine.domains * machine.memory_gib * _GIB
    added = " and what training adds" if spec.workload.phase == "train" else ""
    if host > memory:
        hint = ""
        if spec.engine.fused:
            hint = _lighter(spec, "precision", BY_ACCURACY, _at_host, memory)
            hint = hint or "; it fits in no precision, `advise` names models that do"
        yield Reason(
            f"model={spec.model.name}",
            f"weights{added} take {gib(host)}, {machine.name} has {gib(memory)} of memory{hint}",
        )
    on_gpus = (machine.gpus or 0) * (machine.gpu_memory_gib or 0) * _GIB
    if spec.engine.device == "cuda" and _at_gpus(spec) > on_gpus:
        cache, adds = cache_bytes(spec), trained_bytes(spec).network
        keys = f" and a cache of {gib(cache)}" if cache else ""
        if adds:
            keys = f"{added}, {gib(adds)}"
        hint = "" if adds else _lighter(spec, "device_precision", DEVICE_UNPACKS, _at_gpus, on_gpus)
        yield Reason(
            f"model={spec.model.name}",
            f"weights of the device role take {gib(_on_device(spec) + device_bytes(spec))} with "
            f"device_precision={spec.device_precision}{keys}, {machine.name} has {gib(on_gpus)} of GPU memory{hint}",
        )


def _at_host(spec: RunSpec) -> float:
    """Bytes of a cell in the host's memory on a described machine."""
    of_host = routed_bytes(spec) + trained_bytes(spec).experts
    return of_host - _on_device(spec) if spec.engine.device == "cuda" else of_host + _network(spec)


def _at_gpus(spec: RunSpec) -> float:
    return _on_device(spec) + _network(spec)


def _on_device(spec: RunSpec) -> float:
    return spec.engine.placement.ratio * routed_bytes(spec)


def _network(spec: RunSpec) -> float:
    return device_bytes(spec) + cache_bytes(spec) + trained_bytes(spec).network


def _lighter(
    spec: RunSpec, key: str, formats: Iterable[Precision], nbytes: Callable[[RunSpec], float], room: float
) -> str:
    """`; precision=int4_g32 takes 345 GiB`: the first of the formats that fits into the room; empty if none does."""
    needs = ((format_, nbytes(replace(spec, **{key: format_}))) for format_ in formats)  # type: ignore[arg-type]
    return next((f"; {key}={format_} takes {gib(need)}" for format_, need in needs if need <= room), "")


def unsupported_simulated(cells: Iterable[Cell]) -> dict[str, str]:
    """Why described machines cannot run the cells that are simulated on them, by cell key; other cells are skipped.

    Raises RequestError for a placement profile or a routing trace that cannot be read, and for injection rules that
    are not simulated on any machine.
    """
    simulated = [cell for cell in cells if cell.spec.machine is not None]
    with refusing():
        for cell in simulated:
            require_simulated_rules(cell.spec)
        for text in {cell.spec.workload.trace for cell in simulated} - {None}:
            require_arrays("workload.trace", str(text))
        for text in {cell.spec.engine.placement.profile for cell in simulated} - {None}:
            require_arrays("engine.placement.profile", str(text))
    return _unsupported(simulated, lambda spec: None if spec.machine is None else Machine.described(spec.machine))


def require_simulated_rules(spec: RunSpec) -> None:
    """Raises ValueError for injection rules that are not simulated on any machine."""
    if spec.system == OURS and (why := rules_not_simulated(spec)):
        raise ValueError(f"inject={spec.inject.name}: {why}")


def unsupported_locally(cells: Sequence[Cell], *, cuda_is_needed: bool, starts: bool = True) -> dict[str, str]:
    """Why this machine cannot run cells, by cell key; memory is not considered, for `starts` see `Machine`.

    Raises RequestError for a placement profile or a routing trace that cannot be read, and, if `cuda_is_needed`, for
    cells on CUDA without a CUDA device.
    """
    machine = Machine.local(starts=starts)
    on_cuda = any(cell.spec.engine.device == "cuda" for cell in cells)
    if cuda_is_needed and machine.no_cuda and on_cuda:
        raise RequestError(f"{Reason(_CUDA, machine.no_cuda)}; allowed here: cpu")
    reasons = _unsupported(cells, lambda spec: machine)
    reasons |= _gpu_missing([cell for cell in cells if cell.key not in reasons], machine)
    with refusing():
        for cell in cells:
            _require_files(cell.spec)
            if cell.key not in reasons:
                _require_inputs(cell.spec)
        _require_packed([cell.spec for cell in cells if cell.key not in reasons and cell.spec.maps_packed])
    return reasons


def _gpu_missing(cells: Sequence[Cell], machine: Machine) -> dict[str, str]:
    """Why cells that are compared, so that their workers exist at the same time, do not fit on the GPU together."""
    reasons: dict[str, str] = {}
    for point in points_of(cells):
        needed = sum(needs.total for _, needs in gpu_workers(point, machine.nodes))
        if needed > machine.gpu_bytes:
            why = f"cells that are compared need {gib(needed)} of GPU memory, there are {gib(machine.gpu_bytes)}"
            reasons |= {cell.key: f"{_CUDA}: {why}" for cell in point if cell.spec.engine.device == "cuda"}
    return reasons


def _unsupported(cells: Iterable[Cell], machine_of: Callable[[RunSpec], Machine | None]) -> dict[str, str]:
    pairs = ((cell, machine_of(cell.spec)) for cell in cells)
    reasons = ((cell.key, feasibility(cell.spec, machine)) for cell, machine in pairs if machine is not None)
    return {key: str(reason) for key, reason in reasons if reason is not None}


def memory_missing(cells: Sequence[Cell], memory: MachineMemory) -> dict[str, str]:
    """Why cells do not fit in memory together with the cells that they are compared with, by cell key."""
    sizes = worker_bytes(cells, memory)
    reasons: dict[str, str] = {}
    for point in points_of(cells):
        needed = sum(sizes[key] for key in {cell.weights_key for cell in point})
        if needed > memory.free_bytes:
            why = f"needs {gib(needed)}, {gib(memory.free_bytes)} are free"
            reasons |= dict.fromkeys((cell.key for cell in point), why)
    return reasons


def gib(nbytes: float) -> str:
    """`1,345 GiB`, `22.4 GiB`."""
    return f"{nbytes / _GIB:,.{0 if nbytes >= 100 * _GIB else 1}f} GiB"


def _require_inputs(spec: RunSpec) -> None:
    """Raises ValueError for a trace that cannot be replayed, and for examples that cannot be read."""
    work, shape = spec.workload, spec.model.shape
    if work.trace is not None:
        read_trace(work.trace, shape.experts, shape.top_k, work.seed)
    if work.examples is not None and spec.model.path is not None:
        require_tokenizer("workload.examples", spec.model.path, shape.vocab)
        read_examples(work.examples)
    if work.stream is not None:
        _require_positions(spec, longest_request(draw_stream(work, shape.vocab)))


def _require_positions(spec: RunSpec, longest: int) -> None:
    """Raises ValueError if a request has more tokens than the model supports."""
    most = spec.model.shape.positions
    if longest > most:
        raise ValueError(
            f"workload.stream: a request has {longest:,} tokens with its answer, {spec.model.name} was made for "
            f"{most:,}; set workload.stream.longest_prompt"
        )


def _require_packed(specs: Iterable[RunSpec]) -> None:
    """Raises ValueError if `model.packed` holds other packed weights, and if they cannot be saved there."""
    parts: dict[Path, tuple[PackedPart, int]] = {}
    for spec in specs:
        if spec.engine.fused and spec.engine.domains:
            raise ValueError(split_experts(str(spec.model.packed)))
        for part, nbytes in _parts_of(spec):
            parts[part.folder] = part, nbytes
    missing = [nbytes for part, nbytes in parts.values() if not part.is_whole()]
    for part, _ in parts.values():
        require_room(part.packed, sum(missing))


def _parts_of(spec: RunSpec) -> list[tuple[PackedPart, int]]:
    """The parts that a cell saves packed, with their bytes."""
    engine, model = spec.engine, spec.model
    sizes = {"experts": routed_bytes(spec), "linear": linear_bytes(spec)}
    experts, linear = (
        (spec.precision if engine.fused else None),
        (spec.device_precision if engine.packed_dense else None),
    )
    parts = packed_parts(model, experts=experts, linear=linear, rules=spec.inject)
    return [(part, sizes[part.kind]) for part in parts]


def _require_files(spec: RunSpec) -> None:
    """Raises ValueError for an unreadable activation profile or one of another model, for a folder that is not an
    adapter's, and if PEFT is missing.
    """
    placement, model = spec.engine.placement, spec.model
    profile = None if placement.profile is None else read_profile(placement.profile, model)
    place_experts(placement, model.shape, profile)
    if model.adapter is not None and spec.machine is None:
        require_adapter(model.adapter)
