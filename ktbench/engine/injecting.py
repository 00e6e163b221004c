"""Puts operators in the place of what rules name; the experts' have a way of their own (`ktbench.engine.load`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from ktbench.engine.inject.match import Replacement, match_rules
from ktbench.engine.matrices import LinearBlocks
from ktbench.engine.operator import Pass
from ktbench.engine.packing import Holding
from ktbench.engine.places import expert_places
from ktbench.engine.shared import SharedExpert
from ktbench.engine.step.watch import layer_of
from ktbench.spec.inject import InjectSpec

if TYPE_CHECKING:
    from ktbench.engine.dense import DenseHost
    from ktbench.engine.step.attending import StepAttention

# Linear layers of a block that get the same input, in the order in which their weights lie.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def inject(
    network: PreTrainedModel, holding: Holding, threads: int, state: Pass, blocks_of: LinearBlocks | None
) -> tuple[DenseHost | None, StepAttention | None]:
    """Who runs the dense operators on so many threads, and attention; None where no cell is lean.

    For `blocks_of` see `DenseHost`. Inner modules come first, so that names stay what they are until their turn. Raises
    ValueError for rules that do not fit the network.
    """
    found = match_rules(network, _needed(holding))
    _require_experts(network, holding, found)
    device = attention = None
    if holding.dense is not None:
        from ktbench.engine.dense import DenseHost
        from ktbench.engine.step.attending import StepAttention
        from ktbench.engine.step.rotary import RotaryTable
        from ktbench.engine.step.router import StepRouter

        device = DenseHost(threads, holding.dense, state.tape, holding.original_dense, blocks_of)
        attention = StepAttention(network, device)
        _place_dense(network, found, device)
        _place_attention(network, found, device, attention)
        for one in _of(found, "rotary"):
            network.set_submodule(one.name, RotaryTable(network.get_submodule(one.name), attention))
        for one in _of(found, "router"):
            network.set_submodule(one.name, StepRouter(network.get_submodule(one.name), device, attention))
    for one in reversed(_of(found, "shared")):
        original = network.get_submodule(one.name)
        network.set_submodule(one.name, SharedExpert(original, state, layer_of(one.name)))
    return device, attention


def _needed(holding: Holding) -> InjectSpec:
    """The rules that the cells need: those of dense operators have to fit only where a cell is lean."""
    if holding.dense is not None:
        return holding.inject
    always = tuple(rule for rule in holding.inject.rules if rule.operator in ("experts", "shared"))
    return replace(holding.inject, rules=always)


def _require_experts(network: PreTrainedModel, holding: Holding, found: Sequence[Replacement]) -> None:
    """The engine runs all routed experts: rules that leave some out are refused."""
    missing = {name for name, _ in expert_places(network)} - {one.name for one in _of(found, "experts")}
    if holding.inject.rules and missing:
        raise ValueError(f"inject={holding.inject.name}: no rule of the operator experts for {min(missing)}")


def _of(found: Iterable[Replacement], operator: str) -> list[Replacement]:
    return [one for one in found if one.operator.name == operator]


def _place_dense(network: PreTrainedModel, found: Sequence[Replacement], device: DenseHost) -> None:
    from ktbench.engine.dense import FusedNorm, pack_linears

    for one in _of(found, "rms_norm"):
        network.set_submodule(one.name, FusedNorm(network.get_submodule(one.name), device))
    for names in _groups([one.name for one in _of(found, "linear")]):
        modules: list[nn.Linear] = [network.get_submodule(name) for name in names]  # type: ignore[misc]
        for name, packed in zip(names, pack_linears(modules, device), strict=True):
            network.set_submodule(name, packed)


def _place_attention(
    network: PreTrainedModel, found: Sequence[Replacement], device: DenseHost, attention: StepAttention
) -> None:
    from ktbench.engine.step.heads import HeadsAttention

    for one in _of(found, "attention"):
        network.set_submodule(one.name, HeadsAttention(network.get_submodule(one.name), device, attention))


def _groups(names: Sequence[str]) -> list[list[str]]:
    """Names of linear layers, those of one input together."""
    groups: dict[tuple[str, int], list[str]] = defaultdict(list)
    for number, name in enumerate(names):
        block, _, last = name.rpartition(".")
        kind = next((kind for kind, words in enumerate(_SIBLINGS) if last in words), None)
        groups[(block, kind) if kind is not None else (name, -1 - number)].append(name)
    return [sorted(group, key=_rank) for group in groups.values()]


def _rank(name: str) -> int:
    last = name.rpartition(".")[2]
    return next((words.index(last) for words in _SIBLINGS if last in words), 0)
