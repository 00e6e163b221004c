"""The verbs as functions that return frames and figures, and `inject`, which prepares a model for training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktbench.api.result import Result
from ktbench.config import Request
from ktbench.config.inject import read_rules
from ktbench.config.words import words_of
from ktbench.results import read_run
from ktbench.results.find import find_run
from ktbench.run.execute import execute
from ktbench.run.request import one_cell_request, plan_request, read_request, suite_request, sweep_request
from ktbench.spec.errors import RequestError
from ktbench.spec.inject import InjectSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["RequestError", "Result", "evaluate", "inject", "load", "run", "simulate", "sweep"]


def run(*words: str, **keys: Any) -> Result:
    """Measure one cell, as the verb `run`: `ktbench.run(model="mixtral_8x7b", engine={"avx512": True})`.

    `words` are words of the command line (`"model.layers=2"`), `keys` the same as Python values: a mapping sets the
    keys below its own, a tuple is a list of values to sweep over. The run is kept under `runs/`. Raises RequestError
    for an invalid request.
    """
    overrides = [*words, *words_of(keys)]
    return _execute(one_cell_request("run", overrides), "run", overrides)


def sweep(ablation: str | tuple[str, ...] | None = None, *words: str, **keys: Any) -> Result:
    """Measure one or more ablations (as parts of one run) or lists of values; `words` and `keys` as in `run`.

    Raises RequestError for a single cell or an invalid request.
    """
    overrides = [*_named("+ablation", ablation), *words, *words_of(keys)]
    return _execute(sweep_request(overrides), "sweep", overrides)


def simulate(machine: str, ablation: str | tuple[str, ...] | None = None, *words: str, **keys: Any) -> Result:
    """Simulate one cell, or an ablation, on a described machine: a preset, `local`, or the path of a description.

    `words` and `keys` as in `run`. Nothing is loaded and nothing measured. Raises RequestError.
    """
    if machine == "here":
        raise RequestError("machine=here: `run` and `sweep` measure it; name a described machine")
    overrides = [*_named("+ablation", ablation), *words_of({"machine": machine}), *words, *words_of(keys)]
    request = read_request(overrides)
    return _execute(request, "sweep" if request.is_sweep else "run", overrides)


def evaluate(suite: str | None = None, *words: str, **keys: Any) -> Result:
    """Accuracy on a suite, as the verb `eval`; `ablation="NAME"` names its own. `words` and `keys` as in `run`.

    Raises RequestError.
    """
    overrides = [*_named("+suite", suite), *words, *words_of(keys)]
    return _execute(suite_request(overrides), "eval", overrides)


def load(name: str | Path = "latest") -> Result:
    """Read a run: its folder, its name under `runs/`, or `latest`. Raises RequestError with similar names."""
    return Result(run=read_run(find_run(str(name))))


def inject(network: PreTrainedModel, rules: InjectSpec | str | Path | None = None, **settings: Any) -> PreTrainedModel:
    """Puts packed, frozen, differentiable experts into a loaded Transformers model, for PEFT and its trainers.

    `rules` are injection rules, or a YAML file with rules, for the operator `experts`; by default all routed experts
    are replaced. For `settings` and errors see `ktbench.engine.training.inject.inject_experts`.
    """
    from ktbench.engine.training.inject import ROUTED_EXPERTS, inject_experts

    if rules is None:
        rules = ROUTED_EXPERTS
    return inject_experts(network, rules if isinstance(rules, InjectSpec) else read_rules(rules), **settings)


def _named(key: str, name: str | tuple[str, ...] | None) -> list[str]:
    return [] if name is None else words_of({key: name})


def _execute(request: Request, verb: str, overrides: list[str]) -> Result:
    planned = plan_request(request)
    return Result(run=execute(request, planned, ["python", "-m", "ktbench", verb, *overrides]))
