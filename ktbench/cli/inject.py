"""`run inject.show=true`: what the rules replace in the architecture, built without weights."""

from __future__ import annotations

from ktbench.spec.errors import RequestError
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import RunSpec


def show_injection(spec: RunSpec) -> int:
    """Print every module and what takes its place; exit code 0. Raises RequestError for a rule that is wrong."""
    from ktbench.engine.inject.match import lines, match_rules, require_operators

    try:
        require_operators(spec.inject)  # at once: what follows imports PyTorch
        from ktbench.engine.synthetic import skeleton

        network = skeleton(spec.model)
        replacements = match_rules(network, spec.inject)
    except ValueError as error:
        raise RequestError(str(error)) from None
    print("\n".join(lines(network, replacements)))
    print(f"\n{_summary(spec, {one.rule.name for one in replacements}, len(replacements))}")
    return 0


def _summary(spec: RunSpec, used: set[str], count: int) -> str:
    unused = _unused(spec.inject, used)
    ending = f"; not needed here: {', '.join(unused)}" if unused else ""
    return f"{spec.model.name}: inject={spec.inject.name} replaces {count} modules{ending}"


def _unused(inject: InjectSpec, used: set[str]) -> list[str]:
    return [rule.name for rule in inject.rules if rule.name not in used]
