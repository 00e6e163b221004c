"""LiveBench's coding answers: right, wrong and tricky ones, on hand-made questions and on real ones."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.eval.livebench import programs
from ktbench.eval.livebench.loading import read_questions
from ktbench.eval.livebench.programs import grade_program, program_of, same_output, untestable
from ktbench.eval.livebench.question import LiveQuestion, ProgramTest
from ktbench.eval.sandbox.running import Limits
from ktbench.eval.tasks.harness import Grade
from tests.eval.conftest import needs_shared_data
from tests.eval.livebench.questions import LIVEBENCH


def question(*tests: tuple[str, str], function: str = "", partial: str = "") -> LiveQuestion:
    return LiveQuestion(
        question_id="q",
        category="coding",
        task="LCB_generation",
        turns=("?",),
        tests=tuple(ProgramTest(given=g, wanted=w, functional=bool(function)) for g, w in tests),
        func_name=function,
        partial_solution=partial,
    )


def graded(problem: LiveQuestion, code: str) -> Grade:
    return grade_program(problem, f"Here it is.\n```python\n{code}\n```\nDone.")


SUMS = question(("1 2\n", "3\n"), ("5 5\n", "10\n"))
PAIRS = question(("[1, 2]\n2", "[2, 4]"), ("[]\n2", "[]"), function="times")
SOLUTION = "class Solution:\n    def times(self, xs: List[int], k: int) -> List[int]:\n        "


def test_standard_input() -> None:
    assert graded(SUMS, "print(sum(map(int, input().split())))") == Grade(1.0)
    assert graded(SUMS, "print(3)") == Grade(0.0, "wrong in test 2 of 2")
    assert graded(SUMS, "print(3); 1 / 0") == Grade(0.0, "ZeroDivisionError: division by zero")
    assert graded(SUMS, "import sys\nprint(eval(sys.stdin.read().replace(' ', '+'))); exit()") == Grade(1.0)
    assert graded(SUMS, "import os\nos.write(1, b'3'); os._exit(0)").value == 0.0
    assert graded(SUMS, "def f(): print(sum(map(int, input().split())))\nif __name__ == '__main__': f()").value == 1.0


def test_functions() -> None:
    assert graded(PAIRS, SOLUTION + "return [k * x for x in xs]") == Grade(1.0)
    assert graded(PAIRS, "def times(xs, k): return tuple(k * x for x in xs)") == Grade(1.0)
    assert graded(PAIRS, "import numpy as np\ndef times(xs, k): return [np.int64(k) * x for x in xs]") == Grade(1.0)
    assert graded(PAIRS, SOLUTION + "return xs") == Grade(0.0, "wrong in test 1 of 2")
    assert graded(PAIRS, SOLUTION + "return [2, 4]") == Grade(0.0, "wrong in test 2 of 2")
    assert graded(PAIRS, SOLUTION + "return xs[0] and [2, 4]") == Grade(0.0, "IndexError: list index out of range")
    assert graded(PAIRS, "class Solution: pass").value == 0.0
    assert graded(PAIRS, "").value == 0.0


def test_what_is_wanted_is_out_of_reach() -> None:
    """A program that looks for what is wanted among all that its process holds does not find it."""
    secret = question(("1", '"needle-4711"'), function="f")
    look = (
        "import gc, sys\ndef f(x):\n    return next((o for o in seen() if isinstance(o, str) and '-4711' in o), '')\n"
    )
    look += "def seen():\n    for held in gc.get_objects(): yield from gc.get_referents(held)\n"
    assert graded(secret, look.replace("'-4711'", "'dle-47' '11'")).value == 0.0
    assert (
        graded(secret, "def f(x):\n    class A(str):\n        __eq__ = lambda a, b: True\n    return A('')").value
        == 0.0
    )
    assert graded(PAIRS, "import os\ndef times(xs, k): os._exit(0)").value == 0.0


def test_modules_are_there_without_import() -> None:
    problem = question(("[3, 1, 2]", "[1, 8, 3]"), function="f")
    code = "def f(xs):\n    heapify(xs)\n    return [heappop(xs), pow(2, 3, None), Counter({3: 1}).most_common()[0][0]]"
    assert graded(problem, code) == Grade(1.0)


def test_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert programs.LIMITS.seconds == 6
    monkeypatch.setattr(programs, "LIMITS", Limits(seconds=1))
    assert graded(question(("1", "1"), function="f"), "def f(x):\n    while True: pass").why == "took more than 1 s"


def test_the_program_in_an_answer() -> None:
    assert program_of("a\n```python\nx\n```\nb\n```\ny\nz\n``` c") == "y\nz"
    assert program_of("print(1)") == "print(1)"
    assert program_of("```python\nx") == "```python\nx"
    assert program_of("x\ny\n```\n") == "x\ny"
    assert program_of("`x`") == "x"
    assert program_of("x\n```\ny") == "x\n```\ny"
    assert program_of("```\n    b\n```", "def f():\n    a") == "def f():\n    a\n    b"
    assert program_of("```\ndef f():\n    a\n    b\n```", "def f():\n    a") == "def f():\n    a\n    b"


def test_a_partial_solution_is_completed() -> None:
    problem = question(("[1, 2]\n2", "[2, 4]"), function="times", partial=SOLUTION + "ys = []")
    assert graded(problem, "        for x in xs: ys.append(k * x)\n        return ys") == Grade(1.0)
    assert graded(problem, SOLUTION + "ys = []\n        return [k * x for x in xs]") == Grade(1.0)


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        (" 1 2 \n 3\n\n", "1 2\n3\n", True),
        ("1\n\n2", "1\n2", False),
        ("1\n \n2", "1\n\n2", True),
        ("1.0 2.0", "1 2", True),
        ("Yes\n1.0", "Yes\n1", True),
        ("Yes 1.0", "Yes 1", False),
        ("499122179.0", "499122178", False),
        ("499122178.0", "499122178", True),
        ("50000000000000001", "50000000000000000", False),
        ("0.333333", "0.3333331", False),
        ("1\n0.50", "1\n.5", True),
        ("1e3", "1000", True),
        ("1\r\n2", "1\n2", True),
        ("1\n2", "1", False),
        ("1 2", "1\n2", False),
        ("1,2", "1.2", False),
        ("yes", "Yes", False),
        ("nan", "0.5", False),
        ("nan", "NaN", False),
        ("inf", "Infinity", True),
        ("sNaN 1", "sNaN 1.0", False),
        ("1e99999999999999999999", "1", False),
        ("", "", True),
        ("", "0", False),
    ],
)
def test_outputs(printed: str, wanted: str, same: bool) -> None:
    assert same_output(printed, wanted) is same


LINES = st.lists(st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1))


@given(LINES)
def test_an_output_is_its_own(lines: list[str]) -> None:
    assert same_output("\n".join(f" {line} " for line in lines) + "\n\n", "\n".join(lines))
    assert not same_output("\n".join([*lines, "0"]), "\n".join(lines))


NUMBERS = st.decimals(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1))
def test_numbers_are_the_same_where_their_decimals_are(pairs: list[tuple[Decimal, Decimal]]) -> None:
    ours, theirs = (" ".join(map(str, side)) for side in zip(*pairs, strict=True))
    assert same_output(ours, theirs) == all(a == b for a, b in pairs)
    assert same_output(ours, " ".join(f"{a:f}" if abs(a.adjusted()) < 50 else str(a) for a, _ in pairs))


def test_what_cannot_be_tested() -> None:
    assert untestable(question()) == "no tests"
    assert untestable(question(("{", "1"), function="f")) == "'{' in its tests is no JSON"
    assert untestable(question(("1\n2", ""), function="f")) == "'' in its tests is no JSON"
    assert untestable(question(("{", "1"))) == ""


BAT = "b, g = map(int, input().split())\nprint('Bat' if b > g else 'Glove')"
STRONG = """class Solution:
    def maximumStrongPairXor(self, nums: List[int]) -> int:
        return max(x ^ y for x in nums for y in nums if abs(x - y) <= min(x, y))"""
FREQUENCY = """                middle = (left + right) // 2
                curr -= nums[middle + (right - left) % 2] - nums[left]
                left += 1
        return len(nums) - left"""


@needs_shared_data
@pytest.mark.parametrize(
    ("start", "code", "spoilt"),
    [("03741bca", BAT, ">"), ("01c73e7f", STRONG, "<="), ("a902525e", FREQUENCY, "+= 1")],
)
def test_real_questions(start: str, code: str, spoilt: str) -> None:
    held = read_questions(LIVEBENCH / "derived", tasks=["LCB_generation", "coding_completion"])
    problem = next(one for one in held if one.question_id.startswith(start))
    assert graded(problem, code) == Grade(1.0)
    assert graded(problem, code.replace(spoilt, "+= 2" if spoilt == "+= 1" else "< 9 >")).value == 0.0
