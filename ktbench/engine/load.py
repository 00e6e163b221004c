"""Builds the engine: a slice or a checkpoint, with operators in the place of the modules that rules name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from ktbench.engine.backend import ExpertsBackend, MoERuntimeState
from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.decode.timeline import layer_of
from ktbench.engine.experts import ExpertsOperator, OriginalExperts, SharedExpert
from ktbench.engine.forms import LinearBlocks, PackableStore, expert_positions, read_form
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.inject.match import Replacement, expert_precisions, match_rules
from ktbench.engine.loading.network import FilledNetwork, open_source
from ktbench.engine.loading.packed_folder import (
    PackedFiles,
    PackedFolder,
    PackedPart,
    open_packed,
    packed_parts,
    split_experts,
)
from ktbench.engine.loading.progress import SILENT, LayerProgress, LoadProgress
from ktbench.engine.loading.source import WeightFilling
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.roles import new_threads_on, split_cpus
from ktbench.engine.weight_plan import WeightPlan
from ktbench.engine.work import dense_params
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import Precision, expert_bytes

if TYPE_CHECKING:
    from ktbench.engine.cuda.role import CudaRole
    from ktbench.engine.decode.attention import StepAttention
    from ktbench.engine.dense import DenseOperators
    from ktbench.engine.fused import FusedHost

# Linear layers of a block that get the same input, in the order in which their weights lie.
_SIBLINGS: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def load_engine(model: ModelSpec, plan: WeightPlan, host: HostRole, progress: LoadProgress = SILENT) -> HybridEngine:
    """The engine holding what `plan` lists, on the cores of `host`; see `load_components`."""
    return HybridEngine(model, load_components(model, plan, host, progress))


def load_components(
    model: ModelSpec, plan: WeightPlan, host: HostRole, progress: LoadProgress = SILENT
) -> EngineComponents:
    """What an engine is made of, holding what `plan` lists, on the cores of `host`.

    Where only packed experts stay, they are packed one by one; with `model.packed` they are saved there, or mapped.
    Raises ValueError for a checkpoint that is not whole and for rules that do not fit, and as `open_packed`.
    """
    with open_packed(_parts_kept(model, plan)) as files:
        return _components(model, plan, host, files, progress)


def _parts_kept(model: ModelSpec, plan: WeightPlan) -> tuple[PackedPart, ...]:
    if model.packed is None:
        return ()
    experts = None if plan.packing is None else plan.packing.precision
    if plan.packing is not None and plan.packing.domains > 1:
        raise Unsupported(split_experts(model.packed))
    return packed_parts(model, experts=experts, linear=plan.dense, rules=plan.inject)


def _components(
    model: ModelSpec, plan: WeightPlan, host: HostRole, files: PackedFolder, progress: LoadProgress
) -> EngineComponents:
    filling = WeightFilling(unread=_unread(plan, files), progress=progress)
    filled = FilledNetwork(open_source(model), plan, filling)
    network = filled.network.requires_grad_(False)
    cpus, state, params = host.usable_cpus, MoERuntimeState(), dense_params(network)
    roles = split_cpus(cpus, plan.engine)
    precisions = expert_precisions(network, plan.inject)
    experts = None
    if plan.packing is not None:
        experts = open_host(roles.host, plan, state.recorder, files.get("experts"))
    device, attention = inject(network, plan, len(roles.device), state, filled.linear_blocks, files.get("linear"))
    cuda = None
    if plan.engine.device == "cuda":
        with new_threads_on(roles.callbacks):
            cuda = open_cuda(state.recorder)
    own = [precisions.get(name) for name, _ in expert_positions(network)]
    layers = LayerProgress(progress, _stage(plan, files), _layer_bytes(model, plan, own), model.shape.experts)
    backends = _Backends(keeps_original=plan.original, host=experts, cuda=cuda)
    operators = _place_operators(filled, backends, state, layers, precisions)
    if cuda is not None:
        network.to(cuda.device)  # type: ignore[arg-type]
    return EngineComponents(
        network=network,
        operators=operators,
        state=state,
        host=experts,
        device=device,
        attention=attention if cuda is None else cuda.attention,
        cuda=cuda,
        cpus=cpus,
        dense_params=params,
        top_k=model.shape.top_k,
    )


def _stage(plan: WeightPlan, files: PackedFolder) -> str:
    """What is done with the routed experts."""
    if plan.packing is None:
        return "reading"
    return "mapping" if "experts" in files and files["experts"].is_whole else "packing"


def _layer_bytes(model: ModelSpec, plan: WeightPlan, own: Sequence[Precision | None]) -> list[int]:
    """Bytes of the routed experts of every layer as they are held; `own` are the precisions that rules name."""
    if plan.packing is None:
        return [model.shape.experts * expert_bytes(model.shape, "bf16")] * len(own)
    formats = model.expert_formats(plan.packing.precision)
    named = ((precision, precision) if precision else pair for pair, precision in zip(formats, own, strict=True))
    return [model.shape.experts * expert_bytes(model.shape, *pair) for pair in named]


def _unread(plan: WeightPlan, files: PackedFolder) -> Callable[[PreTrainedModel], frozenset[str]]:
    """Which linear layers are mapped and have no other use for their weights."""
    mapped = "linear" in files and files["linear"].is_whole and not plan.original_dense

    def named(network: PreTrainedModel) -> frozenset[str]:
        return (
            frozenset(one.name for one in _of(match_rules(network, plan.inject), "linear")) if mapped else frozenset()
        )

    return named


def open_host(
    cpus: tuple[int, ...], plan: WeightPlan, recorder: CallRecorder, files: PackedFiles | None = None
) -> FusedHost:
    """Where the fused operator packs and runs experts."""
    from ktbench.engine.fused import FusedHost  # needs the kernel extension, base does not

    assert plan.packing is not None
    return FusedHost(cpus, plan.packing, recorder, concurrent=plan.engine.roles_concurrent, files=files)


def open_cuda(recorder: CallRecorder) -> CudaRole:
    """The device role on a CUDA device."""
    from ktbench.engine.cuda.role import CudaRole

    return CudaRole.open(recorder)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Backends:
    """Who runs the routed experts: `host` those that are packed, the modules themselves where they are kept."""

    keeps_original: bool
    host: FusedHost | None
    cuda: CudaRole | None

    def of(
        self, module: nn.Module, store: PackableStore, layer: int, precision: Precision | None
    ) -> tuple[ExpertsBackend | None, ExpertsBackend | None]:
        """Of one layer, for base and for the fused operator, which packs in `precision` where a rule names one."""
        kept = OriginalExperts(module) if self.keeps_original else None
        packed = self.host.pack(store, read_form(module), layer, precision) if self.host is not None else None
        return (kept, packed) if self.cuda is None else self.cuda.backends(kept, packed, layer)


def _place_operators(
    filled: FilledNetwork,
    backends: _Backends,
    state: MoERuntimeState,
    layers: LayerProgress,
    precisions: Mapping[str, Precision],
) -> list[ExpertsOperator]:
    operators, network = [], filled.network
    for name, position in layers.over(expert_positions(network)):
        module = network.get_submodule(name)
        store = layers.counted(filled.experts(name, module))
        original, fused = backends.of(module, store, position.layer, precisions.get(name))
        operators.append(ExpertsOperator(position, state, original=original, fused=fused))
        # What is not kept is released here, before the next layer.
        network.set_submodule(name, operators[-1])
        del module, store
    return operators


def inject(
    network: PreTrainedModel,
    plan: WeightPlan,
    threads: int,
    state: MoERuntimeState,
    blocks_of: LinearBlocks | None,
    files: PackedFiles | None = None,
) -> tuple[DenseOperators | None, StepAttention | None]:
    """Who runs the dense operators on so many threads, and attention; None where no cell is lean.

    For `blocks_of` and `files` see `DenseOperators`. Inner modules are replaced first, while their names are still
    valid. Raises ValueError for rules that do not fit the network.
    """
    found = match_rules(network, _needed(plan))
    _require_experts(network, plan, found)
    device = attention = None
    if plan.dense is not None:
        from ktbench.engine.decode.attention import StepAttention
        from ktbench.engine.decode.latent import StepLatentAttention
        from ktbench.engine.decode.operators import RotaryTable, StepRouter, attention_operator
        from ktbench.engine.dense import DenseOperators, FusedNorm

        device = DenseOperators(threads, plan.dense, state.recorder, plan.original_dense, blocks_of, files)
        attention = StepAttention(network, device)
        _replace(network, found, "rms_norm", lambda module: FusedNorm(module, device))
        _pack_linears(network, found, device)
        _replace(network, found, "attention", lambda module: attention_operator(module, device, attention))
        _replace(network, found, "latent_attention", lambda module: StepLatentAttention(module, device, attention))
        _replace(network, found, "rotary", lambda module: RotaryTable(module, attention))
        _replace(network, found, "router", lambda module: StepRouter(module, device, attention))
    elif plan.engine.device == "cuda":
        from ktbench.engine.cuda.norm import DeviceNorm
        from ktbench.engine.decode.latent import LatentAttention

        _replace(network, found, "rms_norm", DeviceNorm)
        _replace(network, found, "latent_attention", LatentAttention)
    for one in reversed(_of(found, "shared")):
        original = network.get_submodule(one.name)
        network.set_submodule(one.name, SharedExpert(original, state, layer_of(one.name)))
    return device, attention


def _needed(plan: WeightPlan) -> InjectSpec:
    """The rules that the cells need: those of dense operators on CPU cores have to fit only where a cell is lean."""
    if plan.dense is not None:
        return plan.inject
    kept = {"experts", "shared", *(("rms_norm", "latent_attention") if plan.engine.device == "cuda" else ())}
    return replace(plan.inject, rules=tuple(rule for rule in plan.inject.rules if rule.operator in kept))


def _require_experts(network: PreTrainedModel, plan: WeightPlan, found: Sequence[Replacement]) -> None:
    """The engine runs all routed experts: rules that leave some out are refused."""
    missing = {name for name, _ in expert_positions(network)} - {one.name for one in _of(found, "experts")}
    if plan.inject.rules and missing:
        raise ValueError(f"inject={plan.inject.name}: no rule of the operator experts for {min(missing)}")


def _of(found: Iterable[Replacement], operator: str) -> list[Replacement]:
    return [one for one in found if one.operator.name == operator]


def _replace(
    network: PreTrainedModel, found: Sequence[Replacement], operator: str, make: Callable[[nn.Module], nn.Module]
) -> None:
    for one in _of(found, operator):
        network.set_submodule(one.name, make(network.get_submodule(one.name)))


def _pack_linears(network: PreTrainedModel, found: Sequence[Replacement], device: DenseOperators) -> None:
    from ktbench.engine.dense import pack_linears

    named = {one.name: one.rule.precision for one in _of(found, "linear")}
    for names in _groups([*named]):
        modules: list[nn.Linear] = [network.get_submodule(name) for name in names]  # type: ignore[misc]
        for name, packed in zip(names, pack_linears(modules, device, [named[name] for name in names]), strict=True):
            network.set_submodule(name, packed)


def _groups(names: Sequence[str]) -> list[list[str]]:
    """Names of linear layers, those of one input together."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for name in names:
        block, _, last = name.rpartition(".")
        siblings = next((words for words in _SIBLINGS if last in words), (last,))
        groups[block, siblings].append(name)
    return [
        sorted(group, key=lambda name: siblings.index(name.rpartition(".")[2]))
        for (_, siblings), group in groups.items()
    ]
