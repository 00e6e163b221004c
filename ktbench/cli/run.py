"""`run`: one cell, its record."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.spec.errors import RequestError
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import RunSpec

SUMMARY = "measure one cell, or simulate it (machine=NAME)"


def run(overrides: Sequence[str]) -> int:
    """Measure or simulate the one cell that the overrides describe. Exit code 4 where it did not end well or cannot.

    With `inject.show=true` nothing is measured: the modules of the model and what takes their place are shown.
    """
    from ktbench.cli.show import show
    from ktbench.run.execute import execute
    from ktbench.run.request import one_cell_request, plan_request

    request = one_cell_request("run", overrides)
    if request.show:
        return show_injection(request.parts[0].spec)
    planned = plan_request(request)
    return show(execute(request, planned, ["python", "-m", "ktbench", "run", *overrides]), alone=True)


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
