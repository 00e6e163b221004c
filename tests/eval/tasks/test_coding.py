"""HumanEval's and MBPP's own solutions pass their own tests; spoilt ones do not."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ktbench.eval.tasks.coding import HUMANEVAL_STOPS, grade_humaneval, grade_mbpp, until
from ktbench.eval.tasks.harness import Grade
from tests.drawing import few_of
from tests.eval.conftest import SHARED, needs_shared_data

ADD = {
    "prompt": 'def add(a, b):\n    """Sum."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
PARTS = 4  # of HumanEval
TWICE = {"test_setup_code": "", "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"]}


def humaneval() -> list[dict[str, Any]]:
    with gzip.open(SHARED / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def mbpp() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SHARED / "mbpp" / "mbpp.jsonl").read_text(encoding="utf-8").splitlines()]


def right(row: dict[str, Any]) -> str:
    return grade_humaneval(row, row["canonical_solution"], confirm_unsafe=True).why


def solved(row: dict[str, Any]) -> str:
    return grade_mbpp(row, row["code"], confirm_unsafe=True).why


@needs_shared_data
@pytest.mark.parametrize("part", few_of(range(PARTS), {0}))
def test_humanevals_own_solutions_pass(part: int) -> None:
    rows = humaneval()[part::PARTS]
    with ThreadPoolExecutor(2) as pool:
        assert {row["task_id"]: why for row, why in zip(rows, pool.map(right, rows), strict=True) if why} == {}
    assert len(rows) == 164 // PARTS


@needs_shared_data
def test_spoilt_solutions_of_humaneval_fail() -> None:
    for row in humaneval()[::16]:
        assert grade_humaneval(row, "    return None\n", confirm_unsafe=True).value == 0.0
        assert grade_humaneval(row, row["canonical_solution"][:-12], confirm_unsafe=True).value == 0.0


@needs_shared_data
def test_mbpps_own_solutions_pass() -> None:
    rows = [row for row in mbpp() if row["test_setup_code"] or row["task_id"] % 25 == 3]
    assert {row["task_id"]: why for row in rows if (why := solved(row))} == {}
    assert len(rows) == 41


@needs_shared_data
def test_spoilt_solutions_of_mbpp_fail() -> None:
    rows = [row for row in mbpp() if row["task_id"] % 100 == 3]
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        assert grade_mbpp(row, other["code"], confirm_unsafe=True).value == 0.0


def test_a_completion_ends_at_a_stop() -> None:
    going_on = "    return a + b\n\ndef add(a, b):\n    return 0\n"
    assert grade_humaneval(ADD, going_on, confirm_unsafe=True) == Grade(1.0)
    assert until("    # a\n    def f(): ...\nprint(f())\nif 1:", HUMANEVAL_STOPS) == "    # a\n    def f(): ..."
    assert grade_mbpp(TWICE, "def twice(x):\n  return 2 * x\n[DONE]\n[BEGIN]", confirm_unsafe=True) == Grade(1.0)


@pytest.mark.parametrize(
    ("completion", "why"),
    [
        ("    return a - b\n", "AssertionError"),
        ("    import sys; sys.exit(0)\n", "ended before its tests did"),
        ("    import os; os._exit(0)\n", "ended before it was through"),
        ("    return open('/etc/passwd')\n", "tried to open /etc/passwd"),
        ("    return a +\n", "SyntaxError: invalid syntax (program.py, line 3)"),
        ("", "AssertionError"),  # the prompt alone is a function that returns None
    ],
)
def test_wrong_completions(completion: str, why: str) -> None:
    assert grade_humaneval(ADD, completion, confirm_unsafe=True) == Grade(0.0, why)


def test_what_is_run_needs_a_word() -> None:
    for grade, row in ((grade_humaneval, ADD), (grade_mbpp, TWICE)):
        with pytest.raises(ValueError, match="confirm_unsafe=true"):
            grade(row, "", confirm_unsafe=False)
