"""`run`: one cell, its record."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.cli.show import show
from ktbench.engine.inject.match import lines, match_rules, require_operators
from ktbench.run.execute import execute
from ktbench.run.request import one_cell_request, plan_request
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec


def run(overrides: Sequence[str]) -> int:
    """Measure or simulate the one cell that the overrides describe. Exit code 4 where it did not end well or cannot.

    With `inject.show=true` nothing is measured: the modules of the model and their replacements are shown.
    """
    request = one_cell_request("run", overrides)
    if request.show:
        return show_injection(request.parts[0].spec)
    planned = plan_request(request)
    return show(execute(request, planned, ["python", "-m", "ktbench", "run", *overrides]), alone=True)


def show_injection(spec: RunSpec) -> int:
    """Print every module and its replacement; exit code 0. Raises RequestError for an invalid rule."""
    try:
        require_operators(spec.inject)  # at once: what follows imports PyTorch
        from ktbench.engine.synthetic import skeleton

        network = skeleton(spec.model)
        replacements = match_rules(network, spec.inject)
    except ValueError as error:
        raise RequestError(str(error)) from None
    print("\n".join(lines(network, replacements)))
    used = {one.rule.name for one in replacements}
    unused = ", ".join(rule.name for rule in spec.inject.rules if rule.name not in used)
    ending = f"; not needed here: {unused}" if unused else ""
    print(f"\n{spec.model.name}: inject={spec.inject.name} replaces {len(replacements)} modules{ending}")
    return 0
