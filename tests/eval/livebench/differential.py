"""Graders against LiveBench's rules on crafted answers: `python -m tests.eval.livebench.differential` derives anew.

The expected scores are data (`crafted.jsonl.gz`), derived by `rules`, which share nothing with the graders. The command
writes them and the table of docs/accuracy.md.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from docs.gen.repository import DOCS, table
from ktbench.eval.livebench import programs
from ktbench.eval.livebench.graders import GRADERS, grade_answer
from ktbench.eval.livebench.question import LiveQuestion, ProgramTest
from ktbench.eval.sandbox.running import ProgramResult, call_program, run_program
from ktbench.eval.tasks.harness import Grade
from tests.eval.livebench.crafted.answers import Row, crafted
from tests.eval.livebench.rules.expected import expected

DATA = Path(__file__).with_name("crafted.jsonl.gz")
PAGE = DOCS / "accuracy.md"
# By task and deviation of its grader, the crafted answers that are worth something else than LiveBench gives them.
EXPLAINED: Mapping[str, Mapping[str, int]] = {
    "AMPS_Hard": {"negative": 20},
    "LCB_generation": {"global": 4, "streams": 22, "quit": 2, "array": 2, "equality": 2},
}
Pairs = list[tuple[str, float]]


def derived() -> Iterator[tuple[Row, Pairs]]:
    """Every crafted question with its answers and their scores by LiveBench's rules."""
    for row, answers in crafted():
        yield row, [(answer, expected(row, answer)) for answer in answers]


def write_data() -> None:
    lines = (json.dumps(one, ensure_ascii=False) for pair in derived() for one in pair)
    DATA.write_bytes(gzip.compress("\n".join(lines).encode("utf-8", "surrogatepass"), mtime=0))


@cache
def stored() -> Mapping[str, list[tuple[Row, Pairs]]]:
    """What is kept as data, by task."""
    lines = iter(gzip.decompress(DATA.read_bytes()).decode("utf-8", "surrogatepass").split("\n"))
    found: dict[str, list[tuple[Row, Pairs]]] = {}
    for line in lines:
        row: Row = json.loads(line)
        pairs = [(answer, score) for answer, score in json.loads(next(lines))]
        found.setdefault(row["task"], []).append((row, pairs))
    return found


def question_of(row: Row) -> LiveQuestion:
    instructions = row.get("instructions", ())
    function = row.get("function", "")
    return LiveQuestion(
        question_id="q",
        category="c",
        task=row["task"],
        turns=(row.get("prompt", "?"),),
        ground_truth=row["truth"],
        released=row["released"],
        subtask=row.get("subtask", ""),
        instruction_ids=tuple(name for name, _ in instructions),
        instruction_kwargs=tuple(arguments for _, arguments in instructions),
        tests=tuple(
            ProgramTest(given=one["input"], wanted=one["output"], functional=bool(function))
            for one in row.get("tests", ())
        ),
        func_name=function,
        partial_solution=row.get("partial", ""),
    )


def deviation_of(row: Row, answer: str) -> str:
    """The deviation, by its name, that an answer is made to show; '' for none."""
    if "#: " in answer:
        return answer.rpartition("#: ")[2].split()[0]
    return "negative" if any(formula in answer for formula in row.get("negative", ())) else ""


@dataclass
class Outcome:
    """What became of a task's answers: scores by LiveBench's rules, explained differences, and all others."""

    scores: list[float] = field(default_factory=list)
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[tuple[Any, str, Grade, float]] = field(default_factory=list)


@cache
def outcome(task: str) -> Outcome:
    """Grade every answer of a task. Each program runs once in the sandbox, one that is no Python not at all."""
    found = Outcome()
    with (
        patch.object(programs, "run_program", _once(run_program)),
        patch.object(programs, "call_program", _once(call_program)),
    ):
        for row, pairs in stored()[task]:
            question = question_of(row)
            for answer, score in pairs:
                found.scores.append(score)
                grade = grade_answer(question, answer, confirm_unsafe=True)
                if grade.value is not None and abs(grade.value - score) < 1e-9:
                    continue
                if (name := deviation_of(row, answer)) in GRADERS[task].deviations and grade.value is not None:
                    found.explained[name] += 1
                else:
                    found.unexplained.append((row["truth"], answer, grade, score))
    return found


def _once(run: Callable[..., ProgramResult]) -> Callable[..., ProgramResult]:
    ended: dict[str, ProgramResult] = {}

    def run_once(source: str, *arguments: object, **more: object) -> ProgramResult:
        key = repr((source, arguments, more))
        if key not in ended:
            try:
                compile(source, "program.py", "exec", dont_inherit=True)
                ended[key] = run(source, *arguments, **more)
            except SyntaxError:
                ended[key] = ProgramResult(finished=False, stdout="", why="SyntaxError")
        return ended[key]

    return run_once


def differential_table() -> str:
    """Answers, their scores by LiveBench's rules, and the differences, by task."""
    rows = [_line(task, outcome(task)) for task in sorted(stored())]
    return table(["task", "answers", "worth 0", "between", "worth 1", "differences", "explained by"], rows)


def _line(task: str, found: Outcome) -> list[str]:
    worth = Counter(0 if score == 0 else 1 if score == 1 else 2 for score in found.scores)
    reasons = ", ".join(f"{name} {count}" for name, count in sorted(found.explained.items())) or "–"
    differences = sum(found.explained.values()) + len(found.unexplained)
    return [f"`{task}`", *map(str, (len(found.scores), worth[0], worth[2], worth[1], differences)), reasons]


def deviations_table() -> str:
    """What the graders do in another way than LiveBench."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for task, grader in GRADERS.items():
        for deviation in grader.deviations.items():
            tasks.setdefault(deviation, []).append(f"`{task}`")
    return table(["tasks", "name", "difference"], [[", ".join(of), *deviation] for deviation, of in tasks.items()])


def parts_of(page: str) -> dict[str, str]:
    """The made parts of the page as they are, by name."""
    return {name: page.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0] for name in PARTS}


PARTS: Mapping[str, Callable[[], str]] = {"deviations": deviations_table, "differential": differential_table}


def main() -> None:
    """Write the data and the tables."""
    write_data()
    page = PAGE.read_text(encoding="utf-8")
    for name, before in parts_of(page).items():
        begin = f"<!-- {name} -->"
        page = page.replace(f"{begin}{before}", f"{begin}\n\n{PARTS[name]()}\n\n", 1)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
