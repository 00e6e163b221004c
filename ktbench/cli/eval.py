"""`eval`: what features cost in accuracy, on a suite of questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ktbench.spec.sweep import SweepSpec

if TYPE_CHECKING:
    from ktbench.config import Request, RequestPart
    from ktbench.spec.run_spec import RunSpec
    from ktbench.spec.suite import SuiteSpec

SUMMARY = "accuracy of the same cells on a suite (+suite=NAME), paired with the unmodified model"
_DEFAULT_MODEL = "model=nano"


def run(overrides: Sequence[str]) -> int:
    """Ask, grade, report, and say with the exit code whether every cell ended well."""
    from ktbench.cli.drive import carry_out
    from ktbench.cli.request import plan_request
    from ktbench.cli.show import show
    from ktbench.config.compose import suite_names
    from ktbench.spec.errors import RequestError

    request = eval_request(overrides)
    if request.suite is None:
        raise RequestError(f"eval: name a suite with +suite=NAME; allowed are {', '.join(suite_names())}")
    planned = plan_request(request)
    return show(carry_out(request, planned, ["python", "-m", "ktbench", "eval", *overrides]))


def eval_request(overrides: Sequence[str]) -> Request:
    """The request behind overrides; where it asks a suite, the unmodified model is beside a cell that is alone.

    Raises RequestError for what cannot be asked: weights that were not trained, a machine of paper, files that are not
    there.
    """
    from ktbench.cli.request import read_request
    from ktbench.spec.cells import plan_cells

    request = read_request(with_model(overrides), asks=True)
    if request.suite is None:
        return request
    for part in request.parts:
        for cell in plan_cells(part.spec, part.sweep, part.name):
            _require_answers(cell.spec)
    _require_questions(request.suite)
    return named(paired(request), request.suite)


def with_model(overrides: Sequence[str]) -> list[str]:
    """With a suite, the model that ships where none is named: one with synthetic weights answers nothing."""
    keys = {word.lstrip("+").partition("=")[0] for word in overrides}
    return [_DEFAULT_MODEL, *overrides] if "suite" in keys and not keys & {"model", "model.path"} else list(overrides)


def paired(request: Request) -> Request:
    """A request of one cell that changes numbers gets the unmodified model beside it, which is asked the same.

    Answers have no noise that a control could show, timed steps have.
    """
    if not request.is_sweep:
        (part,) = request.parts
        return replace(request, parts=(_beside_base(part),))
    if request.is_timed:
        return request
    return replace(
        request, parts=tuple(replace(part, sweep=replace(part.sweep, control=False)) for part in request.parts)
    )


def named(request: Request, suite: SuiteSpec) -> Request:
    """A request that no ablation names is called after its suite."""
    if request.sweep.name != SweepSpec().name:
        return request
    title = request.sweep.title or f"{suite.title or suite.name}: {request.parts[0].spec.model.name}"
    sweep = replace(request.sweep, name=suite.name, title=title)
    parts = [replace(part, sweep=replace(part.sweep, name=suite.name, title=title)) for part in request.parts]
    return replace(request, sweep=sweep, parts=tuple(parts))


def _beside_base(part: RequestPart) -> RequestPart:
    spec = part.spec
    if spec.label == "base" and not spec.is_quantised:
        return part
    arm, base = (spec.label, "base") if spec.precision == "bf16" else (f"{spec.label} {spec.precision}", "base bf16")
    sweep = replace(part.sweep, arms=(base, arm), baseline=base, control=False, figure="accuracy")
    return replace(part, sweep=sweep)


def _require_questions(suite: SuiteSpec) -> None:
    from ktbench.eval.tasks.sources import describe_suite
    from ktbench.spec.errors import RequestError

    try:
        describe_suite(suite)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _require_answers(spec: RunSpec) -> None:
    from ktbench.engine.gguf.inspecting import is_gguf
    from ktbench.resources import checkpoint_folder
    from ktbench.spec.errors import RequestError

    model, phase = spec.model, spec.workload.phase
    if phase != "decode":
        raise RequestError(f"workload.phase={phase}: questions are not timed, leave out workload=")
    if spec.machine is not None:
        raise RequestError(f"machine={spec.machine.name}: a simulation answers no questions, leave out machine=")
    if spec.system != "ktbench":
        raise RequestError(f"system={spec.system}: eval asks our engine, leave out system=")
    if model.path is None:
        raise RequestError(
            f"model={model.name}: has synthetic weights, which answer nothing; set model.path=FOLDER or model=nano"
        )
    folder = checkpoint_folder(model.path)
    if is_gguf(model.path) or not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise RequestError(f"model.path={model.path}: eval needs a folder with a tokenizer (tokenizer.json)")
