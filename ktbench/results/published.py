"""Published numbers: reads those that ship (`reports/published`, one CSV file a figure or table), and matches cells."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from ktbench.resources import data_folder
from ktbench.results.lines import StoreError
from ktbench.results.settings import setting_text, settings_of, without_precision
from ktbench.spec.errors import did_you_mean, instead, shown
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.published import NOT_OURS, STANDS_FOR, Published, is_file
from ktbench.spec.record import Part
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import PRECISIONS, arm_changes, arm_peer
from ktbench.spec.wire import from_plain

COLUMNS = tuple(field.name for field in fields(Published))


def published_names() -> tuple[str, ...]:
    """Figures and tables that ship, in the order of the alphabet."""
    return tuple(sorted(path.stem for path in _folder().glob("*.csv")))


def read_published(*figures: str) -> tuple[Published, ...]:
    """Numbers of the figures named, of single panels of them (`fig14a`) or of CSV files, each once, in their order.

    Raises StoreError for a figure that does not ship, a file that is not there or named like one that ships, and with
    file and line for a row that cannot be read.
    """
    found: dict[str, tuple[str, Published]] = {}
    for name in dict.fromkeys(figures):
        for where, number in _numbers_of(name):
            if (before := found.setdefault(number.id, (where, number)))[0] != where:
                raise StoreError(f"{where}: id {number.id} is also in {before[0]}")
    return tuple(number for _, number in found.values())


def require_known(figures: Sequence[str], machines: Collection[str], models: Collection[str]) -> None:
    """Raises StoreError as `read_published`, and with file and line for a name of no machine, model or precision.

    Each may be empty in a number that is not about one.
    """
    allowed = {"machine": machines, "model": models, "precision": (*PRECISIONS, *STANDS_FOR)}
    for where, number in (found for name in figures if is_file(name) for found in _numbers_of(name)):
        for column, names in allowed.items():
            if (value := getattr(number, column)) and value not in names:
                raise StoreError(
                    f"{where}: {column}={shown(value)}: unknown{did_you_mean(value, names)}; "
                    f"`ktbench list {column}s` names those that are"
                )
    read_published(*figures)


def _numbers_of(name: str) -> list[tuple[str, Published]]:
    """`file:line` and number of every row of a figure, of a panel (the figure's name and a letter) or of a file."""
    known = published_names()
    if is_file(name):
        return _numbers_in(Path(name), known)
    figure = name if name in known else name[:-1]
    found = [] if figure not in known else [*read_file(_folder() / f"{figure}.csv")]
    shown = [(where, number) for where, number in found if name in (number.figure, number.panel)]
    if not shown:
        raise StoreError(f"published={name}: no such figure{instead(name, known)}")
    return shown


def _numbers_in(path: Path, known: Sequence[str]) -> list[tuple[str, Published]]:
    if path.stem in known:
        raise StoreError(f"published={path}: {path.stem} ships with ktbench, give the file another name")
    try:
        return [*read_file(path)]
    except OSError as error:
        raise StoreError(f"published={path}: {error.strerror}") from None


def published_of(parts: Iterable[Part]) -> tuple[Published, ...]:
    """The numbers that the parts of a run show, each once. Raises StoreError as `read_published`."""
    return read_published(*(figure for part in parts for figure in part.published))


def read_file(path: Path) -> Iterator[tuple[str, Published]]:
    """(`file:line`, number) of every row of a CSV file. Raises StoreError with file and line for what it refuses."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            _check_header(next(rows, []), f"{path}:1")
            for row in rows:
                yield f"{path}:{rows.line_num}", _number(row, path.stem)
        except StoreError:
            raise
        except (ValueError, csv.Error) as error:
            raise StoreError(f"{path}:{rows.line_num}: {error}") from None


def _check_header(header: list[str], where: str) -> None:
    if unknown := [name for name in header if name not in COLUMNS]:
        raise StoreError(f"{where}: unknown column {unknown[0]!r}; columns are {', '.join(COLUMNS)}")
    if tuple(header) != COLUMNS:
        raise StoreError(f"{where}: columns must be, in this order, {', '.join(COLUMNS)}")


def _number(row: list[str], figure: str) -> Published:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} values in {len(COLUMNS)} columns")
    content: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    if content["figure"] != figure:
        raise ValueError(f"figure={content['figure']!r}: this is the file of {figure}")
    content["tokens"] = _parsed(int, "tokens", content["tokens"]) if content["tokens"] else None
    content["batch"] = _parsed(int, "batch", content["batch"])
    content["value"] = _parsed(float, "value", content["value"])
    return from_plain(content, Published)


def _parsed(kind: type[int] | type[float], column: str, text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        whole = "a whole number" if kind is int else "a number"
        raise ValueError(f"{column}={text!r}: must be {whole}") from None


def _folder() -> Path:
    return data_folder("reports") / "published"


_CONTROL = "(A/A"
_DEFERRAL = "engine.deferral"
_MACHINE = "machine."
_ACTIVE = "workload.active_experts"
# A number that does not state these was taken without them: no experts at the device, prompts in one piece, and in a
# layer all experts active.
_UNLESS_STATED = {"engine.placement.policy": "host", "workload.chunk": "null", _ACTIVE: "null"}


def published_for(
    spec: RunSpec, label: str, numbers: Sequence[Published], *, anywhere: bool = False
) -> tuple[Published, ...]:
    """Those of `numbers` that are about a cell: same arm, machine, model, precision and work.

    An arm of `deferral=auto` is about a published choice of N. In decode any context is the same work, in layers the
    batch follows from the tokens that an expert gets. A number belongs to the machine that it was measured on: a cell
    measured here has none, nor one on that machine with other constants, but `anywhere` leaves machines out. A slice
    has none, except of a layer.
    """
    facts = _facts(spec)
    return tuple(
        number
        for number in numbers
        if (anywhere or _is_on_its_machine(number, spec))
        and _is_same_work(number, spec)
        and number.precision in _formats(spec)
        and _is_same_arm(number.arm, label)
        and _holds(number, facts, anywhere=anywhere)
    )


def _is_on_its_machine(number: Published, spec: RunSpec) -> bool:
    """Whether the cell's machine is the number's, of whose constants no more are changed than for the number."""
    if spec.machine is None or number.machine != spec.machine.name:
        return False
    return {_MACHINE + name for name in spec.machine.changed} <= set(number.conditions)


def _is_same_work(number: Published, spec: RunSpec) -> bool:
    work = spec.workload
    phase = "decode" if number.phase == "serving" else number.phase
    if (number.model, phase) != (spec.model.name, work.phase):
        return False
    if phase == "layer":
        return number.tokens == spec.tokens_per_expert
    if spec.model.is_slice or number.batch != work.batch:
        return False
    return phase == "decode" or number.tokens == work.prompt


def _formats(spec: RunSpec) -> set[str]:
    """Formats as sources name them that the cell's precision is or stands for; empty where a source names none."""
    ours: set[str] = {spec.precision}
    if spec.system != OURS:
        ours |= {peer_of(spec.system).types.get(spec.precision, spec.precision).lower()}
    return {"", *ours, *(theirs for theirs, stand_in in STANDS_FOR.items() if stand_in in ours)}


def _is_same_arm(arm: str, label: str) -> bool:
    if not arm or arm in NOT_OURS:
        return False
    theirs, ours = _features(arm), _features(label)
    chosen, requested = theirs[_DEFERRAL], ours[_DEFERRAL]
    if "auto" in (chosen, requested) and chosen and requested:
        ours = ours | {_DEFERRAL: chosen}
    return theirs == ours


@cache
def _features(label: str) -> dict[str, bool | int | float | str]:
    """What an arm sets, its precision left out."""
    return arm_changes(bare(label))


def bare(label: str) -> str:
    """A label without the words of its precision and of a control: `+v+d` of `+v+d int8 (A/A)`."""
    return without_precision(label.partition(_CONTROL)[0])


def not_simulated_reason(number: Published) -> str:
    """Why no simulated cell has the number beside it, as far as the number itself can tell."""
    if number.phase in ("accuracy", "machine") or number.metric == "GB":
        return "only speeds are"
    if number.arm in NOT_OURS:
        return NOT_OURS[number.arm]
    if arm_peer(number.arm):
        return "only our own engine is simulated"
    if not number.machine:
        return "its source does not name the machine"
    if number.tokens is None and number.phase in ("prefill", "layer", "train"):
        return "its source does not give the number of tokens"
    return "no cell at its settings was planned"


def _facts(spec: RunSpec) -> dict[str, str]:
    """Settings of a cell and constants of its machine, as Hydra writes them."""
    found = settings_of(spec)
    if spec.workload.active_experts == spec.model.shape.experts:
        found |= {_ACTIVE: None}
    return {key: setting_text(value) for key, value in found.items()}


def _holds(number: Published, facts: Mapping[str, str], *, anywhere: bool) -> bool:
    """Whether the cell is at every setting that the number was taken at."""
    wanted = _UNLESS_STATED | number.conditions
    return all(facts.get(key) == value for key, value in wanted.items() if not (anywhere and key.startswith(_MACHINE)))


def error_of(value: float, number: Published) -> float | None:
    """Signed relative error on throughput of a value in the unit of `number`: 0.1 is 10 % faster than published.

    Of a share of the time it is the share's own. None where the number is no speed and no share.
    """
    match number.metric:
        case "tokens/s" | "TFLOPS" | "% host busy" | "% device busy" | "% overlap":
            return value / number.value - 1
        case "ms":
            return number.value / value - 1
        case "% time saved":
            return (100 - number.value) / (100 - value) - 1
        case _:
            return None


# Precisions of ours by the published format that has about as many bits.
_SCORED_AS: Mapping[str, tuple[str, ...]] = {"bf16": ("bf16",), "int8": ("q8_0", "int8"), "int4_g32": ("q4_k_m",)}
_AVERAGE = "LiveBench 2024-11-25 Average"


def quantisation_cost(model: str, precision: str) -> str:
    """What a precision of the weights costs a model in accuracy, by published scores; empty where none are.

    The scores are those of the task that has one in bf16; of several in a format, the range.
    """
    found = [one for one in read_published("quantisation") if one.model == model and one.metric == "score"]
    for reference in (one for one in found if one.precision == "bf16"):
        task = reference.what.split("; ")[0]
        same = [one for one in found if one.what.startswith(task) and one.precision in _SCORED_AS.get(precision, ())]
        if same and precision != "bf16":
            scores = sorted({one.value for one in same})
            span = f"{scores[0]:g}" if len(scores) == 1 else f"{scores[0]:g} to {scores[-1]:g}"
            return f"{task}: {span} in {same[0].precision}, {reference.value:g} in bf16 (published, {reference.source})"
    return ""


@cache
def deferral_cost(model: str, deferred: int) -> str:
    """What deferring so many experts costs a model in accuracy, by published scores; empty where none are."""
    arm = f"deferral={deferred}"
    for one in read_published("fig13"):
        if one.model == model and one.arm.endswith(arm) and one.what.startswith(_AVERAGE):
            return f"{_AVERAGE}: {one.value:+g} % in {one.precision} (published, {one.source})"
    scores = [one for one in read_published("table2") if one.model == model]
    deferring = [one.value for one in scores if one.arm.endswith(arm)]
    if not deferring:
        return ""
    difference = mean(deferring) - mean(one.value for one in scores if "deferral" not in one.arm)
    return f"mean of {len(deferring)} tasks: {difference:+.1f} points (published, SOSP'25 Table 2)"


@cache
def fitted_numbers() -> frozenset[str]:
    """Ids of the published numbers that constants of the simulator were fitted on (`reports/validation/cells.csv`)."""
    with (data_folder("reports") / "validation" / "cells.csv").open(encoding="utf-8", newline="") as file:
        return frozenset(row["id"] for row in csv.DictReader(file) if row["fitted"] == "True")
