"""`run`: one cell, its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ktbench.cli.show import show
from ktbench.config import Request
from ktbench.engine.inject.match import lines, match_rules, require_operators
from ktbench.run.execute import execute
from ktbench.run.feasibility import Machine
from ktbench.run.progress import say
from ktbench.run.request import one_cell_request, plan_request, take_word
from ktbench.sim.cost_search import with_features
from ktbench.spec.errors import RequestError, refusing
from ktbench.spec.features import BY_NAME
from ktbench.spec.peers import OURS
from ktbench.spec.run_spec import RunSpec


def run(overrides: Sequence[str]) -> int:
    """Measure or simulate the one cell that the overrides describe. Exit code 4 where it did not end well or cannot.

    With `inject.show=true` nothing is measured: the modules of the model and their replacements are shown. With
    `engine.best=true` the cell has every feature that its machine has; without, a line names those that are off.
    """
    words, best = take_word("run", overrides, _BEST, "true or false")
    if best not in (None, "true", "false"):
        raise RequestError(f"run {_BEST}={best}: allowed are true and false")
    request = one_cell_request("run", words)
    if request.show:
        return show_injection(request.parts[0].spec)
    request = _with_best(request) if best == "true" else request
    planned = plan_request(request)
    _hint(request.parts[0].spec)
    return show(execute(request, planned, ["python", "-m", "ktbench", "run", *overrides]), alone=True)


_BEST = "engine.best"


def _with_best(request: Request) -> Request:
    """The request with every feature that the machine of its cell has."""
    (part,) = request.parts
    return replace(request, parts=(replace(part, spec=_best(part.spec)),))


def _hint(spec: RunSpec) -> None:
    """Say which features of the machine are off, if any."""
    was, best = spec.engine.features, _best(spec).engine.features
    if unused := [f"+{BY_NAME[name].letter}" for name in best if best[name] is True and not was[name]]:
        say(f"off here: {' '.join(unused)}; {_BEST}=true sets every feature that the machine has")


def _best(spec: RunSpec) -> RunSpec:
    """Serving and peers have features of their own, and stay as they are."""
    if spec.system != OURS or spec.workload.phase in ("serve", "layer"):
        return spec
    machine = Machine.local() if spec.machine is None else Machine.described(spec.machine)
    no_graph = "" if spec.engine.device == "cuda" else "needs a GPU"
    missing = dict(machine.features_missing)
    return with_features(spec, missing | {"cuda_graph": missing["cuda_graph"] or no_graph})


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
