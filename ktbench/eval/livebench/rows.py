"""One row of a LiveBench file → a question."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ktbench.eval.livebench import fields
from ktbench.eval.livebench.fields import Row
from ktbench.eval.livebench.program_tests import func_name, read_tests
from ktbench.eval.livebench.question import LiveQuestion


def read_row(line: bytes) -> LiveQuestion:
    """The question of a line. Raises ValueError that says which field is wrong."""
    row = fields.read_object(line)
    instruction_ids, instruction_kwargs = _instructions(row)
    tests = read_tests(row)
    return LiveQuestion(
        question_id=fields.needed(row, "question_id"),
        category=fields.needed(row, "category"),
        task=fields.needed(row, "task"),
        turns=_turns(row),
        subtask=fields.text(row, "subtask"),
        system_prompt=fields.text(row, "system_prompt"),
        ground_truth=fields.text(row, "ground_truth") if row.get("ground_truth") is not None else None,
        released=_date(row, "livebench_release_date"),
        removed=_date(row, "livebench_removal_date"),
        temperature=fields.number(row, "required_temperature"),
        instruction_ids=instruction_ids,
        instruction_kwargs=instruction_kwargs,
        tests=tests,
        tests_total=int(fields.number(row, "tests_total") or len(tests)),
        func_name=func_name(row),
        partial_solution=fields.text(row, "partial_solution"),
    )


def _turns(row: Row) -> tuple[str, ...]:
    turns = fields.listed(row, "turns")
    if len(turns) != 1 or not isinstance(turns[0], str) or not turns[0]:
        raise ValueError("turns: must be a list of one text, the prompt")
    return (turns[0],)


def _date(row: Row, name: str) -> str:
    """The day, without a time of day that may follow."""
    said = fields.text(row, name)
    if said and not re.match(r"\d{4}-\d\d-\d\d(?![\d-])", said):
        raise ValueError(f"{name}={said}: must be a date as 2024-06-24, or empty")
    return said[:10]


def _instructions(row: Row) -> tuple[tuple[str, ...], tuple[Mapping[str, object], ...]]:
    ids = fields.listed(row, "instruction_id_list")
    kwargs = fields.listed(row, "kwargs")
    if not all(isinstance(name, str) for name in ids):
        raise ValueError("instruction_id_list: must be a list of texts")
    if len(kwargs) != len(ids) or not all(isinstance(one, dict) for one in kwargs):
        raise ValueError(f"kwargs: must be a list of {len(ids)} objects, one for each instruction")
    return tuple(map(str, ids)), tuple(one for one in kwargs if isinstance(one, dict))
