"""From a command line to a frozen request, and its cells on this or on a described machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ktbench.config import (
    ModelFiles,
    Request,
    RequestPart,
    ablation_names,
    compose,
    config_file,
    freeze,
    is_file,
    is_launching,
    suite_names,
    with_operator,
    with_own_features,
)
from ktbench.engine.checkpoint import checkpoint_config, inspect_checkpoint, require_tokenizer
from ktbench.engine.inject.match import require_operators
from ktbench.engine.loading.config_file import config_in, config_name, released_config, require_runnable
from ktbench.engine.stored.formats import stored_formats
from ktbench.engine.stored.methods import announced_formats
from ktbench.host.capabilities import machine_capabilities
from ktbench.host.describe import read_local_machine
from ktbench.host.fonts import require_font
from ktbench.host.memory import read_memory
from ktbench.host.topology import read_topology
from ktbench.resources import option_files
from ktbench.results import read_run
from ktbench.results.find import RUNS, find_run
from ktbench.results.log import already_there, holds_run
from ktbench.results.published import require_known
from ktbench.results.settings import model_title
from ktbench.run.feasibility import best_engine, memory_missing, unsupported_locally, unsupported_simulated
from ktbench.spec.cells import plan_cells
from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import RequestError, did_you_mean, error_text, instead, refusing
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import OURS
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.memory import MachineMemory, NotEnoughMemory, blocks_of, require_memory
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.sweep import SweepSpec, on_avx2, without_packing
from ktbench.spec.weights import FORMATS

COMMAND = ("python", "-m", "ktbench", "VERB")  # the words of a recorded command before its overrides
_NANO = "model=nano"
# Precision keys, by field of `StoredFormats`.
_STORED_AS = {"precision": "experts", "device_precision": "attention"}
_ARMS = {"sweep.arms", "sweep.baseline", "sweep.features", "sweep.design"}
_NAMES_A_MODEL = {"model", "model.path", "model.config"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPlan:
    """Cells of a request. `unsupported` says by cell key why a cell cannot run, here or on its described machine.

    `needed_bytes` is the largest number of bytes of `memory` in use at once. Simulated cells need none. For a mere
    plan, `short` says why there is too little memory at the moment, empty if there is enough.
    """

    cells: tuple[Cell, ...]
    unsupported: dict[str, str]
    needed_bytes: int
    memory: MachineMemory
    short: str = ""

    @property
    def here(self) -> tuple[Cell, ...]:
        """Cells to measure on this machine, whether it can run them or not."""
        return tuple(cell for cell in self.cells if cell.spec.machine is None)

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells that this machine can run."""
        return tuple(cell for cell in self.here if cell.key not in self.unsupported)

    @property
    def simulated(self) -> tuple[Cell, ...]:
        """Cells on described machines, whether those could run them or not."""
        return tuple(cell for cell in self.cells if cell.spec.machine is not None)

    @property
    def blocks(self) -> tuple[tuple[Cell, ...], ...]:
        """The cells that can run, in blocks that are measured together: all, or as many as fit in memory."""
        return blocks_of(self.runnable, self.memory)


def read_request(overrides: Sequence[str], *, evaluates: bool = False) -> Request:
    """The frozen request of overrides. Raises RequestError, also for a suite unless the verb `evaluates` it."""
    overrides = with_ablation(overrides)
    composed = compose(overrides, read_local_machine)
    try:
        composed = with_own_features(composed)
        request = with_operator(freeze(composed, _model_files(composed.parts.values()), _best_of(overrides)))
        request = _on_this_machine(request, overrides)
        for part in request.parts:
            require_operators(part.spec.inject)
            if part.sweep.style.font:
                require_font("sweep.style.font", part.sweep.style.font)
            _require_published(part)
            _require_network(part, composed.parts[part.name])
            _require_stored(part, composed.parts[part.name])
    except ValueError as error:
        raise RequestError(f"{error}{_stored_formats_hint(str(error), composed.parts.values())}") from None
    except OSError as error:
        raise RequestError(error_text(error)) from None
    if request.suite is not None and not evaluates:
        raise RequestError(
            f"suite={request.suite.name}: suites are run by `eval`: python -m ktbench eval {shlex.join(overrides)}; "
            "suite=null leaves it out and measures speed alone"
        )
    return request


def with_ablation(words: Sequence[str]) -> list[str]:
    """Overrides with `+ablation=NAME` for words that are only names of ablations, as the API allows.

    Raises RequestError for any other word that is not an override.
    """
    names = [word for word in words if "=" not in word]
    rest = [word for word in words if "=" in word]
    if unknown := next((word for word in names if word not in ablation_names() and not is_file(word)), None):
        hint = did_you_mean(unknown, ablation_names())
        raise RequestError(f"override {unknown!r}: expected KEY=VALUE, or the name of an ablation{hint}")
    return [f"+ablation={','.join(names)}", *rest] if names else rest


def _best_of(overrides: Sequence[str]) -> Callable[[EngineSpec, MachineSpec | None, str], EngineSpec]:
    """`best_engine`, except for features that the command line sets."""
    keys = {word.lstrip("+").partition("=")[0] for word in overrides}

    def best(engine: EngineSpec, machine: MachineSpec | None, phase: str) -> EngineSpec:
        named = {feature.name: value for feature, value in engine.values if feature.key in keys}
        return best_engine(engine, machine, phase).with_features(named)

    return best


def _on_this_machine(request: Request, overrides: Sequence[str]) -> Request:
    """The request with +a in the arms of ablations if the machine has neither AVX-512 nor AMX.

    Evaluations on a CUDA device drop +l, which packs for the CPU and is not their subject. Arms with published speeds
    keep those of their source; arms, features and baselines of the command line are not changed.
    """
    keys = {word.lstrip("+").partition("=")[0] for word in overrides}
    if "ablation" not in keys or keys & _ARMS:
        return request
    arms = [_arms_here(part, evaluates=request.suite is not None) for part in request.parts]
    parts, notices = tuple(part for part, _ in arms), dict.fromkeys(notice for _, said in arms for notice in said)
    if not notices:
        return request
    sweep = request.sweep if request.sweep.parts else parts[0].sweep
    return replace(request, notice="\n".join(notices), parts=parts, sweep=sweep)


def _arms_here(part: RequestPart, *, evaluates: bool) -> tuple[RequestPart, list[str]]:
    """A part with the arms that can run, and notices about the changes."""
    changes: list[tuple[str, Callable[[SweepSpec], SweepSpec]]] = []
    if part.sweep.arms and _is_avx2(part) and (evaluates or not part.sweep.published):
        changes.append(("no AVX-512 or AMX: arms of the ablation have +a for +v and +m", on_avx2))
    if part.sweep.arms and evaluates and part.spec.engine.device == "cuda":
        changes.append(("engine.device=cuda: arms of the ablation have no +l", without_packing))
    notices = []
    for notice, change in changes:
        if (changed := change(part.sweep)) != part.sweep:
            part = replace(part, sweep=changed)
            notices.append(f"{notice} (sweep.arms=[...] sets others)")
    return part, notices


def _is_avx2(part: RequestPart) -> bool:
    """Whether AVX2 is the widest instruction set of a part's machine; False if the machine is an axis."""
    if part.spec.machine is not None:
        return part.spec.machine.vector == "avx2" and "machine" not in part.sweep.axes
    missing = machine_capabilities()
    return not missing["avx2"] and bool(missing["avx512"] and missing["amx"]) and "machine" not in part.sweep.axes


def _model_files(parts: Iterable[Mapping[str, Any]]) -> ModelFiles:
    """Configurations named by the parts. If a cell is measured, the weights of its checkpoint must exist."""
    checkpoints, configs, stored, layers = {}, {}, {}, {}
    for content in parts:
        for model in _models(content):
            if (file := config_file(model)) is not None:
                configs[file] = config_name(file), config_in(file)
                stored[file] = dict(zip(_STORED_AS, announced_formats(released_config(file)), strict=True))
            elif (path := model["path"]) is not None:
                if _is_measured(content):
                    formats = stored_formats(path)
                    stored[path] = {"precision": formats.native, "device_precision": formats.native_attention}
                    layers[path] = formats.layers
                checkpoints[path] = inspect_checkpoint(path) if _is_measured(content) else checkpoint_config(path)
    return ModelFiles(checkpoints=checkpoints, configs=configs, stored=stored, layers=layers)


def _require_published(part: RequestPart) -> None:
    """Raise ValueError for published numbers that cannot be read, or that match nothing a run could have."""
    cells = plan_cells(part.spec, part.sweep, part.name)
    machines = {cell.spec.machine.name for cell in cells if cell.spec.machine is not None}
    models = {cell.spec.model.name for cell in cells}
    require_known(part.sweep.published, machines | {*option_files("machine")}, models | {*option_files("model")})


def _require_stored(part: RequestPart, content: Mapping[str, Any]) -> None:
    """Raise ValueError for a precision to which ktbench cannot quantise and that the checkpoint does not have."""
    spec = part.spec
    if spec.model.path is None or not _is_measured(content):
        return
    for key, precision in (("precision", spec.precision), ("device_precision", spec.device_precision)):
        if FORMATS[precision].from_numbers:
            continue
        if precision not in (held := getattr(stored_formats(spec.model.path), _STORED_AS[key])):
            raise ValueError(f"{key}={precision}: {spec.model.path} is stored in {' and '.join(held)}")


def _require_network(part: RequestPart, content: Mapping[str, Any]) -> None:
    """Raise ValueError for a `model.config=FILE` that is measured and whose network the engine does not run."""
    if (file := config_file(content["model"])) is not None and _is_measured(content):
        require_runnable(file, part.spec.model)


def _stored_formats_hint(error: str, parts: Iterable[Mapping[str, Any]]) -> str:
    """The suffix of an error about a precision: the formats in which the request's checkpoints are stored."""
    key = error.partition(":")[0]
    if key not in _STORED_AS:
        return ""
    paths = {model["path"]: None for content in parts if _is_measured(content) for model in _models(content)}
    formats = {path: getattr(stored_formats(path), _STORED_AS[key]) for path in paths if path is not None}
    return "".join(f"; {path} is stored in {' and '.join(held)}" for path, held in formats.items())


def _models(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The model of a part, and those on its axes."""
    yield content["model"]
    axes = content["sweep"]["axes"]
    for values in axes.values() if isinstance(axes, dict) else ():
        changes = values if isinstance(values, list) else []
        yield from (change["model"] for change in changes if isinstance(change, Mapping) and "model" in change)


def _is_measured(content: Mapping[str, Any]) -> bool:
    """Whether cells of a part may be measured here. `inject.show` measures nothing, and reads no weights."""
    if content["inject"]["show"] is True:
        return False
    return content["machine"]["name"] == "here" or "machine" in (content["sweep"]["axes"] or ())


# Keys about resuming a run, not about its cells; those of `measure` say how long it takes.
_RESUME_KEYS = ("resume", "resume_changed", "run_name", "wait")


def as_resumed(overrides: Sequence[str]) -> list[str]:
    """Overrides that only name a run to resume, with those with which its log says it was started.

    Raises RequestError if there is no such run.
    """
    given = {word.lstrip("+").partition("=")[0]: word.partition("=")[2] for word in overrides}
    names_cells = any(key not in _RESUME_KEYS and not key.startswith("measure.") for key in given)
    if not given.get("resume") or names_cells:
        return list(overrides)
    command = read_run(find_run(given["resume"])).header.command[len(COMMAND) :]
    keys = {*_RESUME_KEYS, *given}
    logged = (word for word in command if not is_launching(word) and word.lstrip("+").partition("=")[0] not in keys)
    return [*logged, *overrides]


def one_cell_request(verb: str, overrides: Sequence[str]) -> Request:
    """The request of a verb that takes one cell. Raises RequestError for a sweep."""
    request = read_request(as_resumed(overrides) if verb == "run" else overrides)
    if request.is_sweep:
        many = "; --multirun runs each value of lists by itself" if verb == "run" else ""
        raise RequestError(f"{verb}: takes one cell; use `sweep` for lists and ablations{many}")
    return request


def sweep_request(overrides: Sequence[str]) -> Request:
    """The request of `sweep`. Raises RequestError for a single cell."""
    request = read_request(as_resumed(overrides))
    if not request.is_sweep:
        names = instead("", ablation_names(), "ktbench list ablations")
        raise RequestError(f"sweep: name one with +ablation=NAME{names}")
    return request


def take_word(verb: str, words: Sequence[str], key: str, wanted: str) -> tuple[list[str], str | None]:
    """The words without `key=VALUE`, a key of the verb, and its value. Raises RequestError if given twice or empty."""
    start = f"{key}="
    values = [word.removeprefix(start) for word in words if word.startswith(start)]
    if len(values) > 1 or values == [""]:
        raise RequestError(f"{verb} {start}{f' {start}'.join(values)}: name {wanted}")
    return [word for word in words if not word.startswith(start)], values[0] if values else None


def new_file(verb: str, output: str | Path) -> Path:
    """The path of a file that can be written and does not exist yet. Raises RequestError."""
    file = Path(output)
    if file.exists():
        raise RequestError(f"{verb} output={file}: {'is a folder' if file.is_dir() else 'exists'}, name a new file")
    above = next(folder for folder in file.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise RequestError(f"{verb} output={file}: {above} is not writable, name another folder")
    return file


def plan_request(request: Request) -> CellPlan:
    """Cells of a request, with reasons for those that cannot run.

    Raises RequestError if the measured cells do not fit this machine; alongside simulated cells that is a reason like
    any other.
    """
    _require_folder(request)
    return plan_here(cells := cells_of(request), refuses=_measures_all(cells))


def _require_folder(request: Request) -> None:
    """Raises RequestError for a run to resume that there is not, and for a new one where there is one."""
    if request.resume is not None:
        find_run(request.resume)
    elif request.run_name is not None and holds_run(folder := RUNS / request.run_name):
        raise already_there(folder)


def show_request(request: Request) -> CellPlan:
    """Like `plan_request`, but without starting a program, and even if too little memory is free now.

    Raises RequestError if all the memory of this machine would not suffice.
    """
    cells = cells_of(request)
    free, refuses = _machine_memory(), _measures_all(cells)
    try:
        return _plan(cells, free, refuses=refuses, starts=False)
    except NotEnoughMemory as error:
        idle = replace(free, free_bytes=free.total_bytes)
        return replace(_plan(cells, idle, refuses=refuses, starts=False), short=str(error))


def _measures_all(cells: Iterable[Cell]) -> bool:
    return all(cell.spec.machine is None for cell in cells)


def cells_of(request: Request) -> tuple[Cell, ...]:
    """Cells of a request. A simulated cell has no control: it has no noise."""
    planned = (cell for part in request.parts for cell in plan_cells(part.spec, part.sweep, part.name))
    return tuple(cell for cell in planned if cell.role == "arm" or cell.spec.machine is None)


def plan_here(cells: tuple[Cell, ...], *, refuses: bool) -> CellPlan:
    """Cells with reasons for those that cannot run.

    With `refuses`, raises RequestError for cells that do not fit this machine.
    """
    return _plan(cells, _machine_memory(), refuses=refuses, starts=True)


def _plan(cells: tuple[Cell, ...], memory: MachineMemory, *, refuses: bool, starts: bool) -> CellPlan:
    here = [cell for cell in cells if cell.spec.machine is None]
    unsupported = unsupported_simulated(cells) | unsupported_locally(here, cuda_is_needed=refuses, starts=starts)
    if not refuses:
        unsupported |= memory_missing([cell for cell in here if cell.key not in unsupported], memory)
    needed = require_memory([cell for cell in here if cell.key not in unsupported], memory)
    return CellPlan(cells=cells, unsupported=unsupported, needed_bytes=needed, memory=memory)


def _machine_memory() -> MachineMemory:
    memory, cache_bytes = read_memory(), read_topology().last_level_cache_bytes
    return MachineMemory(
        free_bytes=memory.available_bytes, total_bytes=memory.total_bytes, cache_bytes=cache_bytes or 0
    )


def eval_request(overrides: Sequence[str]) -> Request:
    """The request of overrides; with a suite, a single cell is paired with the unmodified model.

    Raises RequestError for cells that cannot be evaluated: untrained weights, a simulated machine, missing files.
    """
    request = read_request(with_model(overrides), evaluates=True)
    if request.suite is None:
        return request
    for part in request.parts:
        for cell in plan_cells(part.spec, part.sweep, part.name):
            _require_evaluable(cell.spec, is_timed=request.is_timed)
    _require_tasks(request.suite)
    return name_after_suite(pair_with_base(request), request.suite)


def suite_request(overrides: Sequence[str]) -> Request:
    """The request of `eval`. Raises RequestError without a suite, and as `eval_request`."""
    request = eval_request(as_resumed(overrides))
    if request.suite is None:
        raise RequestError(f"eval: name a suite with +suite=NAME{instead('', suite_names(), 'ktbench list suites')}")
    return request


def with_model(overrides: Sequence[str]) -> list[str]:
    """Overrides with the shipped model if a suite but no model is named: synthetic weights cannot answer."""
    keys = {word.lstrip("+").partition("=")[0] for word in overrides}
    return (
        [_NANO, *overrides]
        if "suite" in keys and not keys & {"model", "model.path", "model.config"}
        else list(overrides)
    )


def pair_with_base(request: Request) -> Request:
    """The request, with the unmodified model added to a single cell that changes numbers.

    Answers have no noise that a control could show, unlike timed steps.
    """
    if not request.is_sweep:
        (part,) = request.parts
        return replace(request, parts=(_with_base(part),))
    if request.is_timed:
        return request
    return replace(
        request,
        parts=tuple(replace(part, sweep=replace(part.sweep, control=False, copies=0)) for part in request.parts),
    )


def name_after_suite(request: Request, suite: SuiteSpec) -> Request:
    """The request, named after its suite unless an ablation names it."""
    if request.sweep.name != SweepSpec().name:
        return request
    title = request.sweep.title or f"{suite.title or suite.name}: {model_title(request.parts[0].spec.model.name)}"
    sweep = replace(request.sweep, name=suite.name, title=title)
    parts = [replace(part, sweep=replace(part.sweep, name=suite.name, title=title)) for part in request.parts]
    return replace(request, sweep=sweep, parts=tuple(parts))


def _with_base(part: RequestPart) -> RequestPart:
    spec = part.spec
    if spec.label == "base" and not spec.is_quantised:
        return part
    arm, base = (spec.label, "base") if spec.precision == "bf16" else (f"{spec.label} {spec.precision}", "base bf16")
    sweep = replace(part.sweep, arms=(base, arm), baseline=base, control=False, figure="accuracy")
    return replace(part, sweep=sweep)


def _require_tasks(suite: SuiteSpec) -> None:
    from ktbench.eval.tasks.sources import describe_suite

    with refusing():
        describe_suite(suite)


def _require_evaluable(spec: RunSpec, *, is_timed: bool) -> None:
    """The phase is that of the steps timed in addition to the answers."""
    phase = spec.workload.phase
    if phase == "layer" or (phase == "prefill" and not is_timed):
        raise RequestError(f"workload.phase={phase}: an evaluation has no workload, leave out workload=")
    require_answering("eval", spec)


def require_answering(verb: str, spec: RunSpec) -> None:
    """Raises RequestError with the reason if a verb needs text answers and the cell gives none."""
    model = spec.model
    if spec.machine is not None:
        raise RequestError(f"machine={spec.machine.name}: a simulation cannot answer, leave out machine=")
    if spec.system != OURS:
        raise RequestError(f"system={spec.system}: {verb} runs ktbench's engine, leave out system=")
    if model.path is None:
        raise RequestError(
            f"model={model.name}: has synthetic weights, which cannot answer; set model.path=FOLDER or model=nano"
        )
    with refusing():
        require_tokenizer(verb, model.path, model.shape.vocab)
