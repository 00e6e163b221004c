"""A LiveBench question, read from one row of its file; a wrong field is rejected by name."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from ktbench.eval.tasks.rows import read_object, require_object
from ktbench.spec.wire import from_plain

Truth = str | list[object] | dict[str, object]
Needed = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTest:
    """One test of a program: its input and the expected result.

    `functional` tests call a function with one Python literal on each line of `given`; the others write `given` to the
    program's standard input and compare its standard output.
    """

    given: str
    wanted: str
    functional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveQuestion:
    """One question; `turns` holds its single prompt.

    `released` and `removed` are dates as `2024-06-24`; `released` is '' in rows without a date, `removed` in rows that
    are still in use. `ground_truth` is None where the file has none, and a list or an object for some tasks.
    `instruction_ids` and `instruction_kwargs` correspond one to one. `tests_total` is the number of tests of the task.
    `temperature` is the required one, None without a requirement.
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
        """Whether only some of its tests are here, so that wrong programs may pass."""
        return 0 < len(self.tests) < self.tests_total

    @property
    def truth(self) -> str:
        """The ground truth as text, non-text as JSON. Raises ValueError if the file has none."""
        if self.ground_truth is None:
            raise ValueError(f"{self.category}/{self.task} {self.question_id}: no ground truth")
        return self.ground_truth if isinstance(self.ground_truth, str) else json.dumps(self.ground_truth)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """A test as upstream writes it."""

    input: str
    output: str
    testtype: str | None = None

    def test(self, kind: str | None) -> ProgramTest:
        return ProgramTest(given=self.input, wanted=self.output, functional=(kind or self.testtype) == "functional")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row as upstream writes it; null stands for absent values.

    Cases are a list, its JSON, or its JSON pickled, compressed and in base64.
    """

    question_id: Needed
    category: Needed
    task: Needed
    turns: Annotated[list[Needed], Meta(min_length=1, max_length=1)]
    subtask: str | None = None
    system_prompt: str | None = None
    ground_truth: Truth | None = None
    livebench_release_date: str | None = None
    livebench_removal_date: str | None = None
    required_temperature: float | None = None
    instruction_id_list: list[str] | None = None
    kwargs: list[dict[str, object]] | None = None
    tests: list[_Case] | None = None
    test_type: str | None = None
    tests_total: float | None = None
    public_test_cases: str | list[_Case] | None = None
    private_test_cases: str | list[_Case] | None = None
    func_name: str | None = None
    original_json: str | dict[str, object] | None = None
    partial_solution: str | None = None

    def all_tests(self) -> tuple[ProgramTest, ...]:
        """`tests` with `test_type`, public_test_cases and private_test_cases. Raises ValueError."""
        packed = [*_cases(self, "public_test_cases"), *_cases(self, "private_test_cases")]
        return (*(case.test(self.test_type) for case in self.tests or ()), *(case.test(None) for case in packed))


def _cases(row: _Row, name: str) -> list[_Case]:
    value = getattr(row, name) or []
    if isinstance(value, list):
        return value
    try:
        content = json.loads(value if value.lstrip().startswith("[") else _unpack(value))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: neither JSON nor packed JSON: {error}") from None
    try:
        return from_plain(content, list[_Case])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


LIMIT_BYTES = 64 * 2**20  # of one question's tests, unpacked


def _unpack(value: str) -> str:
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
    row = from_plain(read_object(line), _Row)
    ids, kwargs, tests = row.instruction_id_list or [], row.kwargs or [], row.all_tests()
    if len(kwargs) != len(ids):
        raise ValueError(f"kwargs: must be a list of {len(ids)} objects, one for each instruction")
    return LiveQuestion(
        question_id=row.question_id,
        category=row.category,
        task=row.task,
        turns=tuple(row.turns),
        subtask=row.subtask or "",
        system_prompt=row.system_prompt or "",
        ground_truth=row.ground_truth,
        released=_day("livebench_release_date", row.livebench_release_date),
        removed=_day("livebench_removal_date", row.livebench_removal_date),
        temperature=row.required_temperature,
        instruction_ids=tuple(ids),
        instruction_kwargs=tuple(kwargs),
        tests=tests,
        tests_total=int(row.tests_total or len(tests)),
        func_name=row.func_name or str(_inner(_inner(row.original_json).get("metadata")).get("func_name") or ""),
        partial_solution=row.partial_solution or "",
    )


def _day(name: str, value: str | None) -> str:
    """The day, without a time of day that may follow."""
    if value and not re.match(r"\d{4}-\d\d-\d\d(?![\d-])", value):
        raise ValueError(f"{name}={value}: must be a date as 2024-06-24, or empty")
    return (value or "")[:10]


def _inner(value: Any) -> Mapping[str, Any]:
    """An object within a row, given as such or as text; empty if missing. Raises ValueError."""
    return read_object(value) if isinstance(value, str) and value else require_object(value or {})
