"""A LiveBench question, read from one row of its file; a wrong field is refused by its name."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TypeVar

from ktbench.eval.tasks.rows import read_object

Row = Mapping[str, object]
Truth = str | list[object] | dict[str, object]
T = TypeVar("T")


def _typed(row: Row, name: str, kind: type[T], what: str) -> T | None:
    """The value of a field; None where it is absent or null. Raises ValueError where it has another type."""
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name}: must be a {what}, is {type(value).__name__}")
    return value


def text(row: Row, name: str) -> str:
    """A text; '' where it is absent or null. Raises ValueError."""
    return _typed(row, name, str, "text") or ""


def needed(row: Row, name: str) -> str:
    """A text that has to be there. Raises ValueError."""
    if not (value := text(row, name)):
        raise ValueError(f"{name}: is missing")
    return value


def listed(row: Row, name: str) -> list[object]:
    """A list; empty where it is absent or null. Raises ValueError."""
    return _typed(row, name, list, "list") or []


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTest:
    """One test of a program: what it is given and what it has to give.

    `functional` tests call a function with one Python literal on each line of `given`; the others write `given` to the
    program's standard input and compare its standard output.
    """

    given: str
    wanted: str
    functional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveQuestion:
    """One question; `turns` holds its one prompt.

    `released` and `removed` are dates as `2024-06-24`; `released` is '' in rows without a date, `removed` in rows that
    are still in use. `ground_truth` is None where the file has none, and a list or an object for some tasks.
    `instruction_ids` and `instruction_kwargs` belong together, one to one. `tests_total` is the number of tests of the
    task. `temperature` is the one that the question requires, None where it requires none.
    """

    question_id: str
    category: str
    task: str
    turns: tuple[str, ...]
    subtask: str = ""
    system_prompt: str = ""
    ground_truth: Truth | None = field(default=None, hash=False)
    released: str = ""
    removed: str = ""
    temperature: float | None = None
    instruction_ids: tuple[str, ...] = ()
    instruction_kwargs: tuple[Mapping[str, object], ...] = field(default=(), hash=False)
    tests: tuple[ProgramTest, ...] = ()
    tests_total: int = 0
    func_name: str = ""
    partial_solution: str = ""

    @property
    def prompt(self) -> str:
        """The user's message."""
        return self.turns[0]

    @property
    def is_partly_tested(self) -> bool:
        """Only some of its tests are here, so that wrong programs may pass."""
        return 0 < len(self.tests) < self.tests_total

    @property
    def truth(self) -> str:
        """The ground truth as text, what is no text as JSON. Raises ValueError where the file has none."""
        if self.ground_truth is None:
            raise ValueError(f"{self.category}/{self.task} {self.question_id}: no ground truth")
        return self.ground_truth if isinstance(self.ground_truth, str) else json.dumps(self.ground_truth)


LIMIT_BYTES = 64 * 2**20  # of one question's tests, unpacked


def read_tests(row: Row) -> tuple[ProgramTest, ...]:
    """The tests of a row: `tests` with `test_type`, or public_test_cases and private_test_cases. Raises ValueError."""
    kind = text(row, "test_type")
    plain = [_test(case, kind, "tests") for case in listed(row, "tests")]
    packed = [
        _test(case, "", name) for name in ("public_test_cases", "private_test_cases") for case in _cases(row, name)
    ]
    return (*plain, *packed)


def func_name(row: Row) -> str:
    """The function that functional tests call: the row's own, or the one of original_json.metadata. '' for none."""
    own = text(row, "func_name")
    return own or text(_inner(_inner(row, "original_json"), "metadata"), "func_name")


def _inner(row: Row, name: str) -> Row:
    """An object within a row, given as such or as text."""
    value = row.get(name)
    if isinstance(value, dict):
        return value
    value = text(row, name)
    return read_object(value) if value else {}


def _test(case: object, kind: str, name: str) -> ProgramTest:
    if not isinstance(case, dict):
        raise ValueError(f"{name}: each must be an object with input and output")
    return ProgramTest(
        given=_side(case, "input", name),
        wanted=_side(case, "output", name),
        functional=(kind or text(case, "testtype")) == "functional",
    )


def _side(case: Row, side: str, name: str) -> str:
    if not isinstance(value := case.get(side), str):
        raise ValueError(f"{name}: each must have a text as {side}")
    return value


def _cases(row: Row, name: str) -> list[object]:
    """The cases of a field of upstream's rows: a list, its JSON, or its JSON pickled, compressed and in base64."""
    value = row.get(name)
    if isinstance(value, list):
        return value
    value = text(row, name)
    if not value:
        return []
    try:
        cases = json.loads(value if value.lstrip().startswith("[") else _unpacked(value))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: neither JSON nor packed JSON: {error}") from None
    if not isinstance(cases, list):
        raise ValueError(f"{name}: must be a list of cases")
    return cases


def _unpacked(value: str) -> str:
    """The text that was pickled, compressed and put into base64. The pickle is read as data and never run."""
    try:
        unpacker = zlib.decompressobj()
        pickle = unpacker.decompress(base64.b64decode(value), LIMIT_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError(f"more than {LIMIT_BYTES} bytes")
        texts = [held for _, held, _ in pickletools.genops(pickle) if isinstance(held, str)]
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(texts) != 1:
        raise ValueError("the pickle holds something else than one text")
    return texts[0]


def read_row(line: bytes) -> LiveQuestion:
    """The question of a line. Raises ValueError that names the wrong field."""
    row = read_object(line)
    instruction_ids, instruction_kwargs = _instructions(row)
    tests = read_tests(row)
    return LiveQuestion(
        question_id=needed(row, "question_id"),
        category=needed(row, "category"),
        task=needed(row, "task"),
        turns=_turns(row),
        subtask=text(row, "subtask"),
        system_prompt=text(row, "system_prompt"),
        ground_truth=_truth(row),
        released=_date(row, "livebench_release_date"),
        removed=_date(row, "livebench_removal_date"),
        temperature=_number(row, "required_temperature"),
        instruction_ids=instruction_ids,
        instruction_kwargs=instruction_kwargs,
        tests=tests,
        tests_total=int(_number(row, "tests_total") or len(tests)),
        func_name=func_name(row),
        partial_solution=text(row, "partial_solution"),
    )


def _truth(row: Row) -> Truth | None:
    """A text, a list or an object. Raises ValueError for anything else."""
    value = row.get("ground_truth")
    return value if isinstance(value, list | dict) else _typed(row, "ground_truth", str, "text, list or object")


def _number(row: Row, name: str) -> float | None:
    value = _typed(row, name, Real, "number")  # type: ignore[type-abstract]
    return None if value is None else float(value)


def _turns(row: Row) -> tuple[str, ...]:
    turns = listed(row, "turns")
    if len(turns) != 1 or not isinstance(turns[0], str) or not turns[0]:
        raise ValueError("turns: must be a list of one text, the prompt")
    return (turns[0],)


def _date(row: Row, name: str) -> str:
    """The day, without a time of day that may follow."""
    value = text(row, name)
    if value and not re.match(r"\d{4}-\d\d-\d\d(?![\d-])", value):
        raise ValueError(f"{name}={value}: must be a date as 2024-06-24, or empty")
    return value[:10]


def _instructions(row: Row) -> tuple[tuple[str, ...], tuple[Mapping[str, object], ...]]:
    ids = listed(row, "instruction_id_list")
    kwargs = listed(row, "kwargs")
    if not all(isinstance(name, str) for name in ids):
        raise ValueError("instruction_id_list: must be a list of texts")
    if len(kwargs) != len(ids) or not all(isinstance(one, dict) for one in kwargs):
        raise ValueError(f"kwargs: must be a list of {len(ids)} objects, one for each instruction")
    return tuple(map(str, ids)), tuple(one for one in kwargs if isinstance(one, dict))
