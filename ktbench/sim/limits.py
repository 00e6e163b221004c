"""What cannot be simulated on a described machine, and why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ktbench.resources import shipped
from ktbench.sim.workloads import WORKLOADS, workload_of
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.support import Reason
from ktbench.spec.wire import from_plain

# Injection rules whose operators the costs are those of, and which of these act where the device role is a GPU.
_RULES = "lean"
_ON_GPUS = ("linear", "rms_norm", "latent_attention")


def not_simulated(spec: RunSpec, machine: MachineSpec) -> Iterator[Reason]:
    """Why a cell of our engine cannot be simulated on a machine, beyond what the engine itself cannot run."""
    work, workload = spec.workload, WORKLOADS.get(spec.workload.phase)
    if spec.engine.device == "cpu" and machine.gpu is not None and (workload is None or not workload.single_layer):
        yield Reason("engine.device=cpu", f"{machine.name} is simulated with its GPU, leave out engine.device")
    if workload is None:
        yield Reason(f"workload.phase={work.phase}", "is not simulated, leave out machine=")
        return
    yield from workload.refuses(spec)
    if why := rules_not_simulated(spec):
        yield Reason(f"inject={spec.inject.name}", why)
    for feature, value in spec.engine.on:
        if not (feature.simulated or feature.serving):
            yield Reason(feature.where(value), "is not simulated, leave it out or set machine=here")
    yield from _ignored_settings(spec, machine)
    most = spec.model.shape.positions
    if not workload.single_layer and work.prompt > most:
        yield Reason(f"workload.prompt={work.prompt}", f"{spec.model.name} was made for {most:,} tokens")


def _ignored_settings(spec: RunSpec, machine: MachineSpec) -> Iterator[Reason]:
    """Settings that a measured step depends on and a simulated one does not: their effect would be shown as none."""
    engine, work, placement, otherwise = spec.engine, spec.workload, spec.engine.placement, "or set machine=here"
    if engine.numa and engine.domains not in (None, machine.domains):
        why = f"logical domains are not simulated, {machine.name} has {machine.domains}; leave it out {otherwise}"
        yield Reason(f"engine.domains={engine.domains}", why)
    if engine.threads is not None and machine.gpu is not None and engine.threads % machine.domains:
        why = f"as many cores of each of the {machine.domains} domains are simulated"
        yield Reason(f"engine.threads={engine.threads}", why)
    if placement.profile is not None:
        why = "experts are placed by the skew of the model's family, leave it null"
        yield Reason(f"engine.placement.profile={placement.profile}", f"is not simulated: {why} {otherwise}")
    if placement.every != PlacementSpec().every and work.routing != "recorded":
        why = f"is simulated with workload.routing=recorded alone, leave it out {otherwise}"
        yield Reason(f"engine.placement.every={placement.every}", why)
    if work.shortest is not None:
        yield Reason(
            f"workload.shortest={work.shortest}", f"prompts of one length are simulated, leave it null {otherwise}"
        )


def as_judged(spec: RunSpec) -> RunSpec:
    """The cell by which the rules of the engine judge a simulated one."""
    return workload_of(spec).judged_as(spec)


def rules_not_simulated(spec: RunSpec) -> str:
    """Why a cell with these injection rules has no model; empty where it has one.

    Rules of your own have to be those of `lean` for the operators that act in the cell.
    """
    inject, allowed = spec.inject, f"; set inject={_RULES} or machine=here"
    if spec.engine.fused and inject.precisions_of("experts"):
        return f"precisions of single layers are not simulated{allowed}"
    if inject.name == _RULES or inject == InjectSpec():
        return ""
    own, known = (_acting(rules, spec) for rules in (inject, _simulated_rules()))
    if others := [rule for key, rule in own.items() if key not in known]:
        return f"the rule {_titled(others[0])} is not one of {_RULES}, whose operators are simulated{allowed}"
    if missing := [rule for key, rule in known.items() if key not in own]:
        return f"the rule {_titled(missing[0])} of {_RULES}, whose operators are simulated, is missing{allowed}"
    return ""


def _acting(inject: InjectSpec, spec: RunSpec) -> dict[str, InjectRule]:
    """By what they replace and with what: names of rules, and their order, change nothing."""
    acting = (rule for rule in inject.rules if _acts(rule.operator, spec))
    return {f"{rule.operator} {rule.wants} {sorted(rule.args.items())}": rule for rule in acting}


def _acts(operator: str, spec: RunSpec) -> bool:
    """Whether it is for rules to say what an operator replaces in a cell; routed experts are replaced in every cell."""
    if operator == "experts" or spec.workload.phase == "layer":
        return False
    if operator == "shared":
        return spec.engine.roles_concurrent
    return operator in _ON_GPUS if spec.engine.device == "cuda" else spec.engine.packed_dense


def _titled(rule: InjectRule) -> str:
    return f"{rule.name} (operator {rule.operator})"


@cache
def _simulated_rules() -> InjectSpec:
    return from_plain(shipped(f"inject/{_RULES}"), InjectSpec)
