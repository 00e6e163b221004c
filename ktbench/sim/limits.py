"""What cannot be simulated on a described machine, and why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ktbench.resources import shipped
from ktbench.sim.workloads import WORKLOADS, machine_of, workload_of
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.limits import Limit, Reason, broken
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import from_plain

# Injection rules whose operators the costs are those of, and which of these act where the device role is a GPU.
_RULES = "lean"
_ON_GPUS = ("linear", "rms_norm", "latent_attention")


def not_simulated(spec: RunSpec) -> Iterator[Reason]:
    """Why a cell of our engine cannot be simulated on its machine, beyond what the engine itself cannot run."""
    workload = WORKLOADS.get(spec.workload.phase)
    yield from broken(_WORKLOADS, spec)
    if workload is None:
        return
    yield from workload.refuses(spec)
    if why := rules_not_simulated(spec):
        yield Reason(f"inject={spec.inject.name}", why)
    for feature, value in spec.engine.on:
        if not (feature.simulated or feature.serving):
            yield Reason(feature.where(value), f"is not simulated, leave it out {_OTHERWISE}")
    yield from broken(_IGNORED, spec)


def _has_network(spec: RunSpec) -> bool:
    workload = WORKLOADS.get(spec.workload.phase)
    return workload is None or not workload.single_layer


_OTHERWISE = "or set machine=here"
_WORKLOADS = (
    Limit(
        lambda spec: spec.engine.device == "cpu" and machine_of(spec).gpu is not None and _has_network(spec),
        lambda spec: f"{machine_of(spec).name} is simulated with its GPU, leave out engine.device",
        "engine.device",
    ),
    Limit(lambda spec: spec.workload.phase not in WORKLOADS, "is not simulated, leave out machine=", "workload.phase"),
)
# All rows but the last: settings that a measured step depends on and a simulated one does not: their effect would be
# shown as none.
_IGNORED = (
    Limit(
        lambda spec: spec.engine.numa and spec.engine.domains not in (None, machine_of(spec).domains),
        lambda spec: (
            f"logical domains are not simulated, {machine_of(spec).name} has {machine_of(spec).domains}; "
            f"leave it out {_OTHERWISE}"
        ),
        "engine.domains",
    ),
    Limit(
        lambda spec: machine_of(spec).gpu is not None and (spec.engine.threads or 0) % machine_of(spec).domains != 0,
        lambda spec: f"as many cores of each of the {machine_of(spec).domains} domains are simulated",
        "engine.threads",
    ),
    Limit(
        lambda spec: spec.engine.placement.profile is not None,
        "is not simulated: experts are placed by the skew of the model's family, leave it null " + _OTHERWISE,
        "engine.placement.profile",
    ),
    Limit(
        lambda spec: spec.engine.placement.every != PlacementSpec().every and spec.workload.routing != "recorded",
        f"is simulated with workload.routing=recorded alone, leave it out {_OTHERWISE}",
        "engine.placement.every",
    ),
    Limit(
        lambda spec: spec.workload.shortest is not None,
        f"prompts of one length are simulated, leave it null {_OTHERWISE}",
        "workload.shortest",
    ),
    Limit(
        lambda spec: _has_network(spec) and spec.workload.prompt > spec.model.shape.positions,
        lambda spec: f"{spec.model.name} was made for {spec.model.shape.positions:,} tokens",
        "workload.prompt",
    ),
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
