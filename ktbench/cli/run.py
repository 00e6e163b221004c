"""`run`: one cell, its record."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.engine.inject.match import lines, match_rules, require_operators
from ktbench.run.feasibility import best_engine
from ktbench.run.progress import say
from ktbench.run.request import one_cell_request, plan_request
from ktbench.spec.errors import refusing
from ktbench.spec.features import BY_NAME
from ktbench.spec.peers import OURS
from ktbench.spec.run_spec import RunSpec


def run(overrides: Sequence[str]) -> int:
    """Measure or simulate the one cell that the overrides describe. Exit code 4 where it did not end well or cannot.

    With `inject.show=true` nothing is measured: the modules of the model and their replacements are shown. A line names
    the features of the machine that are off.
    """
    request = one_cell_request("run", overrides)
    if request.show:
        return show_injection(request.parts[0].spec)
    planned = plan_request(request)
    # What measures and reports takes a tenth of a second to load: only for a request that is not refused.
    from ktbench.cli.show import show
    from ktbench.run.execute import execute

    _hint(request.parts[0].spec)
    return show(execute(request, planned, ["python", "-m", "ktbench", "run", *overrides]), alone=True)


def _hint(spec: RunSpec) -> None:
    """Say which features of the machine are off, if any. Serving and peers have features of their own."""
    if spec.system != OURS or spec.workload.phase in ("serve", "layer"):
        return
    was, best = spec.engine.features, best_engine(spec.engine, spec.machine, spec.workload.phase).features
    if unused := [f"+{BY_NAME[name].letter}" for name in best if best[name] is True and not was[name]]:
        say(f"off here: {' '.join(unused)}; engine.best=true sets every feature that the machine has")


def show_injection(spec: RunSpec) -> int:
    """Print every module and its replacement; exit code 0. Raises RequestError for an invalid rule."""
    with refusing():
        require_operators(spec.inject)  # at once: what follows imports PyTorch
        from ktbench.engine.synthetic import skeleton

        network = skeleton(spec.model)
        replacements = match_rules(network, spec.inject)
    print("\n".join(lines(network, replacements)))
    used = {one.rule.name for one in replacements}
    unused = ", ".join(rule.name for rule in spec.inject.rules if rule.name not in used)
    ending = f"; not needed here: {unused}" if unused else ""
    print(f"\n{spec.model.name}: inject={spec.inject.name} replaces {len(replacements)} modules{ending}")
    return 0
